-- Rounds again, in few statements, so that a run costs in a round what its own rows cost.

DROP FUNCTION evenhand.claim_round;
DROP FUNCTION evenhand.claim;
DROP FUNCTION evenhand.claimed_before;
DROP FUNCTION evenhand.round_on_record;
DROP FUNCTION evenhand.settle_block;
DROP FUNCTION evenhand.start_runs;
DROP FUNCTION evenhand.take_permits;
DROP FUNCTION evenhand.winners;
DROP FUNCTION evenhand.lock_one_by_one;
DROP FUNCTION evenhand.lock_at_once;
DROP FUNCTION evenhand.lock_best_run;
DROP FUNCTION evenhand.lock_ready;
DROP FUNCTION evenhand.contenders;
DROP FUNCTION evenhand.windows;
DROP FUNCTION evenhand.count_each;
DROP FUNCTION evenhand.turns(integer, integer, bigint, integer, int4multirange, text[], integer[]);
DROP FUNCTION evenhand.ready_in_block;
DROP TYPE evenhand.round_row;
DROP TYPE evenhand.winner;
DROP TYPE evenhand.candidate;
DROP TYPE evenhand.turn;

-- The tenants of the shard's policy that have a ready run, in order, and the tick of the next run of a tenant that has
-- none. Policy and queue are walked side by side, each leaping to where the other stands, so that neither idle tenants
-- nor tenants outside the policy are read one by one.
CREATE FUNCTION evenhand.look(
    p_shard_key integer, p_pool_key integer, p_now_tick bigint,
    OUT tenants text[], OUT next_tick bigint
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH RECURSIVE walk (tenant, found, ready_tick) AS (
        SELECT NULL::text COLLATE "C", ''::text COLLATE "C", NULL::bigint
        UNION ALL
        SELECT t.tenant, r.tenant, r.ready_tick
        FROM walk AS w
        CROSS JOIN LATERAL (
            SELECT t.tenant FROM evenhand.shard_tenants AS t
            WHERE t.shard_key = p_shard_key
              -- The smallest text behind it, if it was a tenant of both.
              AND t.tenant >= CASE WHEN w.found = w.tenant THEN w.tenant || chr(1) ELSE w.found END
            ORDER BY t.shard_key, t.tenant LIMIT 1
        ) AS t
        CROSS JOIN LATERAL (
            SELECT r.tenant, r.ready_tick FROM evenhand.runs AS r
            WHERE r.pool_key = p_pool_key AND r.tenant >= t.tenant AND r.state = 'queued'
            ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1
        ) AS r
    )
    SELECT coalesce(array_agg(w.tenant) FILTER (WHERE w.ready_tick <= p_now_tick), '{}'),
           min(w.ready_tick) FILTER (WHERE w.ready_tick > p_now_tick)
    INTO tenants, next_tick
    FROM walk AS w WHERE w.found = w.tenant;
END
$$;

-- The tenants of the shard's policy that have a ready run.
CREATE OR REPLACE FUNCTION evenhand.ready_tenants(
    p_shard text,
    OUT tenants text[], OUT next_ready_at_us bigint, OUT store_time_us bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    SET enable_memoize = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shard record;
    v_now timestamptz := evenhand.clock();
    v_look record;
BEGIN
    SELECT s.shard_key, s.pool_key, p.wait_tick_ms INTO v_shard
    FROM evenhand.shards AS s JOIN evenhand.pools AS p ON p.pool_key = s.pool_key WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
    PERFORM evenhand.require_active(v_shard.shard_key, p_shard);
    v_look := evenhand.look(v_shard.shard_key, v_shard.pool_key, evenhand.tick_of(v_now, v_shard.wait_tick_ms));
    tenants := v_look.tenants;
    -- A run is ready when the clock reaches its tick.
    next_ready_at_us := v_look.next_tick * v_shard.wait_tick_ms * 1000;
    store_time_us := evenhand.micros(v_now);
END
$$;

-- A tenant that competes for sequences of a block: those that name it, by their offsets in order, how many runs it is
-- given at most, and the permits that were locked for them, NULL without a limit.
CREATE TYPE evenhand.contender AS (tenant text COLLATE "C", turns integer[], runs integer, permits integer[]);

-- A run that was locked for a sequence: its contender by number, where its row is, and the offset.
CREATE TYPE evenhand.winner AS (no integer, place tid, at integer, tenant_permit integer, team_permit integer);

-- What a round says: about sequences `ran`, with the run that one of them claimed, `contended` or `moved_on`; and
-- `ready`, with what a look would show now.
CREATE TYPE evenhand.round_row AS (
    outcome text, sequences bigint[], expires_at_us bigint,
    id uuid, pool text, tenant text, team text, kind text, payload jsonb, value_class text, base_priority integer,
    cost_micros bigint, attempts_max integer, timeout_ms bigint, idempotency_key text, state text, ready_at_us bigint,
    attempt integer, fence bigint, enqueued_at_us bigint, finished_at_us bigint, last_error text,
    ready_tenants text[], next_ready_at_us bigint, store_time_us bigint
);

-- The first `p_most` open sequences of each of these tenants in a block, all of them where that is NULL. `p_open` is
-- NULL when all of the block is open, and then no more of it is looked at than needed.
CREATE FUNCTION evenhand.turns(
    p_shard_key integer, p_cycle_length integer, p_first bigint, p_count integer, p_open int4multirange,
    p_tenants text[], p_most integer
) RETURNS TABLE (tenant text, turns integer[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_slot integer := p_first % p_cycle_length;
BEGIN
    RETURN QUERY
    SELECT t.tenant, ARRAY(
        SELECT o.at
        FROM (
            SELECT (s.slot - v_slot + p_cycle_length) % p_cycle_length AS at FROM evenhand.shard_slots AS s
            WHERE s.shard_key = p_shard_key AND s.tenant = t.tenant OFFSET 0
        ) AS s
        CROSS JOIN LATERAL generate_series(s.at, least(
            p_count - 1, CASE WHEN p_open IS NULL THEN s.at + (p_most - 1) / t.weight * p_cycle_length::bigint END
        )::integer, p_cycle_length) AS o (at)
        WHERE p_open IS NULL OR p_open @> o.at
        ORDER BY o.at LIMIT p_most)
    FROM unnest(p_tenants) WITH ORDINALITY AS w (tenant, no)
    JOIN evenhand.shard_tenants AS t ON t.shard_key = p_shard_key AND t.tenant = w.tenant
    ORDER BY w.no;
END
$$;

-- The open sequences of a short block, by tenant, read from its own slots.
CREATE FUNCTION evenhand.turns_by_slot(
    p_shard_key integer, p_cycle_length integer, p_first bigint, p_count integer, p_open int4multirange
) RETURNS TABLE (tenant text, turns integer[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_slot integer := p_first % p_cycle_length;
BEGIN
    RETURN QUERY
    SELECT o.tenant, array_agg(o.at ORDER BY o.at)
    FROM (
        SELECT s.tenant, g.at
        FROM evenhand.shard_slots AS s
        CROSS JOIN LATERAL generate_series(s.slot - v_slot, p_count - 1, p_cycle_length) AS g (at)
        WHERE s.shard_key = p_shard_key AND s.slot >= v_slot AND s.slot < v_slot + p_count
        UNION ALL
        SELECT s.tenant, g.at
        FROM evenhand.shard_slots AS s
        CROSS JOIN LATERAL generate_series(s.slot - v_slot + p_cycle_length, p_count - 1, p_cycle_length) AS g (at)
        WHERE s.shard_key = p_shard_key AND s.slot < least(v_slot, v_slot + p_count - p_cycle_length)
    ) AS o
    WHERE p_open IS NULL OR p_open @> o.at
    GROUP BY o.tenant;
END
$$;

-- Who competes for the open sequences of a block: the tenants that have ready runs. A short block is read by its slots,
-- with one look for each tenant; for a longer one those who are ready are looked for, however many slots others have, and
-- each is given one turn more than can be claimed.
CREATE FUNCTION evenhand.contenders(
    p_shard_key integer, p_cycle_length integer, p_pool_key integer, p_first bigint, p_count integer,
    p_open int4multirange, p_runs_max integer, p_now_tick bigint, p_tenants_limited boolean
) RETURNS evenhand.contender[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_contenders evenhand.contender[];
BEGIN
    IF p_count <= 256 THEN
        v_contenders := ARRAY(
            SELECT ROW(t.tenant, t.turns, cardinality(t.turns), NULL)::evenhand.contender
            FROM evenhand.turns_by_slot(p_shard_key, p_cycle_length, p_first, p_count, p_open) AS t
            CROSS JOIN LATERAL (
                SELECT r.ready_tick FROM evenhand.runs AS r
                WHERE r.pool_key = p_pool_key AND r.tenant = t.tenant AND r.state = 'queued'
                ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1
            ) AS r
            WHERE r.ready_tick <= p_now_tick);
    ELSE
        v_contenders := ARRAY(
            SELECT ROW(t.tenant, t.turns, cardinality(t.turns), NULL)::evenhand.contender
            FROM evenhand.turns(
                p_shard_key, p_cycle_length, p_first, p_count, p_open,
                (evenhand.look(p_shard_key, p_pool_key, p_now_tick)).tenants, p_runs_max + 1) AS t
            WHERE t.turns <> '{}');
    END IF;
    -- As long as there are enough for all, nobody need know who has fewer runs than turns.
    IF p_tenants_limited OR p_runs_max < (SELECT sum(c.runs) FROM unnest(v_contenders) AS c) THEN
        v_contenders := evenhand.share_out(p_pool_key, v_contenders, p_runs_max, p_now_tick, p_tenants_limited);
    END IF;
    RETURN v_contenders;
END
$$;

-- Shares out `p_runs_max` runs: the turns take one after the other what is left, until their tenant has no more ready
-- runs or permits.
CREATE FUNCTION evenhand.share_out(
    p_pool_key integer, p_contenders evenhand.contender[], p_runs_max integer, p_now_tick bigint,
    p_tenants_limited boolean
) RETURNS evenhand.contender[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_contenders evenhand.contender[] := ARRAY(
        SELECT ROW(c.tenant, c.turns, r.runs, CASE WHEN p_tenants_limited THEN
                   evenhand.lock_permits(p_pool_key, 'tenant', c.tenant, r.runs) END)::evenhand.contender
        FROM unnest(p_contenders) AS c
        CROSS JOIN LATERAL (
            SELECT count(*)::integer AS runs
            FROM (
                SELECT FROM evenhand.runs AS r
                WHERE r.pool_key = p_pool_key AND r.tenant = c.tenant AND r.state = 'queued'
                  AND r.ready_tick <= p_now_tick
                ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT least(c.runs, p_runs_max)
            ) AS r
        ) AS r);
BEGIN
    RETURN ARRAY(
        SELECT ROW(c.tenant, c.turns, (
            SELECT count(*)
            FROM (
                SELECT o.no
                FROM unnest(v_contenders) WITH ORDINALITY AS o (tenant, turns, runs, permits, no)
                CROSS JOIN LATERAL unnest(o.turns[:least(o.runs, cardinality(o.permits))]) AS t (at)
                ORDER BY t.at LIMIT p_runs_max
            ) AS g
            WHERE g.no = c.no
        ), c.permits)::evenhand.contender
        FROM unnest(v_contenders) WITH ORDINALITY AS c (tenant, turns, runs, permits, no)
        ORDER BY c.no);
END
$$;

-- Locks the best ready runs of a tenant, best first, and says where their rows are. Those that somebody else holds are
-- passed over for the next best, 64 of them at most.
CREATE FUNCTION evenhand.lock_top(p_pool evenhand.pools, p_tenant text, p_now_tick bigint, p_wanted integer) RETURNS tid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_locked tid[];
    v_most integer;
BEGIN
    FOREACH v_most IN ARRAY ARRAY[p_wanted, p_wanted + 64] LOOP
        v_locked := ARRAY(
            SELECT r.ctid
            FROM evenhand.top_runs(p_pool, p_tenant, p_now_tick, v_most) AS c
            CROSS JOIN LATERAL (
                SELECT r.ctid FROM evenhand.runs AS r
                WHERE r.id = c.id AND (r.state, r.rank, r.ready_tick)
                    IS NOT DISTINCT FROM ('queued'::evenhand.run_state, c.rank, c.ready_tick)
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS r
            LIMIT p_wanted);
        EXIT WHEN cardinality(v_locked) = p_wanted;
    END LOOP;
    RETURN v_locked;
END
$$;

-- The same for all contenders, each of whose runs takes its next turn. Of runs of one rank those are better that have
-- waited longer, and then the index has them in order: they are locked as they are read.
CREATE FUNCTION evenhand.lock_best(p_pool evenhand.pools, p_now_tick bigint, p_contenders evenhand.contender[])
RETURNS evenhand.winner[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT ROW(c.no, l.place, c.turns[l.turn], c.permits[l.turn], NULL)::evenhand.winner
        FROM unnest(p_contenders) WITH ORDINALITY AS c (tenant, turns, runs, permits, no)
        CROSS JOIN LATERAL (
            SELECT (SELECT r.rank FROM evenhand.runs AS r
                    WHERE r.pool_key = p_pool.pool_key AND r.tenant = c.tenant AND r.state = 'queued'
                    ORDER BY r.pool_key, r.tenant, r.rank DESC, r.ready_tick, r.id LIMIT 1)
                 - (SELECT r.rank FROM evenhand.runs AS r
                    WHERE r.pool_key = p_pool.pool_key AND r.tenant = c.tenant AND r.state = 'queued'
                    ORDER BY r.pool_key DESC, r.tenant DESC, r.rank, r.ready_tick DESC, r.id DESC LIMIT 1) AS spread
            OFFSET 0
        ) AS ranks
        CROSS JOIN LATERAL (
            SELECT row_number() OVER () AS turn, o.place
            FROM (
                SELECT r.ctid AS place
                FROM (
                    SELECT r.ctid AS place, r.rank, r.ready_tick FROM evenhand.runs AS r
                    WHERE r.pool_key = p_pool.pool_key AND r.tenant = c.tenant AND r.state = 'queued'
                      AND r.ready_tick <= p_now_tick
                    ORDER BY r.pool_key, r.tenant, r.rank DESC, r.ready_tick, r.id LIMIT c.runs + 64
                ) AS o
                JOIN evenhand.runs AS r ON r.ctid = o.place
                WHERE (r.state, r.rank, r.ready_tick)
                    IS NOT DISTINCT FROM ('queued'::evenhand.run_state, o.rank, o.ready_tick)
                LIMIT CASE ranks.spread WHEN 0 THEN c.runs ELSE 0 END FOR NO KEY UPDATE OF r SKIP LOCKED
            ) AS o
            UNION ALL
            SELECT o.turn, o.place
            FROM unnest(CASE WHEN ranks.spread > 0 THEN evenhand.lock_top(p_pool, c.tenant, p_now_tick, c.runs) END)
                WITH ORDINALITY AS o (place, turn)
        ) AS l
        WHERE c.runs > 0);
END
$$;

-- Locks a ready run, unless somebody else holds it or it has changed, and says where its row is. Only the primary key can
-- serve this search: a comparison that no index knows does not invite the planner to read another one from end to end.
CREATE FUNCTION evenhand.lock_ready(p_id uuid, p_rank integer, p_ready_tick bigint) RETURNS tid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_place tid;
BEGIN
    SELECT r.ctid INTO v_place FROM evenhand.runs AS r
    WHERE r.id = p_id
      AND (r.state, r.rank, r.ready_tick) IS NOT DISTINCT FROM ('queued'::evenhand.run_state, p_rank, p_ready_tick)
    FOR NO KEY UPDATE SKIP LOCKED;
    RETURN v_place;
END
$$;

-- Takes a permit of a team for a run: its number; nothing when all are taken; NULL when the team has no limit.
CREATE FUNCTION evenhand.take_team_permit(p_pool_key integer, p_team text, p_run_id uuid) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_permits integer[] := evenhand.lock_permits(p_pool_key, 'team', p_team, 1);
BEGIN
    UPDATE evenhand.permits AS p SET run_id = p_run_id
    WHERE p.pool_key = p_pool_key AND p.kind = 'team' AND p.name = p_team AND p.ordinal = v_permits[1];
    RETURN v_permits;
END
$$;

-- Locks the best runs of all tenants one by one, by score, as far as windows, teams and capacity suffice. Those that
-- others hold are passed over; each tenant's candidates are its best 64 beyond its window.
CREATE FUNCTION evenhand.lock_one_by_one(
    p_pool evenhand.pools, p_now_tick bigint, p_contenders evenhand.contender[], p_team_window integer,
    p_capacity_micros bigint, p_teams_limited boolean
) RETURNS evenhand.winner[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_winners evenhand.winner[] := '{}';
    v_claimed integer[] := array_fill(0, ARRAY[cardinality(p_contenders)]);
    v_of_team integer[] := '{}';
    v_full_teams bigint[] := '{}';
    -- NULL is what nothing is above.
    v_capacity bigint := p_capacity_micros;
    v_next record;
    v_place tid;
    v_permits integer[];
BEGIN
    FOR v_next IN
        SELECT c.no, c.turns, c.runs, c.permits, r.*, dense_rank() OVER (ORDER BY r.team) AS team_no
        FROM unnest(p_contenders) WITH ORDINALITY AS c (tenant, turns, runs, permits, no)
        CROSS JOIN LATERAL evenhand.top_runs(p_pool, c.tenant, p_now_tick, c.runs + 64) AS r
        WHERE c.runs > 0
        ORDER BY r.score DESC, r.ready_tick, r.id
    LOOP
        CONTINUE WHEN v_claimed[v_next.no] = v_next.runs OR coalesce(v_of_team[v_next.team_no], 0) >= p_team_window
            OR v_next.cost_micros > v_capacity OR v_next.team_no = ANY (v_full_teams);
        v_place := evenhand.lock_ready(v_next.id, v_next.rank, v_next.ready_tick);
        CONTINUE WHEN v_place IS NULL;
        IF p_teams_limited THEN
            v_permits := evenhand.take_team_permit(p_pool.pool_key, v_next.team, v_next.id);
            IF cardinality(v_permits) = 0 THEN
                v_full_teams := v_full_teams || v_next.team_no;
                CONTINUE;
            END IF;
        END IF;
        v_claimed[v_next.no] := v_claimed[v_next.no] + 1;
        v_of_team[v_next.team_no] := coalesce(v_of_team[v_next.team_no], 0) + 1;
        v_capacity := v_capacity - v_next.cost_micros;
        v_winners := v_winners || ROW(
            v_next.no, v_place, v_next.turns[v_claimed[v_next.no]], v_next.permits[v_claimed[v_next.no]],
            v_permits[1])::evenhand.winner;
    END LOOP;
    RETURN v_winners;
END
$$;

-- Writes the names of runs on the permits of their tenants that were locked for them. Each is looked up for itself, which
-- a join leaves to the planner: it would rather read all permits of the pool for each run when its statistics are old.
CREATE FUNCTION evenhand.take_tenant_permits(
    p_pool_key integer, p_winners evenhand.winner[]
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE evenhand.permits AS p SET run_id = h.run_id
    FROM (
        SELECT r.id AS run_id, k.place
        FROM unnest(p_winners) AS w
        JOIN evenhand.runs AS r ON r.ctid = w.place
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place FROM evenhand.permits AS k
            WHERE k.pool_key = p_pool_key AND k.kind = 'tenant' AND k.name = r.tenant AND k.ordinal = w.tenant_permit
            OFFSET 0
        ) AS k
        WHERE w.tenant_permit IS NOT NULL
    ) AS h
    WHERE p.ctid = h.place;
END
$$;

-- Whether a tenant has a ready run.
CREATE FUNCTION evenhand.is_ready(p_pool_key integer, p_tenant text, p_now_tick bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce((
        SELECT r.ready_tick FROM evenhand.runs AS r
        WHERE r.pool_key = p_pool_key AND r.tenant = p_tenant AND r.state = 'queued'
        ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1) <= p_now_tick, false);
END
$$;

-- The offsets whose tenant still has a ready run although its sequence got none.
CREATE FUNCTION evenhand.contended(
    p_shard_key integer, p_cycle_length integer, p_pool_key integer, p_first bigint, p_count integer,
    p_open int4multirange, p_contenders evenhand.contender[], p_winners evenhand.winner[], p_now_tick bigint
) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_left evenhand.contender[];
BEGIN
    IF cardinality(p_winners) = (SELECT sum(cardinality(c.turns)) FROM unnest(p_contenders) AS c) THEN
        RETURN '{}';
    END IF;
    -- From here on `runs` is how many were claimed.
    v_left := ARRAY(
        SELECT ROW(c.tenant, c.turns, w.claimed, NULL)::evenhand.contender
        FROM unnest(p_contenders) WITH ORDINALITY AS c (tenant, turns, runs, permits, no)
        CROSS JOIN LATERAL (SELECT count(*) AS claimed FROM unnest(p_winners) AS w WHERE w.no = c.no) AS w
        WHERE w.claimed < cardinality(c.turns) AND evenhand.is_ready(p_pool_key, c.tenant, p_now_tick)
        ORDER BY c.tenant);
    IF p_count > 256 THEN
        v_left := ARRAY(
            SELECT ROW(c.tenant, c.turns, c.runs, NULL)::evenhand.contender
            FROM ROWS FROM (
                unnest(v_left),
                evenhand.turns(p_shard_key, p_cycle_length, p_first, p_count, p_open,
                               ARRAY(SELECT l.tenant FROM unnest(v_left) AS l), NULL)
            ) AS c (tenant, some_turns, runs, permits, same_tenant, turns));
    END IF;
    RETURN ARRAY(SELECT t.at FROM unnest(v_left) AS c CROSS JOIN LATERAL unnest(c.turns[c.runs + 1:]) AS t (at));
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
    -- Whether there is any, of tenants and of teams: others pay for one look each, however many limits there are.
    v_limits evenhand.limit_kind[] := ARRAY(
        SELECT k.kind
        FROM unnest(enum_range(NULL::evenhand.limit_kind)) AS k (kind)
        CROSS JOIN LATERAL (
            SELECT FROM evenhand.limits AS l WHERE l.pool_key = p_pool.pool_key AND l.kind = k.kind LIMIT 1
        ) AS l);
    v_contenders evenhand.contender[];
    v_winners evenhand.winner[];
    v_expires_at timestamptz;
    v_contended integer[];
BEGIN
    v_contenders := evenhand.contenders(
        p_shard_key, p_cycle_length, p_pool.pool_key, p_first, p_count, v_open, p_runs_max, v_now_tick,
        'tenant' = ANY (v_limits));
    IF p_team_window IS NULL AND p_capacity_micros IS NULL AND NOT 'team' = ANY (v_limits) THEN
        -- Without teams and costs to mind, the choice is each tenant's best runs.
        v_winners := evenhand.lock_best(p_pool, v_now_tick, v_contenders);
    ELSE
        v_winners := evenhand.lock_one_by_one(
            p_pool, v_now_tick, v_contenders, p_team_window, p_capacity_micros, 'team' = ANY (v_limits));
    END IF;
    -- Read again under the locks, so that the attempts of a run were claimed in the order of their fences.
    v_now := evenhand.clock();
    v_expires_at := v_now + p_lease_ms * interval '1 millisecond';
    IF 'tenant' = ANY (v_limits) THEN
        PERFORM evenhand.take_tenant_permits(p_pool.pool_key, v_winners);
    END IF;
    -- The answer's rows are those of `run_row_of`, written out because a call for each run would cost as much as the rest.
    RETURN QUERY
    WITH started AS (
        UPDATE evenhand.runs AS r SET state = 'running', attempt = r.attempt + 1, fence = r.fence + 1
        FROM unnest(v_winners) AS w WHERE r.ctid = w.place
        RETURNING r.*, p_first + w.at AS sequence, w.tenant_permit, w.team_permit
    ), leased AS (
        INSERT INTO evenhand.leases (run_id, fence, shard_key, sequence, expires_at, tenant_permit, team_permit)
        SELECT s.id, s.fence, p_shard_key, s.sequence, v_expires_at, s.tenant_permit, s.team_permit
        FROM started AS s
    ), attempted AS (
        INSERT INTO evenhand.attempts (shard_key, sequence, run_id, fence, tenant, worker, ready_at, claimed_at)
        SELECT p_shard_key, s.sequence, s.id, s.fence, s.tenant, p_worker, s.ready_at, v_now
        FROM started AS s
    )
    SELECT 'ran', ARRAY[s.sequence], evenhand.micros(v_expires_at),
           s.id, p_pool.pool, s.tenant, s.team, s.kind, s.payload, s.value_class::text, s.base_priority, s.cost_micros,
           s.attempts_max, s.timeout_ms, s.idempotency_key, s.state::text, evenhand.micros(s.ready_at), s.attempt, s.fence,
           evenhand.micros(s.enqueued_at), evenhand.micros(s.finished_at), s.last_error,
           NULL::text[], NULL::bigint, NULL::bigint
    FROM started AS s;
    v_contended := evenhand.contended(
        p_shard_key, p_cycle_length, p_pool.pool_key, p_first, p_count, v_open, v_contenders, v_winners, v_now_tick);
    PERFORM evenhand.record_block(
        p_shard_key, p_first, p_open, ARRAY(SELECT w.at FROM unnest(v_winners) AS w), v_contended, v_now);
    IF v_contended <> '{}' THEN
        RETURN QUERY
        SELECT c.* FROM evenhand.about(
            'contended', ARRAY(SELECT p_first + c.at FROM unnest(v_contended) AS c (at))) AS c;
    END IF;
END
$$;

-- Writes down how the open sequences of a block ended: one row, or one for each gap between what is on record.
CREATE OR REPLACE FUNCTION evenhand.record_block(
    p_shard_key integer, p_first bigint, p_open int4multirange, p_ran integer[], p_contended integer[], p_now timestamptz
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO evenhand.outcomes (shard_key, first_sequence, count, recorded_at, ran, contended)
    SELECT p_shard_key, p_first + lower(g), upper(g) - lower(g), p_now,
           nullif(ARRAY(SELECT s.at - lower(g) FROM unnest(p_ran) AS s (at) WHERE g @> s.at ORDER BY s.at), '{}'),
           nullif(ARRAY(SELECT s.at - lower(g) FROM unnest(p_contended) AS s (at) WHERE g @> s.at ORDER BY s.at), '{}')
    FROM unnest(p_open) AS g;
END
$$;

-- A row of a round that names sequences only.
CREATE FUNCTION evenhand.about(p_outcome text, p_sequences bigint[]) RETURNS evenhand.round_row
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_row evenhand.round_row;
BEGIN
    v_row.outcome := p_outcome;
    v_row.sequences := p_sequences;
    RETURN v_row;
END
$$;

-- What is on record of a block: the worker's own runs while their leases live, or everybody's without a worker; whose
-- run has moved on; and what was contended or failed.
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
            SELECT l.run_id, coalesce(t.expires_at, l.expires_at) AS expires_at
            FROM evenhand.leases AS l LEFT JOIN evenhand.terms AS t ON t.term = l.term
            WHERE l.run_id = a.run_id AND l.fence = a.fence AND (p_worker IS NULL OR a.worker = p_worker) OFFSET 0
        ) AS l ON true
        WHERE a.shard_key = p_shard_key AND a.sequence BETWEEN p_first AND p_first + (p_count - 1)
    )
    SELECT 'ran', ARRAY[n.sequence], evenhand.micros(n.expires_at), v.*, NULL::text[], NULL::bigint, NULL::bigint
    FROM ran AS n
    CROSS JOIN LATERAL (SELECT r FROM evenhand.runs AS r WHERE r.id = n.run_id OFFSET 0) AS r
    CROSS JOIN LATERAL evenhand.run_row_of(r.r) AS v
    UNION ALL
    SELECT m.*
    FROM (SELECT array_agg(n.sequence) AS sequences FROM ran AS n WHERE n.run_id IS NULL HAVING count(*) > 0) AS n
    CROSS JOIN LATERAL evenhand.about('moved_on', n.sequences) AS m
    UNION ALL
    SELECT m.*
    FROM (
        SELECT array_agg(o.first_sequence + c.at) AS sequences
        FROM evenhand.outcomes AS o CROSS JOIN LATERAL unnest(o.contended || o.failed) AS c (at)
        WHERE o.shard_key = p_shard_key AND o.first_sequence BETWEEN p_first AND p_first + (p_count - 1)
        HAVING count(*) > 0
    ) AS n
    CROSS JOIN LATERAL evenhand.about('contended', n.sequences) AS m;
END
$$;

-- Claims against all sequences of a reservation, and records how each of them ended. At most `p_runs_max` runs are
-- claimed, of each team at most `p_team_window`, costing at most `p_capacity_micros` together; both may be NULL. Idle
-- sequences are not answered for. Asked again it answers the same. While the shard is active, what is ready afterwards is
-- told along.
CREATE FUNCTION evenhand.claim_round(
    p_shard text, p_digest bytea, p_first_sequence bigint, p_count integer, p_worker text, p_lease_ms bigint,
    p_runs_max integer, p_team_window integer, p_capacity_micros bigint
) RETURNS SETOF evenhand.round_row
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    -- Runs are joined to lists only, by place or id: with other joins an old statistic would read all of them for a few.
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET enable_memoize = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shard record;
    v_open int4multirange;
    v_now timestamptz;
    v_answer evenhand.round_row;
    v_look record;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    SELECT s.shard_key, s.cycle_length, s.digest, p AS pool INTO v_shard
    FROM evenhand.shards AS s JOIN evenhand.pools AS p ON p.pool_key = s.pool_key WHERE s.shard = p_shard;
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
        IF isempty(v_open) THEN
            RETURN;
        END IF;
    END IF;
    PERFORM evenhand.require_active(v_shard.shard_key, p_shard);
    PERFORM evenhand.hold_limits((v_shard.pool).pool_key);
    RETURN QUERY
    SELECT s.* FROM evenhand.settle_block(
        v_shard.shard_key, v_shard.cycle_length, v_shard.pool, p_first_sequence, p_count, v_open, p_worker, p_lease_ms,
        least(p_runs_max, p_count), p_team_window, p_capacity_micros) AS s;
    v_now := evenhand.clock();
    v_look := evenhand.look(
        v_shard.shard_key, (v_shard.pool).pool_key, evenhand.tick_of(v_now, (v_shard.pool).wait_tick_ms));
    v_answer.outcome := 'ready';
    v_answer.ready_tenants := v_look.tenants;
    v_answer.next_ready_at_us := v_look.next_tick * (v_shard.pool).wait_tick_ms * 1000;
    v_answer.store_time_us := evenhand.micros(v_now);
    RETURN NEXT v_answer;
END
$$;

-- A round over one reserved sequence whose tenant the caller knows. What was claimed against it is answered to whom it
-- was given, and to whoever takes over.
CREATE FUNCTION evenhand.claim(
    p_shard text, p_sequence bigint, p_tenant text, p_worker text, p_lease_ms bigint, p_takes_over boolean DEFAULT false
) RETURNS SETOF evenhand.round_row
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET enable_memoize = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shard record;
    v_pool record;
    v_outcome text;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    v_shard := evenhand.check_slot(p_shard, p_sequence, p_tenant);
    PERFORM evenhand.lock_reserved(v_shard.shard_key, p_shard, p_sequence);
    v_outcome := evenhand.outcome_of(v_shard.shard_key, p_sequence);
    IF v_outcome = 'failed' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('sequence %s has failed', p_sequence);
    END IF;
    IF v_outcome IS NOT NULL THEN
        RETURN QUERY
        SELECT r.* FROM evenhand.round_on_record(
            v_shard.shard_key, p_sequence, 1, CASE WHEN NOT p_takes_over THEN p_worker END) AS r
        WHERE r.outcome <> 'moved_on';
        IF v_outcome = 'ran' AND NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'EV009',
                MESSAGE = format('the run of sequence %s has ended or moved on, or is another worker''s', p_sequence);
        END IF;
        RETURN;
    END IF;
    PERFORM evenhand.require_active(v_shard.shard_key, p_shard);
    PERFORM evenhand.hold_limits(v_shard.pool_key);
    SELECT s.cycle_length, p AS pool INTO v_pool
    FROM evenhand.shards AS s JOIN evenhand.pools AS p ON p.pool_key = s.pool_key WHERE s.shard_key = v_shard.shard_key;
    RETURN QUERY
    SELECT s.* FROM evenhand.settle_block(
        v_shard.shard_key, v_pool.cycle_length, v_pool.pool, p_sequence, 1, int4multirange(int4range(0, 1)), p_worker,
        p_lease_ms, 1, NULL, NULL) AS s;
END
$$;

GRANT EXECUTE ON FUNCTION evenhand.claim_round, evenhand.claim TO evenhand_app;
