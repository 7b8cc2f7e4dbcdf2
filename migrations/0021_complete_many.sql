-- Ending attempts at less cost: many completions in one call, and single ends in fewer statements.

-- Half of a page is left for the ends of the attempts that begin on it: they touch no index then. Ends that find no room
-- take as much from other pages.
ALTER TABLE evenhand.attempts SET (fillfactor = 50);

-- Gives the lease and its permits back, and writes down how the attempt ended.
CREATE OR REPLACE FUNCTION evenhand.end_attempt(p_run_id uuid, p_result text, p_now timestamptz, p_retry_at timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenant_permit integer;
    v_team_permit integer;
BEGIN
    WITH gone AS (
        DELETE FROM evenhand.leases AS l WHERE l.run_id = p_run_id
        RETURNING l.shard_key, l.sequence, l.tenant_permit, l.team_permit
    ), ended AS (
        UPDATE evenhand.attempts AS a SET result = p_result, ended_at = p_now, retry_at = p_retry_at
        FROM gone AS g WHERE a.shard_key = g.shard_key AND a.sequence = g.sequence
    )
    SELECT g.tenant_permit, g.team_permit INTO STRICT v_tenant_permit, v_team_permit FROM gone AS g;
    IF v_tenant_permit IS NOT NULL OR v_team_permit IS NOT NULL THEN
        PERFORM evenhand.free_permits(p_run_id, v_tenant_permit, v_team_permit);
    END IF;
END
$$;

-- Ends a run as done, in the caller's transaction. False when the lease was lost, and then nothing has changed.
CREATE OR REPLACE FUNCTION evenhand.complete(p_run_id uuid, p_fence bigint, p_shard text, p_sequence bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
BEGIN
    PERFORM evenhand.require_durable_commit();
    UPDATE evenhand.runs AS r SET state = 'done', finished_at = v_now
    WHERE r.id = p_run_id AND r.state = 'running' AND r.fence = p_fence;
    IF NOT FOUND THEN
        RETURN EXISTS (SELECT FROM evenhand.ended_attempt(p_run_id, p_fence, p_shard, p_sequence, 'completed'));
    END IF;
    PERFORM evenhand.end_attempt(p_run_id, 'completed', v_now, NULL);
    RETURN true;
END
$$;

-- Frees the permits of runs whose leases are gone, in the order in which a limit that is lifted deletes them. A permit
-- that is no longer the run's is left alone.
CREATE FUNCTION evenhand.free_permits_of(p_run_ids uuid[], p_tenant_permits integer[], p_team_permits integer[])
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE evenhand.permits AS p SET run_id = NULL
    FROM (
        SELECT r.pool_key, k.kind, CASE k.kind WHEN 'tenant' THEN r.tenant ELSE r.team END AS name,
               CASE k.kind WHEN 'tenant' THEN w.tenant_permit ELSE w.team_permit END AS ordinal, w.run_id
        FROM unnest(p_run_ids, p_tenant_permits, p_team_permits) AS w (run_id, tenant_permit, team_permit)
        JOIN evenhand.runs AS r ON r.id = w.run_id
        CROSS JOIN unnest(enum_range(NULL::evenhand.limit_kind)) AS k (kind)
        ORDER BY 1, 2, 3, 4
    ) AS h
    WHERE p.pool_key = h.pool_key AND p.kind = h.kind AND p.name = h.name AND p.ordinal = h.ordinal
      AND p.run_id = h.run_id;
END
$$;

-- Ends runs as done, each as `complete` does it, and answers in order: true; false when the lease was lost; NULL when
-- somebody else holds the run at this moment, since nobody waits for another tenant's run. Where the answer is not true,
-- nothing has changed.
CREATE FUNCTION evenhand.complete_many(p_run_ids uuid[], p_fences bigint[], p_shards text[], p_sequences bigint[])
RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    -- Rows are joined to lists only, by their keys and in the order of the lists.
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_done uuid[];
    v_limited record;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    SELECT coalesce(array_agg(h.id), '{}') INTO v_done
    FROM (
        SELECT r.id FROM unnest(p_run_ids, p_fences) AS w (run_id, fence)
        JOIN evenhand.runs AS r ON r.id = w.run_id AND r.state = 'running' AND r.fence = w.fence
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS h;
    UPDATE evenhand.runs AS r SET state = 'done', finished_at = v_now WHERE r.id = ANY (v_done);
    WITH gone AS (
        -- Goes along the key, and so locks leases in the order in which everybody does.
        DELETE FROM evenhand.leases AS l WHERE l.run_id = ANY (v_done)
        RETURNING l.run_id, l.shard_key, l.sequence, l.tenant_permit, l.team_permit
    ), ended AS (
        UPDATE evenhand.attempts AS a SET result = 'completed', ended_at = v_now
        FROM gone AS g WHERE a.shard_key = g.shard_key AND a.sequence = g.sequence
    )
    SELECT array_agg(g.run_id) AS run_ids, array_agg(g.tenant_permit) AS tenant_permits,
           array_agg(g.team_permit) AS team_permits INTO v_limited
    FROM gone AS g WHERE g.tenant_permit IS NOT NULL OR g.team_permit IS NOT NULL;
    IF v_limited.run_ids IS NOT NULL THEN
        -- A statement of its own sees permits that were made while this one waited for a lease.
        PERFORM evenhand.free_permits_of(v_limited.run_ids, v_limited.tenant_permits, v_limited.team_permits);
    END IF;
    IF cardinality(v_done) = cardinality(p_run_ids) THEN
        RETURN array_fill(true, ARRAY[cardinality(p_run_ids)]);
    END IF;
    RETURN ARRAY(
        SELECT CASE WHEN r.fence = w.fence AND r.id = ANY (v_done) THEN true
                    WHEN r.fence = w.fence AND r.state = 'running' THEN NULL
                    ELSE EXISTS (
                        SELECT FROM evenhand.ended_attempt(w.run_id, w.fence, w.shard, w.sequence, 'completed')) END
        FROM unnest(p_run_ids, p_fences, p_shards, p_sequences) WITH ORDINALITY
            AS w (run_id, fence, shard, sequence, ordinal)
        LEFT JOIN evenhand.runs AS r ON r.id = w.run_id
        ORDER BY w.ordinal);
END
$$;

GRANT EXECUTE ON FUNCTION evenhand.complete_many TO evenhand_app;
