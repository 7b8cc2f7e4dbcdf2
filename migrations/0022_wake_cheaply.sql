-- Enqueueing more cheaply: who enqueues reads one number to learn that nobody sleeps, and a batch is one statement.

-- The second until which somebody sleeps, in any pool; nobody does while it is past or not set. A sequence shows its
-- value to everybody at once, whatever their snapshots, and no version of it dies. Only who holds the lock below sets it,
-- so it is never lower than the rows of `sleepers` that are committed ask for. A crash forgets both.
CREATE UNLOGGED SEQUENCE evenhand.asleep_until MINVALUE 0;

-- Sleepers come and go one at a time, each having seen the ones before it.
CREATE FUNCTION evenhand.lock_sleepers() RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_advisory_xact_lock(hashtextextended('evenhand.sleepers', 0));
END;

CREATE INDEX sleepers_by_end ON evenhand.sleepers (until);

CREATE FUNCTION evenhand.set_asleep_until(p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last timestamptz;
    v_second bigint;
BEGIN
    SELECT s.until INTO v_last FROM evenhand.sleepers AS s WHERE s.until >= p_now ORDER BY s.until DESC LIMIT 1;
    v_second := coalesce(ceil(date_part('epoch', v_last))::bigint, 0);
    IF v_second IS DISTINCT FROM pg_sequence_last_value('evenhand.asleep_until') THEN
        PERFORM setval('evenhand.asleep_until', v_second);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION evenhand.fall_asleep(
    p_shard text, p_worker text, p_longest_ms bigint,
    OUT pool_key integer, OUT until_us bigint, OUT sleeper bigint, OUT channel text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := evenhand.clock();
    v_pool_key integer;
    v_until timestamptz;
BEGIN
    PERFORM evenhand.require_read_committed();
    SELECT s.pool_key INTO v_pool_key FROM evenhand.shards AS s WHERE s.shard_key = evenhand.shard_key_of(p_shard);
    IF p_longest_ms NOT BETWEEN 0 AND 3600000 THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('a sleep is at most an hour, not %s ms', p_longest_ms);
    END IF;
    PERFORM evenhand.lock_sleepers();
    DELETE FROM evenhand.sleepers AS s
    WHERE s.ctid = ANY (ARRAY(
        SELECT d.ctid FROM evenhand.sleepers AS d WHERE d.pool_key = v_pool_key AND d.until < v_now
        ORDER BY d.pool_key, d.until LIMIT 100 FOR UPDATE SKIP LOCKED));
    v_until := v_now + p_longest_ms * interval '1 millisecond';
    INSERT INTO evenhand.sleepers AS s (pool_key, until, worker) VALUES (v_pool_key, v_until, p_worker)
    RETURNING s.sleeper INTO fall_asleep.sleeper;
    PERFORM evenhand.set_asleep_until(v_now);
    fall_asleep.pool_key := v_pool_key;
    until_us := evenhand.micros(v_until);
    channel := evenhand.wake_channel(v_pool_key);
END
$$;

CREATE OR REPLACE FUNCTION evenhand.wake_up(p_pool_key integer, p_until_us bigint, p_sleeper bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.lock_sleepers();
    DELETE FROM evenhand.sleepers AS s
    WHERE s.pool_key = p_pool_key AND s.until = timestamptz 'epoch' + p_until_us * interval '1 microsecond'
      AND s.sleeper = p_sleeper;
    PERFORM evenhand.set_asleep_until(evenhand.clock());
END
$$;

-- Notifies the sleepers of a pool, if it has any.
CREATE FUNCTION evenhand.notify_sleepers(p_pool_key integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
BEGIN
    -- Above read committed the sleepers of this moment cannot be seen.
    IF current_setting('transaction_isolation') <> 'read committed'
        OR EXISTS (SELECT FROM evenhand.sleepers AS s WHERE s.pool_key = p_pool_key AND s.until >= v_now) THEN
        PERFORM pg_notify(evenhand.wake_channel(p_pool_key), '');
    END IF;
END
$$;

-- Looks at the last moment before the commit whether somebody sleeps, once for each run that has come into a queue: so
-- it must cost next to nothing when nobody does, and has no settings beyond the path, since it reads no table.
-- Acts for the owner, since a deferred trigger runs as whoever commits.
CREATE OR REPLACE FUNCTION evenhand.wake_sleepers() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_sequence_last_value('evenhand.asleep_until') >= date_part('epoch', evenhand.clock()) THEN
        PERFORM evenhand.notify_sleepers(NEW.pool_key);
    END IF;
    RETURN NULL;
END
$$;

-- A UUIDv7 of a moment counted in 1/4096 ms; see evenhand.new_id.
CREATE FUNCTION evenhand.id_at(p_ticks bigint) RETURNS uuid
LANGUAGE sql VOLATILE
RETURN (lpad(to_hex(p_ticks >> 12), 12, '0') || '7' || lpad(to_hex(p_ticks & 4095), 3, '0')
        || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid;

-- Inserts runs in order, less those whose keys are taken, and answers with how many there are now. A statement that
-- changes runs reads the table's checks first, so one for all of them takes a fifth of the time.
CREATE FUNCTION evenhand.insert_runs(
    p_now timestamptz, p_ids uuid[], p_pools text[], p_tenants text[], p_teams text[], p_kinds text[],
    p_payloads jsonb[], p_value_classes text[], p_base_priorities integer[], p_costs_micros bigint[],
    p_ready_at_us bigint[], p_delays_ms bigint[], p_attempts_max integer[], p_timeouts_ms bigint[],
    p_idempotency_keys text[]
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_inserted bigint;
BEGIN
    -- Holds the pools still that are not registered yet; what ranks is read below.
    PERFORM evenhand.pool_to_rank_by(d.pool) FROM (SELECT DISTINCT u.pool FROM unnest(p_pools) AS u (pool)) AS d;
    INSERT INTO evenhand.runs (
        id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank, attempts_max, base_priority,
        value_class, tenant, team, kind, idempotency_key, payload
    )
    SELECT n.id, t.ready_tick,
           CASE WHEN w.wanted > p_now THEN to_timestamp(t.ready_tick * p.wait_tick_ms / 1000.0) ELSE p_now END,
           p_now, n.cost_micros, n.timeout_ms, p.pool_key,
           evenhand.rank_of(p, n.value_class::evenhand.value_class, n.base_priority), n.attempts_max, n.base_priority,
           n.value_class::evenhand.value_class, n.tenant, n.team, n.kind, n.idempotency_key, n.payload
    FROM unnest(p_ids, p_pools, p_tenants, p_teams, p_kinds, p_payloads, p_value_classes, p_base_priorities,
                p_costs_micros, p_ready_at_us, p_delays_ms, p_attempts_max, p_timeouts_ms, p_idempotency_keys)
         WITH ORDINALITY AS n (id, pool, tenant, team, kind, payload, value_class, base_priority, cost_micros,
                               ready_at_us, delay_ms, attempts_max, timeout_ms, idempotency_key, ordinal)
    JOIN evenhand.pools AS p ON p.pool = n.pool,
    LATERAL (SELECT coalesce(timestamptz 'epoch' + n.ready_at_us * interval '1 microsecond',
                             p_now + n.delay_ms * interval '1 millisecond')) AS w (wanted),
    LATERAL (SELECT evenhand.ready_tick_of(greatest(w.wanted, p_now), p_now, p.wait_tick_ms)) AS t (ready_tick)
    -- The first of a batch that has a key keeps it.
    ORDER BY n.ordinal
    ON CONFLICT (pool_key, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
    GET DIAGNOSTICS v_inserted = ROW_COUNT;
    RETURN v_inserted;
END
$$;

-- Enqueues runs, all or none, and answers in their order.
CREATE OR REPLACE FUNCTION evenhand.enqueue_many(
    p_pools text[], p_tenants text[], p_teams text[], p_kinds text[], p_payloads jsonb[], p_value_classes text[],
    p_base_priorities integer[], p_costs_micros bigint[], p_ready_at_us bigint[], p_delays_ms bigint[],
    p_attempts_max integer[], p_timeouts_ms bigint[], p_idempotency_keys text[]
) RETURNS TABLE (run_id uuid, created boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz;
    v_ticks bigint;
    v_count integer := cardinality(p_tenants);
    v_ids uuid[];
    v_outcome text;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    -- What prepares for many is not worth it for one.
    IF v_count > 1 THEN
        v_now := evenhand.clock();
        v_ticks := floor(extract(epoch FROM v_now) * 4096000)::bigint;
        v_ids := ARRAY(SELECT evenhand.id_at(v_ticks + i - 1) FROM generate_series(1, v_count) AS i);
        IF v_count = evenhand.insert_runs(
            v_now, v_ids, p_pools, p_tenants, p_teams, p_kinds, p_payloads, p_value_classes, p_base_priorities,
            p_costs_micros, p_ready_at_us, p_delays_ms, p_attempts_max, p_timeouts_ms, p_idempotency_keys) THEN
            RETURN QUERY SELECT i.id, true FROM unnest(v_ids) AS i (id);
            RETURN;
        END IF;
    END IF;
    FOR i IN 1 .. v_count LOOP
        created := false;
        IF v_count > 1 THEN
            run_id := v_ids[i];
            created := EXISTS (SELECT FROM evenhand.runs AS r WHERE r.id = v_ids[i]);
        END IF;
        IF NOT created THEN
            SELECT e.run_id, e.outcome INTO run_id, v_outcome
            FROM evenhand.enqueue(
                p_pools[i], p_tenants[i], p_teams[i], p_kinds[i], p_payloads[i], p_value_classes[i],
                p_base_priorities[i], p_costs_micros[i], p_ready_at_us[i], p_delays_ms[i], p_attempts_max[i],
                p_timeouts_ms[i], p_idempotency_keys[i], i - 1) AS e;
            IF v_outcome = 'conflict' THEN
                RAISE EXCEPTION USING ERRCODE = 'EV011',
                    MESSAGE = format('idempotency key %s names run %s, which has other content', p_idempotency_keys[i], run_id);
            END IF;
            created := v_outcome = 'created';
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
