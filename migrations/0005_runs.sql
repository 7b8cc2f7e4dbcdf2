-- Runs, and how they get into the queue.

CREATE TYPE evenhand.run_state AS ENUM ('queued', 'running', 'done', 'dead');
CREATE TYPE evenhand.value_class AS ENUM ('critical', 'standard', 'batch');

-- Nothing that a heartbeat changes stands here, so that heartbeats touch no index.
CREATE TABLE evenhand.runs (
    id uuid PRIMARY KEY,
    ready_tick bigint NOT NULL,
    ready_at timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    finished_at timestamptz,
    fence bigint NOT NULL DEFAULT 0,
    cost_micros bigint NOT NULL CHECK (cost_micros BETWEEN 0 AND 1000000000000000),
    timeout_ms bigint NOT NULL CHECK (timeout_ms BETWEEN 1 AND 604800000),
    pool_key integer NOT NULL,
    -- The part of the score that waiting does not change: value weight plus base priority.
    rank integer NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    attempts_max integer NOT NULL CHECK (attempts_max BETWEEN 1 AND 1000),
    base_priority integer NOT NULL CHECK (base_priority BETWEEN 0 AND 100),
    state evenhand.run_state NOT NULL DEFAULT 'queued',
    value_class evenhand.value_class NOT NULL,
    tenant text COLLATE "C" NOT NULL CHECK (octet_length(tenant) BETWEEN 1 AND 128),
    team text COLLATE "C" NOT NULL CHECK (octet_length(team) BETWEEN 1 AND 128),
    kind text COLLATE "C" NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 128),
    idempotency_key text COLLATE "C" CHECK (octet_length(idempotency_key) BETWEEN 1 AND 255),
    last_error text CHECK (octet_length(last_error) <= 4096),
    payload jsonb NOT NULL
);
-- The claim walks these two and nothing else: down the ranks, and up the ready ticks.
CREATE INDEX runs_by_rank ON evenhand.runs (pool_key, tenant, rank DESC, ready_tick, id) WHERE state = 'queued';
CREATE INDEX runs_by_tick ON evenhand.runs (pool_key, tenant, ready_tick, rank DESC, id) WHERE state = 'queued';
CREATE UNIQUE INDEX runs_by_key ON evenhand.runs (pool_key, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_dead ON evenhand.runs (id) WHERE state = 'dead';

CREATE FUNCTION evenhand.tick_of(p_time timestamptz, p_wait_tick_ms bigint) RETURNS bigint
LANGUAGE sql STABLE
RETURN floor(extract(epoch FROM p_time) * 1000 / p_wait_tick_ms)::bigint;

-- The tick from which a run is ready: the current one if its time has come, else the first that begins at or after it.
-- So a run is ready exactly when the tick of the clock has reached its own.
CREATE FUNCTION evenhand.ready_tick_of(p_ready_at timestamptz, p_now timestamptz, p_wait_tick_ms bigint) RETURNS bigint
LANGUAGE sql STABLE
RETURN CASE WHEN p_ready_at <= p_now THEN evenhand.tick_of(p_ready_at, p_wait_tick_ms)
            ELSE ceil(extract(epoch FROM p_ready_at) * 1000 / p_wait_tick_ms)::bigint END;

-- When a run that is wanted at a time starts to wait: now if the time is NULL or has come, else at the next wait tick.
CREATE FUNCTION evenhand.ready_time(
    p_wanted timestamptz, p_now timestamptz, p_wait_tick_ms bigint,
    OUT ready_at timestamptz, OUT ready_tick bigint
)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    ready_tick := evenhand.ready_tick_of(greatest(p_wanted, p_now), p_now, p_wait_tick_ms);
    ready_at := CASE WHEN p_wanted > p_now THEN to_timestamp(ready_tick * p_wait_tick_ms / 1000.0) ELSE p_now END;
END
$$;

CREATE FUNCTION evenhand.rank_of(p_pool evenhand.pools, p_class evenhand.value_class, p_base_priority integer)
RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN p_base_priority + CASE p_class
    WHEN 'critical' THEN p_pool.value_critical
    WHEN 'standard' THEN p_pool.value_standard
    ELSE p_pool.value_batch
END;

-- What was enqueued before the pool's first registration was ranked by the defaults.
CREATE FUNCTION evenhand.rank_again(p_pool_key integer) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE evenhand.runs AS r
    SET rank = evenhand.rank_of(p, r.value_class, r.base_priority),
        ready_tick = evenhand.ready_tick_of(r.ready_at, evenhand.clock(), p.wait_tick_ms)
    FROM evenhand.pools AS p
    WHERE p.pool_key = p_pool_key AND r.pool_key = p_pool_key AND r.state = 'queued';
END;

-- The pool as it ranks now. A pool that is not registered yet is held still until the transaction ends, since its
-- registration ranks again whatever it can see.
CREATE FUNCTION evenhand.pool_to_rank_by(p_pool text) RETURNS evenhand.pools
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pool evenhand.pools;
BEGIN
    SELECT p.* INTO v_pool FROM evenhand.pools AS p WHERE p.pool = p_pool;
    IF NOT FOUND OR NOT v_pool.registered THEN
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('evenhand.pools', evenhand.pool_key_of(p_pool)));
        SELECT p.* INTO STRICT v_pool FROM evenhand.pools AS p WHERE p.pool = p_pool;
    END IF;
    RETURN v_pool;
END
$$;

-- Enqueues one run in the caller's transaction. `outcome` is `created`; or `known`, when the key names a run of the same
-- content, whose id is returned; or `conflict`, when it names a run of other content, and nothing is enqueued.
-- Waiting starts at `p_ready_at` or `p_delay_ms` from now, or at once when both are NULL. `p_ordinal` orders runs that
-- are enqueued at one moment.
CREATE FUNCTION evenhand.enqueue(
    p_pool text, p_tenant text, p_team text, p_kind text, p_payload jsonb, p_value_class text, p_base_priority integer,
    p_cost_micros bigint, p_ready_at_us bigint, p_delay_ms bigint, p_attempts_max integer, p_timeout_ms bigint,
    p_idempotency_key text, p_ordinal bigint DEFAULT 0,
    OUT run_id uuid, OUT outcome text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_pool evenhand.pools := evenhand.pool_to_rank_by(p_pool);
    v_class evenhand.value_class := p_value_class::evenhand.value_class;
    v_wanted timestamptz := coalesce(
        timestamptz 'epoch' + p_ready_at_us * interval '1 microsecond',
        v_now + p_delay_ms * interval '1 millisecond');
    v_ready record;
BEGIN
    PERFORM evenhand.require_durable_commit();
    v_ready := evenhand.ready_time(v_wanted, v_now, v_pool.wait_tick_ms);
    INSERT INTO evenhand.runs (
        id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank, attempts_max, base_priority,
        value_class, tenant, team, kind, idempotency_key, payload
    ) VALUES (
        evenhand.new_id(v_now, p_ordinal), v_ready.ready_tick, v_ready.ready_at, v_now, p_cost_micros, p_timeout_ms,
        v_pool.pool_key, evenhand.rank_of(v_pool, v_class, p_base_priority), p_attempts_max, p_base_priority,
        v_class, p_tenant, p_team, p_kind, p_idempotency_key, p_payload
    )
    ON CONFLICT (pool_key, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id INTO run_id;
    IF FOUND THEN
        outcome := 'created';
        RETURN;
    END IF;
    SELECT r.id, CASE WHEN (r.tenant, r.team, r.kind, r.payload, r.value_class, r.base_priority, r.cost_micros,
                            r.attempts_max, r.timeout_ms)
                         = (p_tenant, p_team, p_kind, p_payload, v_class, p_base_priority, p_cost_micros,
                            p_attempts_max, p_timeout_ms)
                      THEN 'known' ELSE 'conflict' END
    INTO run_id, outcome
    FROM evenhand.runs AS r WHERE r.pool_key = v_pool.pool_key AND r.idempotency_key = p_idempotency_key;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the run that held the key was deleted at the same moment';
    END IF;
END
$$;

-- Enqueues runs, all or none, and answers in their order.
CREATE FUNCTION evenhand.enqueue_many(
    p_pools text[], p_tenants text[], p_teams text[], p_kinds text[], p_payloads jsonb[], p_value_classes text[],
    p_base_priorities integer[], p_costs_micros bigint[], p_ready_at_us bigint[], p_delays_ms bigint[],
    p_attempts_max integer[], p_timeouts_ms bigint[], p_idempotency_keys text[]
) RETURNS TABLE (run_id uuid, created boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_outcome text;
BEGIN
    PERFORM evenhand.require_read_committed();
    FOR i IN 1 .. cardinality(p_tenants) LOOP
        SELECT e.run_id, e.outcome INTO run_id, v_outcome
        FROM evenhand.enqueue(
            p_pools[i], p_tenants[i], p_teams[i], p_kinds[i], p_payloads[i], p_value_classes[i], p_base_priorities[i],
            p_costs_micros[i], p_ready_at_us[i], p_delays_ms[i], p_attempts_max[i], p_timeouts_ms[i],
            p_idempotency_keys[i], i - 1) AS e;
        IF v_outcome = 'conflict' THEN
            RAISE EXCEPTION USING ERRCODE = 'EV011',
                MESSAGE = format('idempotency key %s names run %s, which has other content', p_idempotency_keys[i], run_id);
        END IF;
        created := v_outcome = 'created';
        RETURN NEXT;
    END LOOP;
END
$$;

-- A run as callers see it.
CREATE TYPE evenhand.run_row AS (
    id uuid, pool text, tenant text, team text, kind text, payload jsonb, value_class text, base_priority integer,
    cost_micros bigint, attempts_max integer, timeout_ms bigint, idempotency_key text, state text, ready_at_us bigint,
    attempt integer, fence bigint, enqueued_at_us bigint, finished_at_us bigint, last_error text
);

CREATE FUNCTION evenhand.run_row_of(r evenhand.runs) RETURNS evenhand.run_row
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT r.id, p.pool, r.tenant, r.team, r.kind, r.payload, r.value_class::text, r.base_priority,
           r.cost_micros, r.attempts_max, r.timeout_ms, r.idempotency_key, r.state::text, evenhand.micros(r.ready_at),
           r.attempt, r.fence, evenhand.micros(r.enqueued_at), evenhand.micros(r.finished_at), r.last_error
    FROM evenhand.pools AS p WHERE p.pool_key = r.pool_key;
END;

CREATE FUNCTION evenhand.run(p_id uuid) RETURNS SETOF evenhand.run_row
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
BEGIN ATOMIC
    SELECT (evenhand.run_row_of(r)).* FROM evenhand.runs AS r WHERE r.id = p_id;
END;

-- Runs by id, behind `p_after`; a filter that is NULL lets every run through.
CREATE FUNCTION evenhand.runs(
    p_pool text, p_tenant text, p_kind text, p_state text, p_after uuid, p_limit integer
) RETURNS SETOF evenhand.run_row
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT (evenhand.run_row_of(r)).*
    FROM evenhand.runs AS r
    WHERE (p_pool IS NULL OR r.pool_key = (SELECT p.pool_key FROM evenhand.pools AS p WHERE p.pool = p_pool))
      AND (p_tenant IS NULL OR r.tenant = p_tenant)
      AND (p_kind IS NULL OR r.kind = p_kind)
      AND (p_state IS NULL OR r.state = p_state::evenhand.run_state)
      AND (p_after IS NULL OR r.id > p_after)
    ORDER BY r.id LIMIT p_limit;
END
$$;

CREATE FUNCTION evenhand.counts()
RETURNS TABLE (pool text, tenant text, queued bigint, running bigint, done bigint, dead bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.pool, r.tenant,
           count(*) FILTER (WHERE r.state = 'queued'), count(*) FILTER (WHERE r.state = 'running'),
           count(*) FILTER (WHERE r.state = 'done'), count(*) FILTER (WHERE r.state = 'dead')
    FROM evenhand.runs AS r JOIN evenhand.pools AS p ON p.pool_key = r.pool_key
    GROUP BY p.pool, r.tenant ORDER BY p.pool, r.tenant;
END;
