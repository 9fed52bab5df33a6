-- The moves of a whole transaction in one statement; see ledger_write.go.
--
-- Where an array of a statement stands in a SELECT of its own, PostgreSQL cannot count it when it plans. It would plan the statement for each
-- array again, because one that it can count seems cheaper than one that it cannot; so it keeps one plan for a connection. Planning took
-- longer than all the rest of these statements.

-- name: LockSessions :many
-- NO KEY: whoever inserts a row that refers to a session need not wait.
SELECT id, name, type, status, access_key, user_id, resource_group, callback_url, result, attempts, rerun_on_agent_loss, retries, retried, started_at, failed_agents, cluster_size, domain_name
FROM sessions WHERE id = ANY((SELECT @ids::uuid[])::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: KernelsToMove :many
SELECT id, session_id, local_rank, cluster_hostname, agent_id, generation, desired, force_stop, stop_reason, status, status_before_lost,
       deadline, exit_code, absences, container_id, oom_killed, (log IS NOT NULL)::boolean AS has_log
FROM kernels WHERE session_id = ANY(@sessions::uuid[]) ORDER BY session_id, local_rank;

-- name: WriteMoves :one
-- Every row is guarded by the status (and generation) that it leaves; the caller compares how many were found with how
-- many it meant. Events and callbacks come in the order of their arrays. In the arrays '' stands for an absent
-- text, 0 for an absent time and -2147483648 for an absent number.
WITH km AS (
    SELECT unnest((SELECT @k_ids::uuid[])) AS id, unnest(@k_generations::bigint[]) AS generation, unnest(@k_from::text[]) AS from_status,
        unnest(@k_to::text[]) AS to_status, unnest(@k_reasons::text[]) AS reason, unnest(@k_before_lost::text[]) AS before_lost,
        unnest(@k_deadline_ms::bigint[]) AS deadline_ms, unnest(@k_stops::boolean[]) AS stops, unnest(@k_stop_reasons::text[]) AS stop_reason,
        unnest(@k_force::boolean[]) AS force, unnest(@k_final::boolean[]) AS final, unnest(@k_placed::boolean[]) AS placed,
        unnest(@k_runs::boolean[]) AS runs, unnest(@k_started_us::bigint[]) AS started_us, unnest(@k_exit_codes::integer[]) AS exit_code,
        unnest(@k_signals::integer[]) AS signal, unnest(@k_oom::boolean[]) AS oom, unnest(@k_containers::text[]) AS container_id, unnest(@k_endpoints::text[]) AS host_endpoint,
        unnest(@k_has_log::boolean[]) AS has_log, unnest(@k_logs::text[]) AS log, unnest(@k_data::text[]) AS data,
        unnest(@k_agents::text[]) AS agent_id, unnest(@k_allocations::text[]) AS allocation
), k AS (
    UPDATE kernels k SET status = m.to_status, status_changed = now(), status_info = m.reason,
        status_before_lost = nullif(m.before_lost, ''), lost_since = CASE WHEN m.before_lost <> '' THEN now() END,
        deadline = CASE WHEN m.deadline_ms > 0 THEN now() + m.deadline_ms * interval '1 millisecond' END,
        desired = CASE WHEN m.stops THEN 'stop' ELSE k.desired END,
        stop_reason = CASE WHEN m.stops AND k.stop_reason = '' THEN m.stop_reason ELSE k.stop_reason END,
        force_stop = k.force_stop OR m.force,
        ended_at = CASE WHEN m.final THEN now() END,
        scheduled_at = CASE WHEN m.placed THEN now() ELSE k.scheduled_at END,
        started_at = CASE WHEN NOT m.runs THEN k.started_at
            ELSE coalesce(k.started_at, CASE WHEN m.started_us <> 0 THEN timestamptz 'epoch' + m.started_us * interval '1 microsecond' END, now()) END,
        absences = 0,
        exit_code = coalesce(nullif(m.exit_code, -2147483648), k.exit_code),
        signal = coalesce(nullif(m.signal, -2147483648), k.signal),
        oom_killed = k.oom_killed OR m.oom,
        container_id = coalesce(nullif(m.container_id, ''), k.container_id),
        host_endpoint = CASE WHEN m.host_endpoint = '' THEN k.host_endpoint ELSE m.host_endpoint END,
        log = CASE WHEN m.has_log THEN m.log ELSE k.log END,
        status_data = CASE WHEN m.data = '' THEN k.status_data ELSE k.status_data || m.data::jsonb END,
        agent_id = coalesce(nullif(m.agent_id, ''), k.agent_id),
        allocation = CASE WHEN m.allocation = '' THEN k.allocation ELSE m.allocation::jsonb END
    FROM km m WHERE k.id = m.id AND k.status = m.from_status AND k.generation = m.generation
    RETURNING k.id
), sm AS (
    SELECT unnest((SELECT @s_ids::uuid[])) AS id, unnest(@s_from::text[]) AS from_status, unnest(@s_to::text[]) AS to_status, unnest(@s_moved::boolean[]) AS moved,
        unnest(@s_reasons::text[]) AS reason, unnest(@s_final::boolean[]) AS final, unnest(@s_placed::boolean[]) AS placed,
        unnest(@s_waits::boolean[]) AS waits, unnest(@s_runs::boolean[]) AS runs, unnest(@s_results::text[]) AS result, unnest(@s_data::text[]) AS data
), s AS (
    UPDATE sessions s SET status = m.to_status,
        status_changed = CASE WHEN m.moved THEN now() ELSE s.status_changed END,
        status_info = CASE WHEN m.moved THEN m.reason ELSE s.status_info END,
        ended_at = CASE WHEN m.final THEN now() END,
        scheduled_at = CASE WHEN m.placed THEN now() WHEN m.waits THEN NULL ELSE s.scheduled_at END,
        started_at = CASE WHEN m.waits THEN NULL WHEN m.runs THEN coalesce(s.started_at, now()) ELSE s.started_at END,
        result = coalesce(nullif(m.result, ''), s.result),
        status_data = CASE WHEN m.placed OR m.waits THEN coalesce(nullif(m.data, ''), '{}')::jsonb WHEN m.data = '' THEN s.status_data ELSE s.status_data || m.data::jsonb END
    FROM sm m WHERE s.id = m.id AND s.status = m.from_status AND (m.result = '' OR s.result = 'UNDEFINED')
    RETURNING s.id, s.callback_url
), cm AS (
    SELECT unnest((SELECT @c_sessions::uuid[])) AS id, unnest(@c_events::text[]) AS event
), c AS (
    INSERT INTO callbacks (session_id, url, body)
    SELECT s.id, s.callback_url, jsonb_build_object('type', 'session_lifecycle', 'event', m.event, 'session_id', s.id,
        'when', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'))
    FROM cm m JOIN s ON s.id = m.id WHERE s.callback_url IS NOT NULL
), e AS (
    INSERT INTO session_events (session_id, kernel_id, event, from_status, to_status, reason, detail, exit_code, domain_name)
    SELECT v.session_id, v.kernel_id, v.event, v.from_status, v.to_status, v.reason, v.detail, v.exit_code,
        CASE WHEN v.event = '' THEN '' ELSE coalesce((SELECT o.domain_name FROM sessions o WHERE o.id = v.session_id), '') END
    FROM (SELECT unnest((SELECT @e_sessions::uuid[])) AS session_id, nullif(unnest(@e_kernels::text[]), '')::uuid AS kernel_id, unnest(@e_events::text[]) AS event,
        unnest(@e_from::text[]) AS from_status, unnest(@e_to::text[]) AS to_status, unnest(@e_reasons::text[]) AS reason, unnest(@e_details::text[]) AS detail,
        nullif(unnest(@e_exit_codes::integer[]), -2147483648) AS exit_code) v
)
SELECT (SELECT count(*) FROM k)::bigint AS kernels, (SELECT count(*) FROM s)::bigint AS sessions;
