-- From a block of sequences to runs, all in one call: which runs are the best, who gets them, and how each sequence ended.

-- Where a tenant's turns are, without reading those of others.
CREATE INDEX shard_slots_by_tenant ON evenhand.shard_slots (shard_key, tenant, slot);

DROP FUNCTION evenhand.lock_best_run(evenhand.pools, text, bigint);
DROP FUNCTION evenhand.best_run(evenhand.pools, text, bigint, uuid[]);
DROP FUNCTION evenhand.best_by_rank(integer, text, bigint, uuid[]);

-- A ready run as far as it competes.
CREATE TYPE evenhand.ready_run AS (
    id uuid, rank integer, ready_tick bigint, score bigint, team text COLLATE "C", cost_micros bigint
);

-- The best of the runs that became ready in ticks `p_after` (excluded) to `p_to`, all of which have waited for the same
-- bonus: the higher rank first, then the earlier tick, then the smaller id. Reads down the ranks, and leaps to the next
-- one where a rank goes on with younger runs. `p_older` bounds the number of those that became ready before.
CREATE FUNCTION evenhand.top_runs_by_rank(
    p_pool_key integer, p_tenant text, p_after bigint, p_to bigint, p_older integer, p_bonus bigint, p_most integer
) RETURNS SETOF evenhand.ready_run
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run evenhand.ready_run;
    v_below integer := 2147483647;
    v_left integer := p_most;
    v_is_young boolean;
BEGIN
    LOOP
        v_is_young := false;
        FOR v_run IN
            SELECT r.id, r.rank, r.ready_tick, r.rank + p_bonus, r.team, r.cost_micros
            FROM evenhand.runs AS r
            WHERE r.pool_key = p_pool_key AND r.tenant = p_tenant AND r.state = 'queued' AND r.rank < v_below
            ORDER BY r.pool_key, r.tenant, r.rank DESC, r.ready_tick, r.id LIMIT v_left + p_older
        LOOP
            v_is_young := v_run.ready_tick > p_to;
            EXIT WHEN v_is_young;
            CONTINUE WHEN v_run.ready_tick <= p_after;
            RETURN NEXT v_run;
            v_left := v_left - 1;
            EXIT WHEN v_left = 0;
        END LOOP;
        EXIT WHEN NOT v_is_young;
        v_below := v_run.rank;
    END LOOP;
END
$$;

-- The best runs of each tick from `p_after` (excluded) to `p_to`. Reads up the ticks, and leaps to the next one where
-- there are more than wanted in one.
CREATE FUNCTION evenhand.top_runs_by_tick(
    p_pool_key integer, p_tenant text, p_after bigint, p_to bigint, p_aging_per_tick integer, p_most integer
) RETURNS SETOF evenhand.ready_run
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run evenhand.ready_run;
    v_tick bigint := p_after;
    v_found integer := 0;
BEGIN
    LOOP
        FOR v_run IN
            SELECT r.id, r.rank, r.ready_tick, r.rank + (p_to - r.ready_tick) * p_aging_per_tick, r.team, r.cost_micros
            FROM evenhand.runs AS r
            WHERE r.pool_key = p_pool_key AND r.tenant = p_tenant AND r.state = 'queued'
              AND r.ready_tick > v_tick AND r.ready_tick <= p_to
            -- Without a limit a loop reads some rows ahead.
            ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT CASE WHEN p_most = 1 THEN 1 END
        LOOP
            v_found := CASE WHEN v_run.ready_tick > v_tick THEN 1 ELSE v_found + 1 END;
            v_tick := v_run.ready_tick;
            RETURN NEXT v_run;
            EXIT WHEN v_found = p_most;
        END LOOP;
        EXIT WHEN v_found < p_most;
        v_found := 0;
    END LOOP;
END
$$;

-- The ready runs of a tenant with the highest scores, best first, exactly as the pure order has them and without a look
-- at the rest of the backlog: forced runs all have the same bonus, and so have all runs whose aging is used up; the
-- others lie in at most `max_aging_ticks` ticks. It needs max_aging_ticks <= starvation_ticks, which the pool guarantees.
CREATE FUNCTION evenhand.top_runs(p_pool evenhand.pools, p_tenant text, p_now_tick bigint, p_most integer)
RETURNS SETOF evenhand.ready_run
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Without aging, waiting earns nothing before starvation.
    v_aging_ticks bigint := CASE WHEN p_pool.aging_per_tick > 0 THEN p_pool.max_aging_ticks ELSE 0 END;
    v_aged bigint := p_now_tick - v_aging_ticks;
    v_forced bigint := p_now_tick - p_pool.starvation_ticks;
    v_bonus bigint := v_aging_ticks * p_pool.aging_per_tick;
    v_left integer := p_most;
    v_found integer;
    v_oldest bigint;
BEGIN
    SELECT r.ready_tick INTO v_oldest FROM evenhand.runs AS r
    WHERE r.pool_key = p_pool.pool_key AND r.tenant = p_tenant AND r.state = 'queued'
    ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1;
    IF NOT FOUND OR v_oldest > p_now_tick OR p_most < 1 THEN
        RETURN;
    END IF;
    IF v_oldest <= v_forced THEN
        RETURN QUERY
        SELECT f.* FROM evenhand.top_runs_by_rank(
            p_pool.pool_key, p_tenant, -9223372036854775808, v_forced, 0, v_bonus + 10000, v_left) AS f;
        GET DIAGNOSTICS v_found = ROW_COUNT;
        v_left := v_left - v_found;
        IF v_left = 0 THEN
            RETURN;
        END IF;
    END IF;
    IF v_oldest > v_aged THEN
        RETURN QUERY
        SELECT f.* FROM evenhand.top_runs_by_tick(
            p_pool.pool_key, p_tenant, v_aged, p_now_tick, p_pool.aging_per_tick, v_left) AS f
        ORDER BY f.score DESC, f.ready_tick, f.id LIMIT v_left;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT f.*
    FROM (
        SELECT a.* FROM evenhand.top_runs_by_rank(
            p_pool.pool_key, p_tenant, v_forced, v_aged, p_most - v_left, v_bonus, v_left) AS a
        UNION ALL
        SELECT t.* FROM evenhand.top_runs_by_tick(
            p_pool.pool_key, p_tenant, v_aged, p_now_tick, p_pool.aging_per_tick, v_left) AS t
    ) AS f
    ORDER BY f.score DESC, f.ready_tick, f.id LIMIT v_left;
END
$$;

-- Locks a ready run, unless somebody else holds it or it has changed. Only the primary key can serve this search: a
-- comparison that no index knows does not invite the planner to read another one from end to end.
CREATE FUNCTION evenhand.lock_ready(p_id uuid, p_rank integer, p_ready_tick bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM evenhand.runs AS r
    WHERE r.id = p_id
      AND (r.state, r.rank, r.ready_tick) IS NOT DISTINCT FROM ('queued'::evenhand.run_state, p_rank, p_ready_tick)
    FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;

-- Locks the best ready run of a tenant, and the permits that it needs. A run that somebody else is claiming, or whose
-- team has no permit left, is passed over for the next best, 64 of them at most. `run_id` is NULL when there is none to
-- have, and then `contended` says whether any was ready.
CREATE FUNCTION evenhand.lock_best_run(
    p_pool evenhand.pools, p_tenant text, p_now_tick bigint,
    OUT run_id uuid, OUT contended boolean, OUT tenant_permit integer, OUT team_permit integer
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_limited boolean := EXISTS (SELECT FROM evenhand.limits AS l WHERE l.pool_key = p_pool.pool_key);
    v_tenant_is_full boolean := false;
    v_full_teams text[] := '{}';
    v_permits integer[];
    v_most integer;
    v_next evenhand.ready_run;
BEGIN
    contended := false;
    IF v_limited THEN
        v_permits := evenhand.lock_permits(p_pool.pool_key, 'tenant', p_tenant, 1);
        tenant_permit := v_permits[1];
        v_tenant_is_full := cardinality(v_permits) = 0;
    END IF;
    FOREACH v_most IN ARRAY ARRAY[1, 1 + 64] LOOP
        FOR v_next IN SELECT t.* FROM evenhand.top_runs(p_pool, p_tenant, p_now_tick, v_most) AS t LOOP
            contended := true;
            IF v_tenant_is_full THEN
                RETURN;
            END IF;
            CONTINUE WHEN v_next.team = ANY (v_full_teams)
                OR NOT evenhand.lock_ready(v_next.id, v_next.rank, v_next.ready_tick);
            IF v_limited THEN
                v_permits := evenhand.lock_permits(p_pool.pool_key, 'team', v_next.team, 1);
                team_permit := v_permits[1];
                IF cardinality(v_permits) = 0 THEN
                    v_full_teams := v_full_teams || v_next.team;
                    CONTINUE;
                END IF;
            END IF;
            run_id := v_next.id;
            RETURN;
        END LOOP;
        EXIT WHEN NOT contended;
    END LOOP;
END
$$;

-- Writes a run's name on the permits that were locked for it.
CREATE FUNCTION evenhand.take_permits(p_run evenhand.runs, p_tenant_permit integer, p_team_permit integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE evenhand.permits AS p SET run_id = (p_run).id
    WHERE p.pool_key = (p_run).pool_key AND p.kind = 'tenant' AND p.name = (p_run).tenant AND p.ordinal = p_tenant_permit;
    UPDATE evenhand.permits AS p SET run_id = (p_run).id
    WHERE p.pool_key = (p_run).pool_key AND p.kind = 'team' AND p.name = (p_run).team AND p.ordinal = p_team_permit;
END
$$;

-- In PL/pgSQL, which keeps the plan.
CREATE OR REPLACE FUNCTION evenhand.record_outcome(p_shard_key integer, p_sequence bigint, p_outcome text, p_now timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO evenhand.outcomes (shard_key, first_sequence, count, recorded_at, ran, contended, failed)
    VALUES (p_shard_key, p_sequence, 1, p_now,
            CASE p_outcome WHEN 'ran' THEN '{0}'::integer[] END,
            CASE p_outcome WHEN 'contended' THEN '{0}'::integer[] END,
            CASE p_outcome WHEN 'failed' THEN '{0}'::integer[] END);
END
$$;

-- Claims the best ready run of the tenant that the cycle names for a reserved sequence, and records how the sequence
-- ended: `ran`, `idle` or `contended`. Asked again it answers the same.
CREATE OR REPLACE FUNCTION evenhand.claim(
    p_shard text, p_sequence bigint, p_tenant text, p_worker text, p_lease_ms bigint,
    OUT outcome text, OUT expires_at_us bigint, OUT run evenhand.run_row
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    SET jit = off SET plan_cache_mode = force_generic_plan
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
    PERFORM evenhand.require_active(v_shard.shard_key, p_shard);
    PERFORM evenhand.hold_limits(v_shard.pool_key);
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
        INSERT INTO evenhand.leases (run_id, fence, shard_key, sequence, expires_at, tenant_permit, team_permit)
        VALUES (v_run.id, v_run.fence, v_shard.shard_key, p_sequence, v_now + p_lease_ms * interval '1 millisecond',
                v_best.tenant_permit, v_best.team_permit);
        IF v_best.tenant_permit IS NOT NULL OR v_best.team_permit IS NOT NULL THEN
            PERFORM evenhand.take_permits(v_run, v_best.tenant_permit, v_best.team_permit);
        END IF;
        INSERT INTO evenhand.attempts (shard_key, sequence, run_id, fence, tenant, worker, ready_at, claimed_at)
        VALUES (v_shard.shard_key, p_sequence, v_run.id, v_run.fence, v_run.tenant, p_worker, v_run.ready_at, v_now);
        run := evenhand.run_row_of(v_run);
    END IF;
    PERFORM evenhand.record_outcome(v_shard.shard_key, p_sequence, outcome, v_now);
END
$$;

-- Records that looking at a sequence's tenant failed. A sequence that has an outcome keeps it.
CREATE OR REPLACE FUNCTION evenhand.record_failed(p_shard text, p_sequence bigint) RETURNS void
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
        PERFORM evenhand.require_active(v_shard_key, p_shard);
        PERFORM evenhand.record_outcome(v_shard_key, p_sequence, 'failed', evenhand.clock());
    END IF;
END
$$;

-- What a round says about sequences: `ran`, with the run that one of them claimed, `contended` or `moved_on`.
CREATE TYPE evenhand.round_row AS (outcome text, sequences bigint[], expires_at_us bigint, run evenhand.run_row);

-- A sequence of a block that names a tenant: the tenant by number, the how manieth of its open ones, and the offset.
CREATE TYPE evenhand.turn AS (tenant_no integer, place integer, at integer);

-- A run that competes in a round: its tenant by number, its place among the tenant's runs, and what it competes with.
CREATE TYPE evenhand.candidate AS (
    tenant_no integer, place integer, id uuid, rank integer, ready_tick bigint, score bigint, team text COLLATE "C",
    cost_micros bigint
);

-- The permits that were locked for a tenant or team; NULL for one without a limit.
CREATE TYPE evenhand.permit_set AS (name text COLLATE "C", ordinals integer[]);

-- A run that was locked for a sequence.
CREATE TYPE evenhand.winner AS (run_id uuid, at integer, tenant_permit integer, team_permit integer);

-- The reservation that starts here with this length, locked.
CREATE FUNCTION evenhand.lock_block(p_shard_key integer, p_shard text, p_first bigint, p_count integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM evenhand.reservations AS r
    WHERE r.shard_key = p_shard_key AND r.first_sequence = p_first AND r.count = p_count FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = format('no reservation of %s sequences starts at %s in shard %s', p_count, p_first, p_shard);
    END IF;
END
$$;

-- The offsets within a block whose end is not on record.
CREATE FUNCTION evenhand.open_offsets(p_shard_key integer, p_first bigint, p_count integer) RETURNS int4multirange
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN int4multirange(int4range(0, p_count)) - coalesce((
        SELECT range_agg(int4range((o.first_sequence - p_first)::integer, (o.first_sequence - p_first)::integer + o.count))
        FROM evenhand.outcomes AS o
        WHERE o.shard_key = p_shard_key AND o.first_sequence BETWEEN p_first AND p_first + (p_count - 1)), '{}');
END
$$;

-- What is on record of a block: the worker's own runs while their leases live, whose run has moved on, and what was
-- contended or failed.
CREATE FUNCTION evenhand.round_on_record(p_shard_key integer, p_first bigint, p_count integer, p_worker text)
RETURNS SETOF evenhand.round_row
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH ran AS (
        SELECT a.sequence, l.expires_at, l.run_id
        FROM evenhand.attempts AS a
        LEFT JOIN LATERAL (
            SELECT l.run_id, l.expires_at FROM evenhand.leases AS l
            WHERE l.run_id = a.run_id AND l.fence = a.fence AND a.worker = p_worker OFFSET 0
        ) AS l ON true
        WHERE a.shard_key = p_shard_key AND a.sequence BETWEEN p_first AND p_first + (p_count - 1)
    )
    SELECT 'ran', ARRAY[n.sequence], evenhand.micros(n.expires_at), evenhand.run_row_of(r)
    FROM ran AS n CROSS JOIN LATERAL (SELECT r.* FROM evenhand.runs AS r WHERE r.id = n.run_id OFFSET 0) AS r
    UNION ALL
    SELECT 'moved_on', array_agg(n.sequence), NULL, NULL FROM ran AS n WHERE n.run_id IS NULL HAVING count(*) > 0
    UNION ALL
    SELECT 'contended', array_agg(o.first_sequence + c.at), NULL, NULL
    FROM evenhand.outcomes AS o CROSS JOIN LATERAL unnest(o.contended || o.failed) AS c (at)
    WHERE o.shard_key = p_shard_key AND o.first_sequence BETWEEN p_first AND p_first + (p_count - 1)
    HAVING count(*) > 0;
END
$$;

-- The tenants with ready runs that a block has sequences of. Policy and queue are walked side by side, each leaping to
-- where the other stands, so that idle tenants cost nothing; a block shorter than the cycle looks at its own slots only.
CREATE FUNCTION evenhand.ready_in_block(
    p_shard_key integer, p_cycle_length integer, p_pool_key integer, p_first bigint, p_count integer, p_now_tick bigint
) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_slot integer := p_first % p_cycle_length;
    v_names text[];
    v_next integer := 1;
    v_from text COLLATE "C" := '';
    v_tenant text COLLATE "C";
    v_ready_tick bigint;
    v_ready text[] := '{}';
BEGIN
    IF p_count < p_cycle_length THEN
        v_names := ARRAY(
            SELECT s.tenant FROM evenhand.shard_slots AS s
            WHERE s.shard_key = p_shard_key AND s.slot >= v_slot AND s.slot < v_slot + p_count
            UNION
            SELECT s.tenant FROM evenhand.shard_slots AS s
            WHERE s.shard_key = p_shard_key AND s.slot < v_slot + p_count - p_cycle_length
            ORDER BY tenant
        );
    END IF;
    LOOP
        IF v_names IS NULL THEN
            SELECT t.tenant INTO v_tenant FROM evenhand.shard_tenants AS t
            WHERE t.shard_key = p_shard_key AND t.tenant >= v_from
            ORDER BY t.shard_key, t.tenant LIMIT 1;
        ELSE
            WHILE v_names[v_next] < v_from LOOP
                v_next := v_next + 1;
            END LOOP;
            v_tenant := v_names[v_next];
        END IF;
        EXIT WHEN v_tenant IS NULL;
        SELECT r.tenant, r.ready_tick INTO v_from, v_ready_tick FROM evenhand.runs AS r
        WHERE r.pool_key = p_pool_key AND r.tenant >= v_tenant AND r.state = 'queued'
        ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF v_from = v_tenant THEN
            IF v_ready_tick <= p_now_tick THEN
                v_ready := v_ready || v_tenant;
            END IF;
            -- The smallest text behind it.
            v_from := v_tenant || chr(1);
        END IF;
    END LOOP;
    RETURN v_ready;
END
$$;

-- The first `p_most` open sequences of each tenant in a block, all of them where that is NULL. `p_open` is NULL when all
-- of the block is open, and then no more of it is looked at than needed.
CREATE FUNCTION evenhand.turns(
    p_shard_key integer, p_cycle_length integer, p_first bigint, p_count integer, p_open int4multirange,
    p_tenants text[], p_most integer[]
) RETURNS SETOF evenhand.turn
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT t.no, t.place, t.at
    FROM (
        SELECT w.no::integer AS no, w.most, o.at, (row_number() OVER (PARTITION BY w.no ORDER BY o.at))::integer AS place
        FROM unnest(p_tenants, p_most) WITH ORDINALITY AS w (tenant, most, no)
        CROSS JOIN LATERAL (
            SELECT (s.slot - (p_first % p_cycle_length)::integer + p_cycle_length) % p_cycle_length
                       + g.cycle * p_cycle_length AS at
            FROM evenhand.shard_tenants AS t
            CROSS JOIN LATERAL generate_series(0, least(
                (p_count - 1) / p_cycle_length, CASE WHEN p_open IS NULL THEN (w.most - 1) / t.weight END)) AS g (cycle)
            CROSS JOIN LATERAL (
                SELECT s.slot FROM evenhand.shard_slots AS s
                WHERE s.shard_key = t.shard_key AND s.tenant = t.tenant OFFSET 0
            ) AS s
            WHERE t.shard_key = p_shard_key AND t.tenant = w.tenant
        ) AS o
        WHERE w.most IS DISTINCT FROM 0 AND o.at < p_count AND (p_open IS NULL OR p_open @> o.at)
    ) AS t
    WHERE t.most IS NULL OR t.place <= t.most
    ORDER BY t.no, t.place;
END
$$;

-- How often each number from 1 to `p_numbers_max` occurs.
CREATE FUNCTION evenhand.count_each(p_numbers integer[], p_numbers_max integer) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT count(*)::integer - 1
        FROM (SELECT generate_series(1, p_numbers_max) AS no UNION ALL SELECT unnest(p_numbers)) AS n
        GROUP BY n.no ORDER BY n.no);
END
$$;

-- How many runs each tenant is given: its sequences take one after the other what is left of `p_runs_max`, until its
-- own end is reached.
CREATE FUNCTION evenhand.windows(p_turns evenhand.turn[], p_ends integer[], p_runs_max integer) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN evenhand.count_each(
        ARRAY(SELECT t.tenant_no FROM unnest(p_turns) AS t
              WHERE t.place <= p_ends[t.tenant_no] ORDER BY t.at LIMIT p_runs_max),
        cardinality(p_ends));
END
$$;

-- Who competes for the open sequences of a block, and how many runs each tenant is given at most, in `windows`. `turns`
-- and `candidates` hold one sequence and one run of each tenant more than can be claimed, so that their numbers, in
-- `turns_count` and `ready`, show whether any is left over. `permits` are those of limited tenants.
CREATE FUNCTION evenhand.contenders(
    p_shard_key integer, p_cycle_length integer, p_pool evenhand.pools, p_first bigint, p_count integer,
    p_open int4multirange, p_runs_max integer, p_now_tick bigint, p_tenants_limited boolean,
    OUT tenants text[], OUT turns evenhand.turn[], OUT turns_count integer[], OUT candidates evenhand.candidate[],
    OUT ready integer[], OUT permits evenhand.permit_set[], OUT windows integer[]
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenants_count integer;
    v_ends integer[];
BEGIN
    tenants := evenhand.ready_in_block(p_shard_key, p_cycle_length, p_pool.pool_key, p_first, p_count, p_now_tick);
    v_tenants_count := cardinality(tenants);
    IF v_tenants_count = 0 THEN
        RETURN;
    END IF;
    turns := ARRAY(
        SELECT t FROM evenhand.turns(p_shard_key, p_cycle_length, p_first, p_count, p_open, tenants,
                                     array_fill(p_runs_max + 1, ARRAY[v_tenants_count])) AS t);
    turns_count := evenhand.count_each(ARRAY(SELECT t.tenant_no FROM unnest(turns) AS t), v_tenants_count);
    candidates := ARRAY(
        SELECT ROW(w.no, r.place, r.id, r.rank, r.ready_tick, r.score, r.team, r.cost_micros)::evenhand.candidate
        FROM unnest(tenants, turns_count) WITH ORDINALITY AS w (tenant, turns, no)
        CROSS JOIN LATERAL evenhand.top_runs(p_pool, w.tenant, p_now_tick, least(w.turns, p_runs_max) + 1)
            WITH ORDINALITY AS r (id, rank, ready_tick, score, team, cost_micros, place)
        WHERE w.turns > 0);
    ready := evenhand.count_each(ARRAY(SELECT c.tenant_no FROM unnest(candidates) AS c), v_tenants_count);
    v_ends := ARRAY(
        SELECT least(w.turns, w.ready, p_runs_max)
        FROM unnest(turns_count, ready) WITH ORDINALITY AS w (turns, ready, no) ORDER BY w.no);
    IF p_tenants_limited THEN
        permits := ARRAY(
            SELECT ROW(w.tenant, evenhand.lock_permits(p_pool.pool_key, 'tenant', w.tenant, w.runs))::evenhand.permit_set
            FROM unnest(tenants, v_ends) WITH ORDINALITY AS w (tenant, runs, no) ORDER BY w.no);
        v_ends := ARRAY(
            SELECT least(w.runs, cardinality(w.ordinals))
            FROM unnest(v_ends, permits) WITH ORDINALITY AS w (runs, name, ordinals, no) ORDER BY w.no);
    END IF;
    windows := evenhand.windows(turns, v_ends, p_runs_max);
END
$$;

-- Locks those of the candidates that are best by their places, all at once. What others hold is left out.
CREATE FUNCTION evenhand.lock_at_once(p_candidates evenhand.candidate[], p_windows integer[])
RETURNS evenhand.candidate[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT c FROM unnest(p_candidates) AS c
        CROSS JOIN LATERAL (
            SELECT FROM evenhand.runs AS r
            WHERE r.id = c.id AND (r.state, r.rank, r.ready_tick)
                IS NOT DISTINCT FROM ('queued'::evenhand.run_state, c.rank, c.ready_tick)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS r
        WHERE c.place <= p_windows[c.tenant_no]);
END
$$;

-- Locks the best runs of all tenants one by one, by score, as far as windows, team windows and capacity suffice. Those
-- that others hold are passed over; each tenant's candidates are its best 64 beyond its window. What was locked before
-- counts against the windows of its tenant; there are no teams and costs to mind then.
CREATE FUNCTION evenhand.lock_one_by_one(
    p_pool evenhand.pools, p_now_tick bigint, p_tenants text[], p_windows integer[], p_team_window integer,
    p_capacity_micros bigint, p_teams_limited boolean,
    INOUT locked evenhand.candidate[], OUT team_permits evenhand.permit_set[]
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before uuid[] := ARRAY(SELECT l.id FROM unnest(locked) AS l);
    v_tenant_left integer[] := ARRAY(
        SELECT w.runs - w.locked
        FROM unnest(p_windows, evenhand.count_each(ARRAY(SELECT l.tenant_no FROM unnest(locked) AS l), cardinality(p_windows)))
            WITH ORDINALITY AS w (runs, locked, no)
        ORDER BY w.no);
    v_left integer := (SELECT sum(l.runs) FROM unnest(v_tenant_left) AS l (runs));
    v_candidates evenhand.candidate[] := ARRAY(
        SELECT ROW(w.no, 0, r.id, r.rank, r.ready_tick, r.score, r.team, r.cost_micros)::evenhand.candidate
        FROM unnest(p_tenants, p_windows, v_tenant_left) WITH ORDINALITY AS w (tenant, runs, still, no)
        CROSS JOIN LATERAL evenhand.top_runs(p_pool, w.tenant, p_now_tick, w.runs + 64) AS r
        WHERE w.still > 0 AND r.id <> ALL (v_before));
    v_team_left integer[];
    v_capacity bigint := p_capacity_micros;
    v_next record;
BEGIN
    SELECT array_agg(
        ROW(t.team, CASE WHEN p_teams_limited THEN
            evenhand.lock_permits(p_pool.pool_key, 'team', t.team, least(t.runs, v_left, p_team_window)) END)::evenhand.permit_set
        ORDER BY t.team)
    INTO team_permits
    FROM (SELECT c.team, count(*)::integer AS runs FROM unnest(v_candidates) AS c GROUP BY c.team) AS t;
    -- NULL, here and for the capacity, is what nothing is above.
    v_team_left := ARRAY(
        SELECT least(p_team_window, cardinality(t.ordinals)) FROM unnest(team_permits) AS t ORDER BY t.name);
    FOR v_next IN
        SELECT c.*, dense_rank() OVER (ORDER BY c.team) AS team_no
        FROM unnest(v_candidates) AS c ORDER BY c.score DESC, c.ready_tick, c.id
    LOOP
        EXIT WHEN v_left = 0;
        CONTINUE WHEN v_tenant_left[v_next.tenant_no] = 0 OR v_team_left[v_next.team_no] = 0
            OR v_next.cost_micros > v_capacity
            OR NOT evenhand.lock_ready(v_next.id, v_next.rank, v_next.ready_tick);
        v_left := v_left - 1;
        v_tenant_left[v_next.tenant_no] := v_tenant_left[v_next.tenant_no] - 1;
        v_team_left[v_next.team_no] := v_team_left[v_next.team_no] - 1;
        v_capacity := v_capacity - v_next.cost_micros;
        locked := locked || ROW(
            v_next.tenant_no, 0, v_next.id, v_next.rank, v_next.ready_tick, v_next.score, v_next.team,
            v_next.cost_micros)::evenhand.candidate;
    END LOOP;
END
$$;

-- Starts the runs that were locked, each against its sequence. The answer's rows are those of `run_row_of`, written out
-- because a call for each run would cost as much as all the rest.
CREATE FUNCTION evenhand.start_runs(
    p_shard_key integer, p_first bigint, p_pool text, p_winners evenhand.winner[], p_worker text, p_lease_ms bigint,
    p_now timestamptz
) RETURNS SETOF evenhand.round_row
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_expires_at timestamptz := p_now + p_lease_ms * interval '1 millisecond';
BEGIN
    PERFORM evenhand.take_permits(r, w.tenant_permit, w.team_permit)
    FROM unnest(p_winners) AS w JOIN evenhand.runs AS r ON r.id = w.run_id
    WHERE w.tenant_permit IS NOT NULL OR w.team_permit IS NOT NULL;
    RETURN QUERY
    WITH started AS (
        UPDATE evenhand.runs AS r SET state = 'running', attempt = r.attempt + 1, fence = r.fence + 1
        FROM unnest(p_winners) AS w WHERE r.id = w.run_id
        RETURNING r.*, p_first + w.at AS sequence, w.tenant_permit, w.team_permit
    ), leased AS (
        INSERT INTO evenhand.leases (run_id, fence, shard_key, sequence, expires_at, tenant_permit, team_permit)
        SELECT s.id, s.fence, p_shard_key, s.sequence, v_expires_at, s.tenant_permit, s.team_permit
        FROM started AS s
    ), attempted AS (
        INSERT INTO evenhand.attempts (shard_key, sequence, run_id, fence, tenant, worker, ready_at, claimed_at)
        SELECT p_shard_key, s.sequence, s.id, s.fence, s.tenant, p_worker, s.ready_at, p_now
        FROM started AS s
    )
    SELECT 'ran', ARRAY[s.sequence], evenhand.micros(v_expires_at),
           ROW(s.id, p_pool, s.tenant, s.team, s.kind, s.payload, s.value_class, s.base_priority, s.cost_micros,
               s.attempts_max, s.timeout_ms, s.idempotency_key, s.state, evenhand.micros(s.ready_at), s.attempt, s.fence,
               evenhand.micros(s.enqueued_at), evenhand.micros(s.finished_at), s.last_error)::evenhand.run_row
    FROM started AS s;
END
$$;

-- Writes down how the open sequences of a block ended: one row, or one for each gap between what is on record.
CREATE FUNCTION evenhand.record_block(
    p_shard_key integer, p_first bigint, p_open int4multirange, p_ran integer[], p_contended integer[], p_now timestamptz
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO evenhand.outcomes (shard_key, first_sequence, count, recorded_at, ran, contended)
    SELECT p_shard_key, p_first + lower(g), upper(g) - lower(g), p_now,
           (SELECT array_agg(s.at - lower(g) ORDER BY s.at) FROM unnest(p_ran) AS s (at) WHERE g @> s.at),
           (SELECT array_agg(s.at - lower(g) ORDER BY s.at) FROM unnest(p_contended) AS s (at) WHERE g @> s.at)
    FROM unnest(p_open) AS g;
END
$$;

-- Gives the locked runs of each tenant, best first, its open sequences in order, and the permits that were locked.
CREATE FUNCTION evenhand.winners(
    p_locked evenhand.candidate[], p_claimed integer[], p_turns evenhand.turn[], p_tenant_permits evenhand.permit_set[],
    p_team_permits evenhand.permit_set[]
) RETURNS evenhand.winner[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT ROW(w.id, w.at, p_tenant_permits[w.tenant_no].ordinals[w.place], p.ordinals[w.team_place])::evenhand.winner
        FROM (
            -- Both lists are sorted by tenant and have the same number of rows of each.
            SELECT w.*, row_number() OVER (PARTITION BY w.team) AS team_place
            FROM unnest(
                ARRAY(SELECT l.id FROM unnest(p_locked) AS l ORDER BY l.tenant_no, l.score DESC, l.ready_tick, l.id),
                ARRAY(SELECT l.team FROM unnest(p_locked) AS l ORDER BY l.tenant_no, l.score DESC, l.ready_tick, l.id),
                ARRAY(SELECT t FROM unnest(p_turns) AS t
                      WHERE t.place <= p_claimed[t.tenant_no] ORDER BY t.tenant_no, t.place)
            ) AS w (id, team, tenant_no, place, at)
        ) AS w
        LEFT JOIN unnest(p_team_permits) AS p ON p.name = w.team);
END
$$;

-- Settles the open sequences of a block, which is locked.
CREATE FUNCTION evenhand.settle_block(
    p_shard_key integer, p_cycle_length integer, p_pool evenhand.pools, p_first bigint, p_count integer,
    p_open int4multirange, p_worker text, p_lease_ms bigint, p_runs_max integer, p_team_window integer,
    p_capacity_micros bigint
) RETURNS SETOF evenhand.round_row
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_now_tick bigint := evenhand.tick_of(v_now, p_pool.wait_tick_ms);
    v_open int4multirange := nullif(p_open, int4multirange(int4range(0, p_count)));
    v_limits evenhand.limit_kind[] := ARRAY(
        SELECT DISTINCT l.kind FROM evenhand.limits AS l WHERE l.pool_key = p_pool.pool_key);
    v_contest record;
    v_locked evenhand.candidate[] := '{}';
    v_team_permits evenhand.permit_set[];
    v_claimed integer[];
    v_winners evenhand.winner[];
    v_contended integer[];
BEGIN
    v_contest := evenhand.contenders(p_shard_key, p_cycle_length, p_pool, p_first, p_count, v_open, p_runs_max, v_now_tick,
                                     'tenant' = ANY (v_limits));
    IF v_contest.tenants = '{}' THEN
        PERFORM evenhand.record_block(p_shard_key, p_first, p_open, NULL, NULL, v_now);
        RETURN;
    END IF;
    -- Without teams and costs to mind, the choice is each tenant's best runs.
    IF p_team_window IS NULL AND p_capacity_micros IS NULL AND NOT 'team' = ANY (v_limits) THEN
        v_locked := evenhand.lock_at_once(v_contest.candidates, v_contest.windows);
    END IF;
    IF cardinality(v_locked) < (SELECT sum(w.runs) FROM unnest(v_contest.windows) AS w (runs)) THEN
        SELECT l.locked, l.team_permits INTO v_locked, v_team_permits
        FROM evenhand.lock_one_by_one(
            p_pool, v_now_tick, v_contest.tenants, v_contest.windows, p_team_window, p_capacity_micros,
            'team' = ANY (v_limits), v_locked) AS l;
    END IF;
    v_claimed := evenhand.count_each(
        ARRAY(SELECT l.tenant_no FROM unnest(v_locked) AS l), cardinality(v_contest.tenants));
    v_winners := evenhand.winners(v_locked, v_claimed, v_contest.turns, v_contest.permits, v_team_permits);
    v_contended := ARRAY(
        SELECT t.at FROM evenhand.turns(
            p_shard_key, p_cycle_length, p_first, p_count, v_open, v_contest.tenants,
            ARRAY(SELECT CASE WHEN w.ready > w.claimed AND w.turns > w.claimed THEN NULL ELSE 0 END
                  FROM unnest(v_contest.ready, v_claimed, v_contest.turns_count)
                      WITH ORDINALITY AS w (ready, claimed, turns, no)
                  ORDER BY w.no)) AS t
        WHERE t.place > v_claimed[t.tenant_no]);
    -- Read again under the locks, so that the attempts of a run were claimed in the order of their fences.
    v_now := evenhand.clock();
    RETURN QUERY SELECT s.* FROM evenhand.start_runs(
        p_shard_key, p_first, p_pool.pool, v_winners, p_worker, p_lease_ms, v_now) AS s;
    PERFORM evenhand.record_block(
        p_shard_key, p_first, p_open, ARRAY(SELECT w.at FROM unnest(v_winners) AS w), v_contended, v_now);
    IF v_contended <> '{}' THEN
        RETURN QUERY SELECT 'contended', ARRAY(SELECT p_first + c.at FROM unnest(v_contended) AS c (at)), NULL::bigint,
                            NULL::evenhand.run_row;
    END IF;
END
$$;

-- Claims against all sequences of a reservation, and records how each of them ended. At most `p_runs_max` runs are
-- claimed, of each team at most `p_team_window`, costing at most `p_capacity_micros` together; both may be NULL. Idle
-- sequences are not answered for. Asked again it answers the same.
CREATE FUNCTION evenhand.claim_round(
    p_shard text, p_digest bytea, p_first_sequence bigint, p_count integer, p_worker text, p_lease_ms bigint,
    p_runs_max integer, p_team_window integer, p_capacity_micros bigint
) RETURNS SETOF evenhand.round_row
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    -- Runs are joined to lists only, by id: with other joins an old statistic would read all of them for a few.
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shard record;
    v_pool evenhand.pools;
    v_open int4multirange;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    SELECT s.shard_key, s.pool_key, s.cycle_length, s.digest INTO v_shard FROM evenhand.shards AS s WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
    IF v_shard.digest <> p_digest THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('the round follows another policy than shard %s', p_shard);
    END IF;
    PERFORM evenhand.lock_block(v_shard.shard_key, p_shard, p_first_sequence, p_count);
    v_open := evenhand.open_offsets(v_shard.shard_key, p_first_sequence, p_count);
    IF v_open <> int4multirange(int4range(0, p_count)) THEN
        RETURN QUERY SELECT r.* FROM evenhand.round_on_record(v_shard.shard_key, p_first_sequence, p_count, p_worker) AS r;
    END IF;
    IF isempty(v_open) THEN
        RETURN;
    END IF;
    PERFORM evenhand.require_active(v_shard.shard_key, p_shard);
    PERFORM evenhand.hold_limits(v_shard.pool_key);
    SELECT p.* INTO STRICT v_pool FROM evenhand.pools AS p WHERE p.pool_key = v_shard.pool_key;
    RETURN QUERY
    SELECT s.* FROM evenhand.settle_block(
        v_shard.shard_key, v_shard.cycle_length, v_pool, p_first_sequence, p_count, v_open, p_worker, p_lease_ms,
        least(p_runs_max, p_count), p_team_window, p_capacity_micros) AS s;
END
$$;

-- How far each shard was found to be settled, so that nobody reads the same evidence again. It may lag behind, and so it
-- need not survive a crash.
CREATE TABLE evenhand.settlement (
    shard_key integer PRIMARY KEY,
    settled_through bigint NOT NULL
);

-- The newest sequence that `lost_blocks` looks at: of what was reserved before a time, at most 65,536 reservations.
CREATE FUNCTION evenhand.look_through(p_shard_key integer, p_settled_through bigint, p_before timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_newest evenhand.reservations;
    v_through bigint;
BEGIN
    SELECT r.* INTO v_newest FROM evenhand.reservations AS r
    WHERE r.shard_key = p_shard_key ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1;
    v_through := CASE
        WHEN v_newest.reserved_at < p_before THEN v_newest.first_sequence + (v_newest.count - 1)
        ELSE evenhand.first_to_keep(p_shard_key, p_settled_through + 1, v_newest.first_sequence, p_before) - 1
    END;
    IF v_through - p_settled_through > 65536 THEN
        v_through := least(v_through, (
            SELECT r.first_sequence + (r.count - 1) FROM evenhand.reservations AS r
            WHERE r.shard_key = p_shard_key AND r.first_sequence > p_settled_through
            ORDER BY r.shard_key, r.first_sequence OFFSET 65535 LIMIT 1));
    END IF;
    RETURN v_through;
END
$$;

-- The reservations that were made longer ago and have a sequence whose end is not on record, oldest first. A call looks
-- from where the last one found everything settled to the first reservation that is too young.
CREATE FUNCTION evenhand.lost_blocks(p_shard text, p_older_than_ms bigint, p_limit integer)
RETURNS TABLE (id uuid, first_sequence bigint, count integer, reserved_at_us bigint, store_time_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
    SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    v_shard_key integer := evenhand.shard_key_of(p_shard);
    v_now timestamptz := evenhand.clock();
    v_settled_through bigint;
    v_through bigint;
    v_lost evenhand.reservations[];
BEGIN
    PERFORM evenhand.require_read_committed();
    SELECT greatest(s.settled_through, r.first_sequence - 1, -1) INTO v_settled_through
    FROM (VALUES (v_shard_key)) AS k (shard_key)
    LEFT JOIN evenhand.settlement AS s ON s.shard_key = k.shard_key
    LEFT JOIN LATERAL (
        SELECT r.first_sequence FROM evenhand.reservations AS r WHERE r.shard_key = k.shard_key
        ORDER BY r.shard_key, r.first_sequence LIMIT 1
    ) AS r ON true;
    v_through := evenhand.look_through(v_shard_key, v_settled_through, v_now - p_older_than_ms * interval '1 millisecond');
    IF v_through IS NULL OR v_through <= v_settled_through
        OR NOT EXISTS (SELECT FROM evenhand.marks AS m WHERE m.shard_key = v_shard_key AND m.standing = 'active') THEN
        RETURN;
    END IF;
    v_lost := ARRAY(
        SELECT DISTINCT ON (r.first_sequence) r
        FROM evenhand.gaps(v_shard_key, v_settled_through, v_through) AS g
        CROSS JOIN LATERAL (
            SELECT r.* FROM evenhand.reservations AS r
            WHERE r.shard_key = v_shard_key AND r.first_sequence <= g.gap_through
              AND r.first_sequence >= coalesce((
                  SELECT c.first_sequence FROM evenhand.reservations AS c
                  WHERE c.shard_key = v_shard_key AND c.first_sequence <= g.gap_after + 1
                  ORDER BY c.shard_key, c.first_sequence DESC LIMIT 1), 0)
              AND r.first_sequence + (r.count - 1) > g.gap_after
            ORDER BY r.shard_key, r.first_sequence LIMIT p_limit
        ) AS r
        ORDER BY r.first_sequence LIMIT p_limit);
    v_through := coalesce(v_lost[1].first_sequence - 1, v_through);
    IF v_through > v_settled_through AND p_limit > 0 THEN
        INSERT INTO evenhand.settlement AS s (shard_key, settled_through) VALUES (v_shard_key, v_through)
        ON CONFLICT (shard_key) DO UPDATE SET settled_through = excluded.settled_through
        WHERE s.settled_through < excluded.settled_through;
    END IF;
    RETURN QUERY
    SELECT l.id, l.first_sequence, l.count, evenhand.micros(l.reserved_at), evenhand.micros(v_now)
    FROM unnest(v_lost) AS l ORDER BY l.first_sequence;
END
$$;

-- The sequences behind one up to another that no outcome covers.
CREATE FUNCTION evenhand.gaps(p_shard_key integer, p_after bigint, p_through bigint)
RETURNS TABLE (gap_after bigint, gap_through bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT g.gap_after, g.gap_through
    FROM (
        SELECT lag(e.last, 1, p_after) OVER (ORDER BY e.before) AS gap_after, e.before AS gap_through
        FROM (
            SELECT o.first_sequence - 1 AS before, o.first_sequence + (o.count - 1) AS last
            FROM evenhand.outcomes AS o
            WHERE o.shard_key = p_shard_key AND o.first_sequence > p_after AND o.first_sequence <= p_through
            UNION ALL
            SELECT p_through, NULL
        ) AS e
    ) AS g
    WHERE g.gap_after < g.gap_through;
END;

GRANT EXECUTE ON FUNCTION evenhand.claim_round, evenhand.lost_blocks TO evenhand_app;
GRANT SELECT ON evenhand.settlement TO evenhand_observer;
