-- What operators do with single runs: cancel, queue again, discard; and how the end of an attempt heeds it.

-- A time after now, or the last one that every client can read. Neither a huge delay nor rounding up to a wait tick
-- leaves the range.
CREATE FUNCTION evenhand.later(p_now timestamptz, p_delay_ms bigint) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN least(p_now + least(p_delay_ms, 315576000000000) * interval '1 millisecond',
             timestamptz '9999-12-01 00:00:00+00');

CREATE OR REPLACE FUNCTION evenhand.ready_again(
    p_pool_key integer, p_now timestamptz, p_delay_ms bigint,
    OUT ready_at timestamptz, OUT ready_tick bigint
)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT t.ready_at, t.ready_tick
    FROM evenhand.pools AS p,
         LATERAL evenhand.ready_time(evenhand.later(p_now, p_delay_ms), p_now, p.wait_tick_ms) AS t
    WHERE p.pool_key = p_pool_key;
END;

-- Cancels a run in the caller's transaction. `outcome` is `cancelled`; `requested`, when the run is running and its
-- worker will be told; `ended`, when it had ended before, as `state` says; or `not_found`.
CREATE FUNCTION evenhand.cancel(p_run_id uuid, OUT outcome text, OUT state text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_state evenhand.run_state;
BEGIN
    PERFORM evenhand.require_durable_commit();
    SELECT r.state INTO v_state FROM evenhand.runs AS r WHERE r.id = p_run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'not_found';
    ELSIF v_state = 'queued' THEN
        outcome := 'cancelled';
        UPDATE evenhand.runs AS r SET state = 'cancelled', finished_at = evenhand.clock() WHERE r.id = p_run_id;
    ELSIF v_state = 'running' THEN
        outcome := 'requested';
        UPDATE evenhand.leases AS l SET stop_requested = true WHERE l.run_id = p_run_id AND NOT l.stop_requested;
    ELSE
        outcome := 'ended';
        state := v_state;
    END IF;
END
$$;

-- Queues a dead or cancelled run again, in the caller's transaction. `outcome` is `done`; `refused`, when the run is in
-- the state that `state` says; or `not_found`.
CREATE FUNCTION evenhand.requeue(p_run_id uuid, OUT outcome text, OUT state text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz;
    v_pool_name text;
    v_pool evenhand.pools;
    v_state evenhand.run_state;
BEGIN
    PERFORM evenhand.require_durable_commit();
    SELECT p.pool INTO v_pool_name
    FROM evenhand.runs AS r JOIN evenhand.pools AS p ON p.pool_key = r.pool_key WHERE r.id = p_run_id;
    IF FOUND THEN
        -- Before the run is locked, as an enqueue does it. The pool may rank otherwise than when the run was enqueued.
        v_pool := evenhand.pool_to_rank_by(v_pool_name);
        SELECT r.state INTO v_state FROM evenhand.runs AS r WHERE r.id = p_run_id FOR NO KEY UPDATE;
    END IF;
    IF v_state IS NULL THEN
        outcome := 'not_found';
    ELSIF v_state NOT IN ('dead', 'cancelled') THEN
        outcome := 'refused';
        state := v_state;
    ELSE
        outcome := 'done';
        v_now := evenhand.clock();
        UPDATE evenhand.runs AS r
        SET state = 'queued', attempt = 0, finished_at = NULL, last_error = NULL, ready_at = v_now,
            ready_tick = evenhand.tick_of(v_now, v_pool.wait_tick_ms),
            rank = evenhand.rank_of(v_pool, r.value_class, r.base_priority)
        WHERE r.id = p_run_id;
    END IF;
END
$$;

-- Deletes a dead or cancelled run, in the caller's transaction. It answers as `requeue` does.
CREATE FUNCTION evenhand.discard(p_run_id uuid, OUT outcome text, OUT state text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_state evenhand.run_state;
BEGIN
    PERFORM evenhand.require_durable_commit();
    SELECT r.state INTO v_state FROM evenhand.runs AS r WHERE r.id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 'not_found';
    ELSIF v_state NOT IN ('dead', 'cancelled') THEN
        outcome := 'refused';
        state := v_state;
    ELSE
        outcome := 'done';
        DELETE FROM evenhand.runs AS r WHERE r.id = p_run_id;
    END IF;
END
$$;

-- Whether somebody cancelled a running run. Stable as long as the caller holds the run: cancelling locks it first.
CREATE FUNCTION evenhand.is_cancelled(p_run_id uuid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT l.stop_requested FROM evenhand.leases AS l WHERE l.run_id = p_run_id;
END;

-- Ends an attempt as failed. `outcome` is `requeued`, `dead`, `cancelled` or `lost`. Without a delay the run is given up.
CREATE OR REPLACE FUNCTION evenhand.fail(
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
BEGIN
    PERFORM evenhand.require_durable_commit();
    IF v_run.id IS NULL THEN
        SELECT f.outcome, f.ready_at_us INTO outcome, ready_at_us
        FROM evenhand.failed_before(p_run_id, p_fence, p_shard, p_sequence) AS f;
        RETURN;
    END IF;
    outcome := CASE WHEN evenhand.is_cancelled(p_run_id) THEN 'cancelled'
                    WHEN p_delay_ms IS NULL OR v_run.attempt >= v_run.attempts_max THEN 'dead'
                    ELSE 'requeued' END;
    IF outcome = 'requeued' THEN
        v_ready := evenhand.ready_again(v_run.pool_key, v_now, p_delay_ms);
        ready_at_us := evenhand.micros(v_ready.ready_at);
        UPDATE evenhand.runs AS r
        SET state = 'queued', last_error = p_error, ready_at = v_ready.ready_at, ready_tick = v_ready.ready_tick
        WHERE r.id = p_run_id;
        PERFORM evenhand.end_attempt(p_run_id, 'failed', v_now, v_ready.ready_at);
    ELSE
        UPDATE evenhand.runs AS r
        SET state = outcome::evenhand.run_state, finished_at = v_now, last_error = p_error WHERE r.id = p_run_id;
        PERFORM evenhand.end_attempt(p_run_id, CASE outcome WHEN 'dead' THEN 'failed' ELSE outcome END, v_now, NULL);
    END IF;
END
$$;

-- What a failure of this lease was answered before; `lost` if its attempt did not end that way.
CREATE FUNCTION evenhand.failed_before(
    p_run_id uuid, p_fence bigint, p_shard text, p_sequence bigint,
    OUT outcome text, OUT ready_at_us bigint
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT CASE WHEN a.result = 'cancelled' THEN 'cancelled' WHEN a.retry_at IS NULL THEN 'dead' ELSE 'requeued' END,
           evenhand.micros(a.retry_at)
    INTO outcome, ready_at_us
    FROM unnest(ARRAY['failed', 'cancelled']) AS w (result)
    CROSS JOIN LATERAL evenhand.ended_attempt(p_run_id, p_fence, p_shard, p_sequence, w.result) AS a;
    IF NOT FOUND THEN
        outcome := 'lost';
    END IF;
END
$$;

-- Puts a run back uncounted; a cancelled one ends instead. Without a delay it keeps its place. False when the lease was
-- lost.
CREATE OR REPLACE FUNCTION evenhand.release(
    p_run_id uuid, p_fence bigint, p_shard text, p_sequence bigint, p_delay_ms bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_run evenhand.runs := evenhand.lock_running(p_run_id, p_fence);
    v_now timestamptz := evenhand.clock();
BEGIN
    PERFORM evenhand.require_durable_commit();
    IF v_run.id IS NULL THEN
        RETURN EXISTS (SELECT FROM evenhand.ended_attempt(p_run_id, p_fence, p_shard, p_sequence, 'released'))
            OR EXISTS (SELECT FROM evenhand.ended_attempt(p_run_id, p_fence, p_shard, p_sequence, 'cancelled'));
    END IF;
    IF evenhand.is_cancelled(p_run_id) THEN
        UPDATE evenhand.runs AS r SET state = 'cancelled', attempt = r.attempt - 1, finished_at = v_now
        WHERE r.id = p_run_id;
        PERFORM evenhand.end_attempt(p_run_id, 'cancelled', v_now, NULL);
        RETURN true;
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

-- Renews leases in one statement, and answers for each, in order, when it now ends and whether its run was cancelled;
-- NULL when the lease was lost.
DROP FUNCTION evenhand.renew(uuid[], bigint[], bigint);
CREATE FUNCTION evenhand.renew(p_run_ids uuid[], p_fences bigint[], p_lease_ms bigint)
RETURNS TABLE (expires_at_us bigint, stop_requested boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_expires_at timestamptz := evenhand.clock() + p_lease_ms * interval '1 millisecond';
    v_ends bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_run_ids)]);
    v_stops boolean[] := array_fill(NULL::boolean, ARRAY[cardinality(p_run_ids)]);
    v_wanted record;
    v_stop boolean;
BEGIN
    PERFORM evenhand.require_read_committed();
    -- One probe a lease, in the order in which everybody locks several: a join may read all leases for each.
    FOR v_wanted IN
        SELECT w.run_id, w.fence, w.ordinal
        FROM unnest(p_run_ids, p_fences) WITH ORDINALITY AS w (run_id, fence, ordinal) ORDER BY w.run_id
    LOOP
        UPDATE evenhand.leases AS l SET expires_at = v_expires_at
        WHERE l.run_id = v_wanted.run_id AND l.fence = v_wanted.fence RETURNING l.stop_requested INTO v_stop;
        IF FOUND THEN
            v_ends[v_wanted.ordinal] := evenhand.micros(v_expires_at);
            v_stops[v_wanted.ordinal] := v_stop;
        END IF;
    END LOOP;
    RETURN QUERY SELECT a.ends, a.stop FROM unnest(v_ends, v_stops) WITH ORDINALITY AS a (ends, stop, ordinal)
    ORDER BY a.ordinal;
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
    v_cancelled boolean;
    v_state evenhand.run_state;
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
        SELECT l.stop_requested INTO v_cancelled FROM evenhand.leases AS l
        WHERE l.run_id = v_run_id AND l.fence = v_run.fence AND l.expires_at <= v_now FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_state := CASE WHEN v_cancelled THEN 'cancelled' WHEN v_run.attempt >= v_run.attempts_max THEN 'dead'
                        ELSE 'queued' END;
        UPDATE evenhand.runs AS r
        SET state = v_state, last_error = 'the lease expired',
            finished_at = CASE WHEN v_state <> 'queued' THEN v_now END
        WHERE r.id = v_run_id;
        PERFORM evenhand.end_attempt(v_run_id, CASE WHEN v_cancelled THEN 'cancelled' ELSE 'expired' END, v_now, NULL);
        requeued := requeued + (v_state = 'queued')::integer;
        dead := dead + (v_state = 'dead')::integer;
    END LOOP;
END
$$;

DROP FUNCTION evenhand.counts();
CREATE FUNCTION evenhand.counts()
RETURNS TABLE (pool text, tenant text, queued bigint, running bigint, done bigint, dead bigint, cancelled bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.pool, r.tenant,
           count(*) FILTER (WHERE r.state = 'queued'), count(*) FILTER (WHERE r.state = 'running'),
           count(*) FILTER (WHERE r.state = 'done'), count(*) FILTER (WHERE r.state = 'dead'),
           count(*) FILTER (WHERE r.state = 'cancelled')
    FROM evenhand.runs AS r JOIN evenhand.pools AS p ON p.pool_key = r.pool_key
    GROUP BY p.pool, r.tenant ORDER BY p.pool, r.tenant;
END;

GRANT EXECUTE ON FUNCTION evenhand.cancel, evenhand.requeue, evenhand.discard, evenhand.renew, evenhand.counts
TO evenhand_app;
GRANT EXECUTE ON FUNCTION evenhand.counts TO evenhand_observer;
