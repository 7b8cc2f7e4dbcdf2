-- What to watch: backlogs, evidence, and the server behind them.

-- For how long the oldest transaction that holds a snapshot of this database has been open, in microseconds; 0 when
-- nobody holds one, and NULL when that cannot be told.
--
-- Anybody sees which sessions hold a snapshot. Since when is shown only for sessions of roles that the asking role is a
-- member of, or for all if it is a member of pg_read_all_stats. So the age of the oldest one that can be told is the
-- answer only if no other session, prepared transaction, standby or slot holds an older snapshot than that one.
CREATE FUNCTION evenhand.oldest_snapshot_age_us() RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now CONSTANT timestamptz := clock_timestamp();
    v_has_commit_times CONSTANT boolean := current_setting('track_commit_timestamp')::boolean;
    v_known_since timestamptz;
    v_known_age integer;
    v_untold_age integer;
BEGIN
    SELECT min(h.since) FILTER (WHERE h.since IS NOT NULL), max(h.xids) FILTER (WHERE h.since IS NOT NULL),
           max(h.xids) FILTER (WHERE h.since IS NULL)
    INTO v_known_since, v_known_age, v_untold_age
    FROM (
        SELECT a.xact_start AS since, greatest(age(a.backend_xmin), age(a.backend_xid)) AS xids
        FROM pg_stat_activity AS a
        WHERE (a.datname = current_database() OR a.datname IS NULL) AND a.pid <> pg_backend_pid()
          AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
          -- What vacuums hold keeps no other vacuum from its work.
          AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS v WHERE v.pid = a.pid)
        UNION ALL
        SELECT p.prepared, age(p.transaction) FROM pg_prepared_xacts AS p WHERE p.database = current_database()
        UNION ALL
        SELECT CASE WHEN v_has_commit_times THEN pg_xact_commit_timestamp(s.xmin) END, age(s.xmin)
        FROM pg_replication_slots AS s WHERE s.xmin IS NOT NULL
    ) AS h;
    IF v_untold_age > coalesce(v_known_age, 0) THEN
        RETURN NULL;
    END IF;
    RETURN coalesce(greatest(extract(epoch FROM v_now - v_known_since) * 1000000, 0)::bigint, 0);
END
$$;

-- The tenants of the shard's policy that have ready runs, and from when the oldest of each has been ready.
CREATE FUNCTION evenhand.backlogs(p_shard_key integer, p_now timestamptz, OUT tenants text[], OUT oldest_ready_at_us bigint[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pool evenhand.pools;
    v_from text := '';
    v_tenant text;
    v_ready_tick bigint;
BEGIN
    tenants := '{}';
    oldest_ready_at_us := '{}';
    SELECT p.* INTO STRICT v_pool FROM evenhand.pools AS p
    WHERE p.pool_key = (SELECT s.pool_key FROM evenhand.shards AS s WHERE s.shard_key = p_shard_key);
    -- Policy and queue are walked side by side, each leaping to where the other stands.
    LOOP
        SELECT t.tenant INTO v_tenant FROM evenhand.shard_tenants AS t
        WHERE t.shard_key = p_shard_key AND t.tenant >= v_from ORDER BY t.shard_key, t.tenant LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT r.tenant, r.ready_tick INTO v_from, v_ready_tick FROM evenhand.runs AS r
        WHERE r.pool_key = v_pool.pool_key AND r.tenant >= v_tenant AND r.state = 'queued'
        ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        CONTINUE WHEN v_from <> v_tenant;
        IF v_ready_tick <= evenhand.tick_of(p_now, v_pool.wait_tick_ms) THEN
            tenants := tenants || v_tenant;
            oldest_ready_at_us := oldest_ready_at_us || evenhand.oldest_of_tick(v_pool.pool_key, v_tenant, v_ready_tick);
        END IF;
        -- The smallest text behind it.
        v_from := v_tenant || chr(1);
    END LOOP;
END
$$;

-- From when the oldest queued run of a tick has been ready: among the first hundred, since a tick may have any number.
CREATE FUNCTION evenhand.oldest_of_tick(p_pool_key integer, p_tenant text, p_ready_tick bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT min(evenhand.micros(f.ready_at))
    FROM (
        SELECT r.ready_at FROM evenhand.runs AS r
        WHERE r.pool_key = p_pool_key AND r.tenant = p_tenant AND r.state = 'queued' AND r.ready_tick = p_ready_tick
        ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 100
    ) AS f;
END;

CREATE FUNCTION evenhand.health(
    p_shard text,
    OUT store_time_us bigint, OUT oldest_reservation_at_us bigint, OUT tenants text[], OUT oldest_ready_at_us bigint[],
    OUT oldest_snapshot_age_us bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shard_key integer := evenhand.shard_key_of(p_shard);
    v_now timestamptz := evenhand.clock();
BEGIN
    store_time_us := evenhand.micros(v_now);
    SELECT evenhand.micros(o.reserved_at) INTO oldest_reservation_at_us
    FROM evenhand.oldest_reservation(v_shard_key) AS o;
    SELECT b.tenants, b.oldest_ready_at_us INTO tenants, oldest_ready_at_us
    FROM evenhand.backlogs(v_shard_key, v_now) AS b;
    oldest_snapshot_age_us := evenhand.oldest_snapshot_age_us();
END
$$;

GRANT EXECUTE ON FUNCTION evenhand.health TO evenhand_app, evenhand_observer;
