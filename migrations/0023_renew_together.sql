-- Leases that are renewed together end together: their renewal changes one row, however many they are, and so a snapshot
-- that is held keeps no version of each of them.

-- The end that leases share. `run_ids` are the runs whose leases had it when that was last written down; a lease says
-- itself whether it still has. Nothing that a renewal changes is in an index.
CREATE TABLE evenhand.terms (
    term bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    expires_at timestamptz NOT NULL,
    run_ids uuid[] NOT NULL
) WITH (fillfactor = 50);

-- Where a lease has a term, `expires_at` of the lease is out of date.
ALTER TABLE evenhand.leases ADD COLUMN term bigint;

-- Renews leases, and answers for each, in order, when it now ends and whether its run was cancelled; NULL when the lease
-- was lost.
--
-- Whoever renews or recovers leases of a term locks it first and looks at them in another statement, so that they are
-- either renewed or recovered. Locks have the order: term, leases by run. Who holds a lease and wants a term, as recovery
-- does, must not wait for it.
CREATE OR REPLACE FUNCTION evenhand.renew(p_run_ids uuid[], p_fences bigint[], p_lease_ms bigint)
RETURNS TABLE (expires_at_us bigint, stop_requested boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_expires_at timestamptz := evenhand.clock() + p_lease_ms * interval '1 millisecond';
    v_term evenhand.terms;
    v_found uuid[];
    v_stops boolean[];
    v_held uuid[];
    v_all_have_it boolean;
BEGIN
    PERFORM evenhand.require_read_committed();
    -- One probe a lease: a join would be planned as all leases times all that are asked for.
    SELECT t.* INTO v_term
    FROM evenhand.terms AS t
    WHERE t.term = (
        SELECT l.term FROM unnest(p_run_ids, p_fences) AS w (run_id, fence)
        CROSS JOIN LATERAL (
            SELECT l.term FROM evenhand.leases AS l WHERE l.run_id = w.run_id AND l.fence = w.fence OFFSET 0
        ) AS l
        WHERE l.term IS NOT NULL LIMIT 1)
    FOR NO KEY UPDATE;
    SELECT array_agg(l.run_id ORDER BY w.ordinal), array_agg(l.stop_requested ORDER BY w.ordinal),
           bool_and(l.run_id IS NULL OR l.term IS NOT DISTINCT FROM v_term.term)
    INTO v_found, v_stops, v_all_have_it
    FROM unnest(p_run_ids, p_fences) WITH ORDINALITY AS w (run_id, fence, ordinal)
    LEFT JOIN LATERAL (
        SELECT l.run_id, l.stop_requested, l.term FROM evenhand.leases AS l
        WHERE l.run_id = w.run_id AND l.fence = w.fence OFFSET 0
    ) AS l ON true;
    v_held := array_remove(v_found, NULL);
    IF v_all_have_it AND v_term.run_ids = v_held THEN
        UPDATE evenhand.terms AS t SET expires_at = v_expires_at WHERE t.term = v_term.term;
    ELSIF v_held <> '{}' THEN
        v_found := evenhand.renew_others(v_term, v_found, v_held, p_fences, v_expires_at);
    END IF;
    RETURN QUERY
    SELECT CASE WHEN f.run_id IS NOT NULL THEN evenhand.micros(v_expires_at) END,
           CASE WHEN f.run_id IS NOT NULL THEN f.stop END
    FROM unnest(v_found, v_stops) WITH ORDINALITY AS f (run_id, stop, ordinal) ORDER BY f.ordinal;
END
$$;

-- Renews leases of which not all have the term that is locked, or not alone. Those that have not join it, and those that
-- are not renewed leave it with the end that they had. Answers which leases were there in the end.
CREATE FUNCTION evenhand.renew_others(
    p_term evenhand.terms, p_found uuid[], p_held uuid[], p_fences bigint[], p_expires_at timestamptz
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_found uuid[] := p_found;
    v_term bigint := p_term.term;
    v_change record;
BEGIN
    IF v_term IS NOT NULL THEN
        UPDATE evenhand.terms AS t SET expires_at = p_expires_at, run_ids = p_held WHERE t.term = v_term;
    ELSIF cardinality(p_held) > 1 THEN
        INSERT INTO evenhand.terms AS t (expires_at, run_ids) VALUES (p_expires_at, p_held) RETURNING t.term INTO v_term;
    END IF;
    FOR v_change IN
        SELECT f.run_id, f.fence, f.ordinal FROM unnest(p_found, p_fences) WITH ORDINALITY AS f (run_id, fence, ordinal)
        WHERE f.run_id IS NOT NULL
        UNION ALL
        SELECT m.run_id, NULL, NULL
        FROM (SELECT unnest(p_term.run_ids) EXCEPT SELECT unnest(p_held)) AS m (run_id)
        ORDER BY run_id
    LOOP
        IF v_change.ordinal IS NULL THEN
            UPDATE evenhand.leases AS l SET expires_at = p_term.expires_at, term = NULL
            WHERE l.run_id = v_change.run_id AND l.term = v_term;
            CONTINUE;
        END IF;
        PERFORM FROM evenhand.leases AS l
        WHERE l.run_id = v_change.run_id AND l.fence = v_change.fence AND l.term = v_term;
        CONTINUE WHEN FOUND;
        UPDATE evenhand.leases AS l SET expires_at = p_expires_at, term = v_term
        WHERE l.run_id = v_change.run_id AND l.fence = v_change.fence;
        IF NOT FOUND THEN
            v_found[v_change.ordinal] := NULL;
        END IF;
    END LOOP;
    RETURN v_found;
END
$$;

-- Takes runs back whose leases have expired, those that expired first before others; cancelled ones end. Runs that are
-- being completed or renewed at this moment are stepped over.
CREATE OR REPLACE FUNCTION evenhand.recover(p_limit integer, OUT requeued integer, OUT dead integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_run_id uuid;
    v_run evenhand.runs;
    v_lease record;
    v_state evenhand.run_state;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    requeued := 0;
    dead := 0;
    FOR v_run_id IN
        SELECT e.run_id
        FROM (
            SELECT l.run_id, coalesce(t.expires_at, l.expires_at) AS expires_at
            FROM evenhand.leases AS l LEFT JOIN evenhand.terms AS t ON t.term = l.term
        ) AS e
        WHERE e.expires_at <= v_now ORDER BY e.expires_at, e.run_id LIMIT p_limit
    LOOP
        SELECT r.* INTO v_run FROM evenhand.runs AS r
        WHERE r.id = v_run_id AND r.state = 'running' FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT l.stop_requested, l.expires_at, l.term INTO v_lease FROM evenhand.leases AS l
        WHERE l.run_id = v_run_id AND l.fence = v_run.fence FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        IF EXISTS (SELECT FROM evenhand.terms AS t WHERE t.term = v_lease.term) THEN
            SELECT t.expires_at INTO v_lease.expires_at FROM evenhand.terms AS t
            WHERE t.term = v_lease.term FOR NO KEY UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
        END IF;
        CONTINUE WHEN v_lease.expires_at > v_now;
        v_state := CASE WHEN v_lease.stop_requested THEN 'cancelled' WHEN v_run.attempt >= v_run.attempts_max THEN 'dead'
                        ELSE 'queued' END;
        UPDATE evenhand.runs AS r
        SET state = v_state, last_error = 'the lease expired',
            finished_at = CASE WHEN v_state <> 'queued' THEN v_now END
        WHERE r.id = v_run_id;
        PERFORM evenhand.end_attempt(
            v_run_id, CASE WHEN v_lease.stop_requested THEN 'cancelled' ELSE 'expired' END, v_now, NULL);
        requeued := requeued + (v_state = 'queued')::integer;
        dead := dead + (v_state = 'dead')::integer;
    END LOOP;
    PERFORM evenhand.forget_terms(v_now);
END
$$;

-- Deletes terms that are over and that no lease has any more.
CREATE FUNCTION evenhand.forget_terms(p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM evenhand.terms AS t
    WHERE t.term = ANY (ARRAY(
        SELECT o.term FROM evenhand.terms AS o
        WHERE o.expires_at <= p_now AND NOT EXISTS (
            SELECT FROM unnest(o.run_ids) AS m (run_id)
            CROSS JOIN LATERAL (SELECT l.term FROM evenhand.leases AS l WHERE l.run_id = m.run_id OFFSET 0) AS l
            WHERE l.term = o.term)
        LIMIT 100 FOR UPDATE SKIP LOCKED));
END
$$;

GRANT SELECT ON evenhand.terms TO evenhand_observer;
