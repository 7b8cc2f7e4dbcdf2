-- How an attempt ends. Whoever ends one locks the run first and its lease second.

-- The run, locked, if this fence is the one that works on it.
CREATE FUNCTION evenhand.lock_running(p_run_id uuid, p_fence bigint) RETURNS evenhand.runs
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run evenhand.runs;
BEGIN
    SELECT r.* INTO v_run FROM evenhand.runs AS r WHERE r.id = p_run_id FOR NO KEY UPDATE;
    IF v_run.state = 'running' AND v_run.fence = p_fence THEN
        RETURN v_run;
    END IF;
    RETURN NULL;
END
$$;

-- Gives the lease back and writes down how the attempt ended.
CREATE FUNCTION evenhand.end_attempt(p_run_id uuid, p_result text, p_now timestamptz, p_retry_at timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lease evenhand.leases;
BEGIN
    DELETE FROM evenhand.leases AS l WHERE l.run_id = p_run_id RETURNING l.* INTO STRICT v_lease;
    UPDATE evenhand.attempts AS a SET result = p_result, ended_at = p_now, retry_at = p_retry_at
    WHERE a.shard_key = v_lease.shard_key AND a.sequence = v_lease.sequence;
END
$$;

-- The attempt of this lease, if it has ended with this result.
CREATE FUNCTION evenhand.ended_attempt(
    p_run_id uuid, p_fence bigint, p_shard text, p_sequence bigint, p_result text
) RETURNS SETOF evenhand.attempts
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT a.* FROM evenhand.attempts AS a JOIN evenhand.shards AS s ON s.shard_key = a.shard_key
    WHERE s.shard = p_shard AND a.sequence = p_sequence AND a.run_id = p_run_id AND a.fence = p_fence
      AND a.result = p_result;
END;

-- Ends a run as done, in the caller's transaction. False when the lease was lost, and then nothing has changed.
CREATE FUNCTION evenhand.complete(p_run_id uuid, p_fence bigint, p_shard text, p_sequence bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_run evenhand.runs := evenhand.lock_running(p_run_id, p_fence);
    v_now timestamptz := evenhand.clock();
BEGIN
    PERFORM evenhand.require_durable_commit();
    IF v_run.id IS NULL THEN
        RETURN EXISTS (SELECT FROM evenhand.ended_attempt(p_run_id, p_fence, p_shard, p_sequence, 'completed'));
    END IF;
    UPDATE evenhand.runs AS r SET state = 'done', finished_at = v_now WHERE r.id = p_run_id;
    PERFORM evenhand.end_attempt(p_run_id, 'completed', v_now, NULL);
    RETURN true;
END
$$;

-- Ends an attempt as failed. `outcome` is `requeued`, `dead` or `lost`. Without a delay the run is given up.
CREATE FUNCTION evenhand.fail(
    p_run_id uuid, p_fence bigint, p_shard text, p_sequence bigint, p_error text, p_delay_ms bigint,
    OUT outcome text, OUT ready_at_us bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_run evenhand.runs := evenhand.lock_running(p_run_id, p_fence);
    v_now timestamptz := evenhand.clock();
    v_ready record;
    v_ended evenhand.attempts;
BEGIN
    PERFORM evenhand.require_durable_commit();
    IF v_run.id IS NULL THEN
        SELECT e.* INTO v_ended FROM evenhand.ended_attempt(p_run_id, p_fence, p_shard, p_sequence, 'failed') AS e;
        outcome := CASE WHEN NOT FOUND THEN 'lost' WHEN v_ended.retry_at IS NULL THEN 'dead' ELSE 'requeued' END;
        ready_at_us := evenhand.micros(v_ended.retry_at);
    ELSIF p_delay_ms IS NULL OR v_run.attempt >= v_run.attempts_max THEN
        outcome := 'dead';
        UPDATE evenhand.runs AS r SET state = 'dead', finished_at = v_now, last_error = p_error WHERE r.id = p_run_id;
        PERFORM evenhand.end_attempt(p_run_id, 'failed', v_now, NULL);
    ELSE
        outcome := 'requeued';
        v_ready := evenhand.ready_again(v_run.pool_key, v_now, p_delay_ms);
        ready_at_us := evenhand.micros(v_ready.ready_at);
        UPDATE evenhand.runs AS r
        SET state = 'queued', last_error = p_error, ready_at = v_ready.ready_at, ready_tick = v_ready.ready_tick
        WHERE r.id = p_run_id;
        PERFORM evenhand.end_attempt(p_run_id, 'failed', v_now, v_ready.ready_at);
    END IF;
END
$$;

CREATE FUNCTION evenhand.ready_again(
    p_pool_key integer, p_now timestamptz, p_delay_ms bigint,
    OUT ready_at timestamptz, OUT ready_tick bigint
)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT t.ready_at, t.ready_tick
    FROM evenhand.pools AS p,
         LATERAL evenhand.ready_time(p_now + p_delay_ms * interval '1 millisecond', p_now, p.wait_tick_ms) AS t
    WHERE p.pool_key = p_pool_key;
END;

-- Puts a run back uncounted. Without a delay it keeps its place. False when the lease was lost.
CREATE FUNCTION evenhand.release(p_run_id uuid, p_fence bigint, p_shard text, p_sequence bigint, p_delay_ms bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_run evenhand.runs := evenhand.lock_running(p_run_id, p_fence);
    v_now timestamptz := evenhand.clock();
BEGIN
    PERFORM evenhand.require_durable_commit();
    IF v_run.id IS NULL THEN
        RETURN EXISTS (SELECT FROM evenhand.ended_attempt(p_run_id, p_fence, p_shard, p_sequence, 'released'));
    END IF;
    IF p_delay_ms > 0 THEN
        SELECT t.ready_at, t.ready_tick INTO v_run.ready_at, v_run.ready_tick
        FROM evenhand.ready_again(v_run.pool_key, v_now, p_delay_ms) AS t;
    END IF;
    UPDATE evenhand.runs AS r
    SET state = 'queued', attempt = r.attempt - 1, ready_at = v_run.ready_at, ready_tick = v_run.ready_tick
    WHERE r.id = p_run_id;
    PERFORM evenhand.end_attempt(p_run_id, 'released', v_now, NULL);
    RETURN true;
END
$$;

-- Renews leases in one statement, and answers for each, in order, when it now ends; NULL when it was lost.
CREATE FUNCTION evenhand.renew(p_run_ids uuid[], p_fences bigint[], p_lease_ms bigint) RETURNS TABLE (expires_at_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_expires_at timestamptz := evenhand.clock() + p_lease_ms * interval '1 millisecond';
    v_renewed uuid[];
BEGIN
    PERFORM evenhand.require_read_committed();
    WITH held AS (
        SELECT l.run_id FROM evenhand.leases AS l
        JOIN unnest(p_run_ids, p_fences) AS w (run_id, fence) ON w.run_id = l.run_id AND w.fence = l.fence
        ORDER BY l.run_id FOR UPDATE OF l
    ), renewed AS (
        UPDATE evenhand.leases AS l SET expires_at = v_expires_at
        WHERE l.run_id IN (SELECT h.run_id FROM held AS h) RETURNING l.run_id
    )
    SELECT coalesce(array_agg(r.run_id), '{}') INTO v_renewed FROM renewed AS r;
    RETURN QUERY
    SELECT CASE WHEN w.run_id = ANY (v_renewed) AND l.fence = w.fence THEN evenhand.micros(l.expires_at) END
    FROM unnest(p_run_ids, p_fences) WITH ORDINALITY AS w (run_id, fence, ordinal)
    LEFT JOIN evenhand.leases AS l ON l.run_id = w.run_id
    ORDER BY w.ordinal;
END
$$;

-- Takes runs back whose leases have expired, those that expired first before others. Runs that are being completed or
-- renewed at this moment are stepped over.
CREATE FUNCTION evenhand.recover(p_limit integer, OUT requeued integer, OUT dead integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_error CONSTANT text := 'the lease expired';
    v_run_id uuid;
    v_run evenhand.runs;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    requeued := 0;
    dead := 0;
    FOR v_run_id IN
        SELECT l.run_id FROM evenhand.leases AS l WHERE l.expires_at <= v_now
        ORDER BY l.expires_at, l.run_id LIMIT p_limit
    LOOP
        SELECT r.* INTO v_run FROM evenhand.runs AS r
        WHERE r.id = v_run_id AND r.state = 'running' FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        PERFORM FROM evenhand.leases AS l
        WHERE l.run_id = v_run_id AND l.fence = v_run.fence AND l.expires_at <= v_now FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        IF v_run.attempt >= v_run.attempts_max THEN
            UPDATE evenhand.runs AS r SET state = 'dead', finished_at = v_now, last_error = v_error WHERE r.id = v_run_id;
            dead := dead + 1;
        ELSE
            UPDATE evenhand.runs AS r SET state = 'queued', last_error = v_error WHERE r.id = v_run_id;
            requeued := requeued + 1;
        END IF;
        PERFORM evenhand.end_attempt(v_run_id, 'expired', v_now, NULL);
    END LOOP;
END
$$;
