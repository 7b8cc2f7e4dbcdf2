-- From a sequence to a run: which run is the best, who gets it, and how the sequence ended.

-- The time-limited rights. Narrow, and without an index on what renewals change.
CREATE TABLE evenhand.leases (
    run_id uuid PRIMARY KEY,
    expires_at timestamptz NOT NULL,
    fence bigint NOT NULL,
    sequence bigint NOT NULL,
    shard_key integer NOT NULL
) WITH (fillfactor = 50);

-- One row a claim that got a run; the key is the promise that a sequence never runs twice.
CREATE TABLE evenhand.attempts (
    sequence bigint NOT NULL,
    fence bigint NOT NULL,
    run_id uuid NOT NULL,
    ready_at timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL,
    ended_at timestamptz,
    -- When the run was to be ready again after this attempt failed; NULL if the failure was its last.
    retry_at timestamptz,
    shard_key integer NOT NULL,
    result text CHECK (result IN ('completed', 'failed', 'released', 'expired')),
    tenant text COLLATE "C" NOT NULL,
    worker text COLLATE "C" NOT NULL CHECK (octet_length(worker) BETWEEN 1 AND 128),
    PRIMARY KEY (shard_key, sequence),
    CHECK ((result IS NULL) = (ended_at IS NULL))
) WITH (fillfactor = 85);

-- How sequences ended, one row for consecutive ones: the offsets that ran, were contended, or failed. The others were
-- idle. A reserved sequence that no row covers is not settled yet, or lost.
CREATE TABLE evenhand.outcomes (
    first_sequence bigint NOT NULL,
    recorded_at timestamptz NOT NULL,
    shard_key integer NOT NULL,
    count integer NOT NULL CHECK (count BETWEEN 1 AND 1048576),
    ran integer[],
    contended integer[],
    failed integer[],
    PRIMARY KEY (shard_key, first_sequence)
);
CREATE TRIGGER outcomes_are_evidence BEFORE UPDATE OR TRUNCATE ON evenhand.outcomes
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
ALTER TABLE evenhand.outcomes ENABLE ALWAYS TRIGGER outcomes_are_evidence;

-- The first run down the ranks that has been ready since `p_threshold` or longer. Among such runs the higher rank has
-- the higher score, since all have the same bonus for waiting. At most one probe a rank.
CREATE FUNCTION evenhand.best_by_rank(p_pool_key integer, p_tenant text, p_threshold bigint, p_skip uuid[])
RETURNS TABLE (id uuid, rank integer, ready_tick bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_rank_below integer := 2147483647;
BEGIN
    LOOP
        SELECT r.id, r.rank, r.ready_tick INTO id, rank, ready_tick
        FROM evenhand.runs AS r
        WHERE r.pool_key = p_pool_key AND r.tenant = p_tenant AND r.state = 'queued' AND r.rank < v_rank_below
          AND r.id <> ALL (p_skip)
        ORDER BY r.pool_key, r.tenant, r.rank DESC, r.ready_tick, r.id LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        IF ready_tick <= p_threshold THEN
            RETURN NEXT;
            RETURN;
        END IF;
        v_rank_below := rank;
    END LOOP;
END
$$;

-- The run with the highest score, exactly as the pure order has it, in O(log n): forced runs all have the same bonus,
-- and so have all runs whose aging is used up; the others lie in at most `max_aging_ticks` ticks, whose best is one
-- probe each. It needs max_aging_ticks <= starvation_ticks, which the pool guarantees.
--
-- Sequential scans and sorts are off: with an empty or a stale statistic the planner would take them, and each probe
-- would read the whole backlog.
CREATE FUNCTION evenhand.best_run(p_pool evenhand.pools, p_tenant text, p_now_tick bigint, p_skip uuid[])
RETURNS TABLE (id uuid, rank integer, ready_tick bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_tick bigint;
    v_aged_before bigint := p_now_tick - p_pool.max_aging_ticks;
    v_forced_before bigint := p_now_tick - p_pool.starvation_ticks;
    v_score bigint;
    v_best_score bigint;
    v_next record;
BEGIN
    SELECT r.ready_tick INTO v_tick FROM evenhand.runs AS r
    WHERE r.pool_key = p_pool.pool_key AND r.tenant = p_tenant AND r.state = 'queued' AND r.id <> ALL (p_skip)
    ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1;
    IF NOT FOUND OR v_tick > p_now_tick THEN
        RETURN;
    END IF;
    IF v_tick <= v_aged_before THEN
        SELECT b.id, b.rank, b.ready_tick INTO id, rank, ready_tick
        FROM evenhand.best_by_rank(
            p_pool.pool_key, p_tenant, CASE WHEN v_tick <= v_forced_before THEN v_forced_before ELSE v_aged_before END,
            p_skip) AS b;
        IF v_tick <= v_forced_before THEN
            RETURN NEXT;
            RETURN;
        END IF;
        v_best_score := rank + p_pool.max_aging_ticks * p_pool.aging_per_tick;
        v_tick := v_aged_before + 1;
    END IF;
    LOOP
        SELECT r.id, r.rank, r.ready_tick INTO v_next FROM evenhand.runs AS r
        WHERE r.pool_key = p_pool.pool_key AND r.tenant = p_tenant AND r.state = 'queued'
          AND r.ready_tick >= v_tick AND r.ready_tick <= p_now_tick AND r.id <> ALL (p_skip)
        ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_score := v_next.rank + (p_now_tick - v_next.ready_tick) * p_pool.aging_per_tick;
        -- Ticks come in order, so an equal score found later is the younger one and loses the tie.
        IF v_best_score IS NULL OR v_score > v_best_score THEN
            v_best_score := v_score;
            id := v_next.id;
            rank := v_next.rank;
            ready_tick := v_next.ready_tick;
        END IF;
        v_tick := v_next.ready_tick + 1;
    END LOOP;
    RETURN NEXT;
END
$$;

-- Locks the best ready run of a tenant. A run that somebody else is claiming is passed over for the next best; after
-- 64 of them the sequence is contended. `run_id` is NULL when there is none to have.
CREATE FUNCTION evenhand.lock_best_run(
    p_pool evenhand.pools, p_tenant text, p_now_tick bigint,
    OUT run_id uuid, OUT contended boolean
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_heads_max CONSTANT integer := 64;
    v_skip uuid[] := '{}';
    v_best record;
BEGIN
    LOOP
        SELECT b.id, b.rank, b.ready_tick INTO v_best
        FROM evenhand.best_run(p_pool, p_tenant, p_now_tick, v_skip) AS b;
        contended := cardinality(v_skip) > 0;
        EXIT WHEN NOT FOUND OR cardinality(v_skip) >= v_heads_max;
        SELECT r.id INTO run_id FROM evenhand.runs AS r
        WHERE r.id = v_best.id AND r.state = 'queued' AND r.rank = v_best.rank AND r.ready_tick = v_best.ready_tick
        FOR NO KEY UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        v_skip := v_skip || v_best.id;
    END LOOP;
END
$$;

-- The reservation that covers a sequence, locked: whoever holds it decides how the sequence ends, and pruning steps
-- over it.
CREATE FUNCTION evenhand.lock_reserved(p_shard_key integer, p_shard text, p_sequence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last bigint;
BEGIN
    SELECT r.first_sequence + (r.count - 1) INTO v_last FROM evenhand.reservations AS r
    WHERE r.shard_key = p_shard_key AND r.first_sequence <= p_sequence
    ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1
    FOR NO KEY UPDATE;
    IF v_last IS NULL OR v_last < p_sequence THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = format('sequence %s of shard %s is not reserved, or was pruned', p_sequence, p_shard);
    END IF;
END
$$;

-- How a sequence ended, or NULL if that is not on record.
CREATE FUNCTION evenhand.outcome_of(p_shard_key integer, p_sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_outcome evenhand.outcomes;
    v_offset integer;
BEGIN
    SELECT o.* INTO v_outcome FROM evenhand.outcomes AS o
    WHERE o.shard_key = p_shard_key AND o.first_sequence <= p_sequence
    ORDER BY o.shard_key, o.first_sequence DESC LIMIT 1;
    IF NOT FOUND OR v_outcome.first_sequence + (v_outcome.count - 1) < p_sequence THEN
        RETURN NULL;
    END IF;
    v_offset := p_sequence - v_outcome.first_sequence;
    RETURN CASE
        WHEN v_offset = ANY (v_outcome.ran) THEN 'ran'
        WHEN v_offset = ANY (v_outcome.contended) THEN 'contended'
        WHEN v_offset = ANY (v_outcome.failed) THEN 'failed'
        ELSE 'idle'
    END;
END
$$;

CREATE FUNCTION evenhand.record_outcome(p_shard_key integer, p_sequence bigint, p_outcome text, p_now timestamptz)
RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO evenhand.outcomes (shard_key, first_sequence, count, recorded_at, ran, contended, failed)
    VALUES (p_shard_key, p_sequence, 1, p_now,
            CASE p_outcome WHEN 'ran' THEN '{0}'::integer[] END,
            CASE p_outcome WHEN 'contended' THEN '{0}'::integer[] END,
            CASE p_outcome WHEN 'failed' THEN '{0}'::integer[] END);
END;

-- What the claim of this sequence answered before, if its run is still under that lease.
CREATE FUNCTION evenhand.claimed_before(
    p_shard_key integer, p_sequence bigint,
    OUT expires_at_us bigint, OUT run evenhand.run_row
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run evenhand.runs;
BEGIN
    SELECT evenhand.micros(l.expires_at) INTO expires_at_us
    FROM evenhand.attempts AS a JOIN evenhand.leases AS l ON l.run_id = a.run_id AND l.fence = a.fence
    WHERE a.shard_key = p_shard_key AND a.sequence = p_sequence;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'EV009',
            MESSAGE = format('the run of sequence %s has ended or moved on', p_sequence);
    END IF;
    SELECT r.* INTO STRICT v_run FROM evenhand.runs AS r
    WHERE r.id = (SELECT a.run_id FROM evenhand.attempts AS a WHERE a.shard_key = p_shard_key AND a.sequence = p_sequence);
    run := evenhand.run_row_of(v_run);
END
$$;

-- Claims the best ready run of the tenant that the cycle names for a reserved sequence, and records how the sequence
-- ended: `ran`, `idle` or `contended`. Asked again it answers the same.
CREATE FUNCTION evenhand.claim(
    p_shard text, p_sequence bigint, p_tenant text, p_worker text, p_lease_ms bigint,
    OUT outcome text, OUT expires_at_us bigint, OUT run evenhand.run_row
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard record;
    v_pool evenhand.pools;
    v_now timestamptz;
    v_before record;
    v_best record;
    v_run evenhand.runs;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    v_shard := evenhand.check_slot(p_shard, p_sequence, p_tenant);
    PERFORM evenhand.lock_reserved(v_shard.shard_key, p_shard, p_sequence);
    outcome := evenhand.outcome_of(v_shard.shard_key, p_sequence);
    IF outcome IS NOT NULL THEN
        IF outcome = 'failed' THEN
            RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('sequence %s has failed', p_sequence);
        END IF;
        IF outcome = 'ran' THEN
            v_before := evenhand.claimed_before(v_shard.shard_key, p_sequence);
            expires_at_us := v_before.expires_at_us;
            run := v_before.run;
        END IF;
        RETURN;
    END IF;
    SELECT p.* INTO STRICT v_pool FROM evenhand.pools AS p WHERE p.pool_key = v_shard.pool_key;
    v_now := evenhand.clock();
    v_best := evenhand.lock_best_run(v_pool, p_tenant, evenhand.tick_of(v_now, v_pool.wait_tick_ms));
    IF v_best.run_id IS NULL THEN
        outcome := CASE WHEN v_best.contended THEN 'contended' ELSE 'idle' END;
    ELSE
        outcome := 'ran';
        -- Read again under the lock, so that the attempts of a run were claimed in the order of their fences.
        v_now := evenhand.clock();
        UPDATE evenhand.runs AS r SET state = 'running', attempt = r.attempt + 1, fence = r.fence + 1
        WHERE r.id = v_best.run_id RETURNING r.* INTO v_run;
        expires_at_us := evenhand.micros(v_now + p_lease_ms * interval '1 millisecond');
        INSERT INTO evenhand.leases (run_id, fence, shard_key, sequence, expires_at)
        VALUES (v_run.id, v_run.fence, v_shard.shard_key, p_sequence, v_now + p_lease_ms * interval '1 millisecond');
        INSERT INTO evenhand.attempts (shard_key, sequence, run_id, fence, tenant, worker, ready_at, claimed_at)
        VALUES (v_shard.shard_key, p_sequence, v_run.id, v_run.fence, v_run.tenant, p_worker, v_run.ready_at, v_now);
        run := evenhand.run_row_of(v_run);
    END IF;
    PERFORM evenhand.record_outcome(v_shard.shard_key, p_sequence, outcome, v_now);
END
$$;

-- The shard, after a check that its cycle names this tenant for the sequence.
CREATE FUNCTION evenhand.check_slot(
    p_shard text, p_sequence bigint, p_tenant text,
    OUT shard_key integer, OUT pool_key integer
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenant text;
BEGIN
    SELECT s.shard_key, s.pool_key, t.tenant INTO shard_key, pool_key, v_tenant
    FROM evenhand.shards AS s
    JOIN evenhand.shard_slots AS t ON t.shard_key = s.shard_key AND t.slot = p_sequence % s.cycle_length
    WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
    IF v_tenant <> p_tenant THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = format('the cycle of shard %s names tenant %s for sequence %s, not %s', p_shard, v_tenant, p_sequence, p_tenant);
    END IF;
END
$$;

-- Records that looking at a sequence's tenant failed. A sequence that has an outcome keeps it.
CREATE FUNCTION evenhand.record_failed(p_shard text, p_sequence bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard_key integer;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    v_shard_key := evenhand.shard_key_of(p_shard);
    PERFORM evenhand.lock_reserved(v_shard_key, p_shard, p_sequence);
    IF evenhand.outcome_of(v_shard_key, p_sequence) IS NULL THEN
        PERFORM evenhand.record_outcome(v_shard_key, p_sequence, 'failed', evenhand.clock());
    END IF;
END
$$;

-- The tenants of the shard's policy that have a ready run. Policy and queue are walked side by side, each leaping to
-- where the other stands, so that neither idle tenants nor tenants outside the policy are read one by one.
CREATE FUNCTION evenhand.ready_tenants(p_shard text, OUT tenants text[], OUT store_time_us bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shard record;
    v_now timestamptz := evenhand.clock();
    v_now_tick bigint;
    v_from text := '';
    v_tenant text;
    v_ready_tick bigint;
BEGIN
    SELECT s.shard_key, s.pool_key, p.wait_tick_ms INTO v_shard
    FROM evenhand.shards AS s JOIN evenhand.pools AS p ON p.pool_key = s.pool_key WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
    v_now_tick := evenhand.tick_of(v_now, v_shard.wait_tick_ms);
    tenants := '{}';
    LOOP
        SELECT t.tenant INTO v_tenant FROM evenhand.shard_tenants AS t
        WHERE t.shard_key = v_shard.shard_key AND t.tenant >= v_from
        ORDER BY t.shard_key, t.tenant LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT r.tenant, r.ready_tick INTO v_from, v_ready_tick FROM evenhand.runs AS r
        WHERE r.pool_key = v_shard.pool_key AND r.tenant >= v_tenant AND r.state = 'queued'
        ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF v_from = v_tenant THEN
            IF v_ready_tick <= v_now_tick THEN
                tenants := tenants || v_tenant;
            END IF;
            -- The smallest text behind it.
            v_from := v_tenant || chr(1);
        END IF;
    END LOOP;
    store_time_us := evenhand.micros(v_now);
END
$$;

-- How the shard's sequences from one on ended, and which runs they took.
CREATE FUNCTION evenhand.sequences(p_shard text, p_from bigint, p_limit integer)
RETURNS TABLE (
    sequence bigint, outcome text, recorded_at_us bigint, run_id uuid, tenant text, fence bigint, worker text,
    ready_at_us bigint, claimed_at_us bigint, result text, ended_at_us bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard_key integer := evenhand.shard_key_of(p_shard);
    v_start bigint;
BEGIN
    SELECT o.first_sequence INTO v_start FROM evenhand.outcomes AS o
    WHERE o.shard_key = v_shard_key AND o.first_sequence <= p_from
    ORDER BY o.shard_key, o.first_sequence DESC LIMIT 1;
    RETURN QUERY
    SELECT s.sequence,
           CASE WHEN s.at = ANY (s.ran) THEN 'ran' WHEN s.at = ANY (s.contended) THEN 'contended'
                WHEN s.at = ANY (s.failed) THEN 'failed' ELSE 'idle' END,
           evenhand.micros(s.recorded_at), a.run_id, a.tenant, a.fence, a.worker, evenhand.micros(a.ready_at),
           evenhand.micros(a.claimed_at), a.result, evenhand.micros(a.ended_at)
    FROM (
        SELECT o.first_sequence + at.at AS sequence, at.at, o.ran, o.contended, o.failed, o.recorded_at
        FROM (
            SELECT o.* FROM evenhand.outcomes AS o
            WHERE o.shard_key = v_shard_key AND o.first_sequence >= coalesce(v_start, p_from)
            ORDER BY o.shard_key, o.first_sequence LIMIT p_limit + 1
        ) AS o CROSS JOIN LATERAL generate_series(0, o.count - 1) AS at (at)
        WHERE o.first_sequence + at.at >= p_from
        ORDER BY o.first_sequence, at.at LIMIT p_limit
    ) AS s
    LEFT JOIN LATERAL (
        -- One probe a sequence, however many attempts the shard has.
        SELECT t.* FROM evenhand.attempts AS t WHERE t.shard_key = v_shard_key AND t.sequence = s.sequence OFFSET 0
    ) AS a ON true
    ORDER BY s.sequence;
END
$$;
