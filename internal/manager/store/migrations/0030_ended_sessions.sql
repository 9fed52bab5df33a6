-- +goose Up
-- Lists of sessions stay quick however many have ended. A list says how many items it has, and counting a million rows takes longer than
-- reading a page of them. So ended sessions are counted as they end and as they are forgotten: a row is a change of the number of sessions
-- with one set of properties, and the number is the sum. Nobody waits for anybody's row. The leader joins rows together now and then.
CREATE TABLE ended_session_counts (
    user_id        uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    domain_name    text NOT NULL,
    project_id     uuid NOT NULL,
    access_key     text NOT NULL,
    type           text NOT NULL,
    status         text NOT NULL,
    n              bigint NOT NULL,
    joined         boolean NOT NULL DEFAULT false   -- made of several rows by the leader
);
CREATE INDEX ended_session_counts_user ON ended_session_counts (user_id);
CREATE INDEX ended_session_counts_new ON ended_session_counts (joined) WHERE NOT joined;

INSERT INTO ended_session_counts (user_id, domain_name, project_id, access_key, type, status, n, joined)
SELECT user_id, domain_name, project_id, access_key, type, status, count(*), true FROM sessions WHERE ended_at IS NOT NULL
GROUP BY user_id, domain_name, project_id, access_key, type, status;

-- +goose StatementBegin
CREATE FUNCTION count_ended_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        INSERT INTO ended_session_counts (user_id, domain_name, project_id, access_key, type, status, n)
        VALUES (OLD.user_id, OLD.domain_name, OLD.project_id, OLD.access_key, OLD.type, OLD.status, -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO ended_session_counts (user_id, domain_name, project_id, access_key, type, status, n)
        VALUES (NEW.user_id, NEW.domain_name, NEW.project_id, NEW.access_key, NEW.type, NEW.status, 1);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER sessions_count_ended AFTER UPDATE ON sessions FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status AND (OLD.ended_at IS NOT NULL OR NEW.ended_at IS NOT NULL))
    EXECUTE FUNCTION count_ended_session();
CREATE TRIGGER sessions_count_inserted AFTER INSERT ON sessions FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL)
    EXECUTE FUNCTION count_ended_session();
CREATE TRIGGER sessions_count_deleted AFTER DELETE ON sessions FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL)
    EXECUTE FUNCTION count_ended_session();

-- What lists are asked by: whose, of which domain, called what, and those few that failed. A key belongs to one user, so its index goes.
DROP INDEX sessions_by_owner;
CREATE INDEX sessions_by_user ON sessions (user_id, created_at DESC);
CREATE INDEX sessions_by_domain ON sessions (domain_name, created_at DESC);
CREATE INDEX sessions_by_name ON sessions (name text_pattern_ops);
CREATE INDEX sessions_failed ON sessions (created_at DESC) WHERE status IN ('CANCELLED', 'ERROR');
