-- +goose Up
-- Whether agents pull images of registries at all is a setting. Schedulers keep in memory which kernels run only where their image is,
-- so that they look at the waiting sessions again when it changes. The setting's writer: image.SetAutoPull.
-- +goose StatementBegin
CREATE FUNCTION auto_pull_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduling_changes (kind, id)
    SELECT 'session', s.id::text FROM sessions s WHERE s.status = 'PENDING' AND EXISTS (SELECT 1 FROM kernels k
        JOIN images i ON i.id = coalesce(k.image_id, s.image_id) WHERE k.session_id = s.id AND i.registry_type <> 'local');
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER auto_pull_changed AFTER INSERT OR UPDATE ON cluster_settings FOR EACH ROW WHEN (NEW.key = 'image-auto-pull')
    EXECUTE FUNCTION auto_pull_changed();
