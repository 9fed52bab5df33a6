-- +goose Up
-- Tickets that administrators hold for circuits of others: they end with the office. Writer: app.Service; rows go with their
-- circuit, and when their tickets have expired.
CREATE TABLE circuit_office_tickets (
    circuit_id uuid NOT NULL REFERENCES circuits(id) ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL,              -- of the last one
    PRIMARY KEY (circuit_id, user_id)
);
CREATE INDEX circuit_office_tickets_user ON circuit_office_tickets (user_id);
CREATE INDEX circuit_office_tickets_expiry ON circuit_office_tickets (expires_at);

-- +goose StatementBegin
-- Whoever loses the right to visit by leaving a project, by being made inactive, or with an office, is thrown out with all tickets
-- of the circuit; the others enter anew. An owner who is made inactive publishes nothing. Whoever gives out a ticket or admits
-- an address holds the user's row and the circuit's until it is written: the circuits are locked before admissions are
-- removed, in the order of their ids.
CREATE OR REPLACE FUNCTION circuit_of_member() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lost uuid[];
BEGIN
    IF TG_TABLE_NAME = 'users' THEN
        IF NEW.status <> 'active' THEN
            DELETE FROM circuits WHERE user_id = NEW.id;
            lost := ARRAY(SELECT h.circuit_id FROM circuit_shares h WHERE h.user_id = NEW.id
                OR h.project_id IN (SELECT m.project_id FROM project_members m WHERE m.user_id = NEW.id));
        END IF;
        -- Administrators of a domain lose those whose owner becomes a superadmin.
        lost := lost || ARRAY(SELECT t.circuit_id FROM circuit_office_tickets t JOIN circuits c ON c.id = t.circuit_id WHERE t.user_id = NEW.id OR c.user_id = NEW.id);
    ELSE
        lost := ARRAY(SELECT h.circuit_id FROM circuit_shares h WHERE h.project_id = OLD.project_id);
    END IF;
    PERFORM c.id FROM circuits c WHERE c.id = ANY(lost) ORDER BY c.id FOR UPDATE;
    UPDATE circuits SET epoch = epoch + 1 WHERE id = ANY(lost);
    DELETE FROM circuit_admissions WHERE circuit_id = ANY(lost);
    DELETE FROM circuit_office_tickets WHERE circuit_id = ANY(lost);
    RETURN NULL;
END $$;
-- +goose StatementEnd

DROP TRIGGER circuit_of_user ON users;
CREATE TRIGGER circuit_of_user AFTER UPDATE OF status, role, domain_name ON users FOR EACH ROW
    WHEN (OLD.status = 'active' AND (NEW.status <> 'active' OR NEW.role <> OLD.role OR NEW.domain_name <> OLD.domain_name))
    EXECUTE FUNCTION circuit_of_member();
