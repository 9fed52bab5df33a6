-- +goose Up
-- Rights of visitors end with what they were given by: a keypair, a list of client addresses, or a domain. Tickets and codes are good
-- for one epoch of their circuit, so raising it ends them; visitors who keep their right enter anew. The order of locks is that of
-- circuit_of_member: the circuits in the order of their ids, then what belongs to them.

-- +goose StatementBegin
CREATE FUNCTION circuits_of_visitors(visitors uuid[]) RETURNS uuid[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY(
        SELECT c.id FROM circuits c WHERE c.user_id = ANY(visitors)
        UNION SELECT h.circuit_id FROM circuit_shares h WHERE h.user_id = ANY(visitors)
        UNION SELECT h.circuit_id FROM circuit_shares h JOIN project_members m ON m.project_id = h.project_id WHERE m.user_id = ANY(visitors)
        UNION SELECT t.circuit_id FROM circuit_office_tickets t WHERE t.user_id = ANY(visitors))
$$;

CREATE FUNCTION revoke_tickets_of(visitors uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lost uuid[] := circuits_of_visitors(visitors);
BEGIN
    PERFORM c.id FROM circuits c WHERE c.id = ANY(lost) ORDER BY c.id FOR UPDATE;
    UPDATE circuits SET epoch = epoch + 1 WHERE id = ANY(lost);
    DELETE FROM circuit_admissions WHERE circuit_id = ANY(lost);
    DELETE FROM circuit_office_tickets WHERE circuit_id = ANY(lost);
    DELETE FROM app_launches WHERE user_id = ANY(visitors);
END $$;

-- A keypair that is revoked or removed: what was obtained with it ends, whoever holds it now.
CREATE FUNCTION circuit_of_keypair() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM revoke_tickets_of(ARRAY[OLD.user_id]);
    RETURN NULL;
END $$;

-- Tickets carry the list of addresses that held when they were signed.
CREATE FUNCTION circuit_of_addresses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM revoke_tickets_of(ARRAY[NEW.id]);
    RETURN NULL;
END $$;

-- The users of a domain that is made inactive publish nothing and visit nothing.
CREATE FUNCTION circuit_of_domain() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    members uuid[] := ARRAY(SELECT u.id FROM users u WHERE u.domain_name = NEW.name);
BEGIN
    PERFORM c.id FROM circuits c WHERE c.user_id = ANY(members) ORDER BY c.id FOR UPDATE;
    DELETE FROM circuits WHERE user_id = ANY(members);
    PERFORM revoke_tickets_of(members);
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER circuit_of_revoked AFTER UPDATE OF is_active ON keypairs FOR EACH ROW WHEN (OLD.is_active AND NOT NEW.is_active)
    EXECUTE FUNCTION circuit_of_keypair();
CREATE TRIGGER circuit_of_removed AFTER DELETE ON keypairs FOR EACH ROW WHEN (OLD.is_active) EXECUTE FUNCTION circuit_of_keypair();
CREATE TRIGGER circuit_of_addresses AFTER UPDATE OF allowed_client_ip ON users FOR EACH ROW
    WHEN (OLD.allowed_client_ip IS DISTINCT FROM NEW.allowed_client_ip) EXECUTE FUNCTION circuit_of_addresses();
CREATE TRIGGER circuit_of_domain AFTER UPDATE OF is_active ON domains FOR EACH ROW WHEN (OLD.is_active AND NOT NEW.is_active)
    EXECUTE FUNCTION circuit_of_domain();
