-- Pools, and the immutable policies that shards are bound to.

CREATE TABLE evenhand.pools (
    pool_key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pool text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(pool) BETWEEN 1 AND 128),
    -- Set by the first registration; until then the defaults rank what is enqueued.
    registered boolean NOT NULL DEFAULT false,
    value_critical integer NOT NULL DEFAULT 1000,
    value_standard integer NOT NULL DEFAULT 300,
    value_batch integer NOT NULL DEFAULT 100,
    aging_per_tick integer NOT NULL DEFAULT 40,
    max_aging_ticks bigint NOT NULL DEFAULT 10,
    starvation_ticks bigint NOT NULL DEFAULT 12,
    wait_tick_ms bigint NOT NULL DEFAULT 1000 CHECK (wait_tick_ms BETWEEN 100 AND 86400000),
    CHECK (max_aging_ticks <= starvation_ticks)
);

-- Reserving locks a shard's row and never changes it, so the row does not decay while a snapshot is held. No hot table
-- refers to it by a foreign key, which would lock it too.
CREATE TABLE evenhand.shards (
    shard_key integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(shard) BETWEEN 1 AND 128),
    pool_key integer NOT NULL UNIQUE REFERENCES evenhand.pools,
    cycle_length integer NOT NULL CHECK (cycle_length BETWEEN 1 AND 4096),
    digest bytea NOT NULL CHECK (octet_length(digest) = 32),
    canonical bytea NOT NULL,
    registered_at timestamptz NOT NULL
);

CREATE TABLE evenhand.shard_tenants (
    shard_key integer NOT NULL REFERENCES evenhand.shards,
    tenant text COLLATE "C" NOT NULL,
    weight integer NOT NULL CHECK (weight BETWEEN 1 AND 1024),
    starvation_bound integer NOT NULL CHECK (starvation_bound BETWEEN 1 AND 4096),
    PRIMARY KEY (shard_key, tenant)
);

CREATE TABLE evenhand.shard_slots (
    shard_key integer NOT NULL,
    slot integer NOT NULL CHECK (slot BETWEEN 0 AND 4095),
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (shard_key, slot),
    FOREIGN KEY (shard_key, tenant) REFERENCES evenhand.shard_tenants
);

CREATE TRIGGER shards_are_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON evenhand.shards
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
CREATE TRIGGER shard_tenants_are_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON evenhand.shard_tenants
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
CREATE TRIGGER shard_slots_are_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON evenhand.shard_slots
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
ALTER TABLE evenhand.shards ENABLE ALWAYS TRIGGER shards_are_immutable;
ALTER TABLE evenhand.shard_tenants ENABLE ALWAYS TRIGGER shard_tenants_are_immutable;
ALTER TABLE evenhand.shard_slots ENABLE ALWAYS TRIGGER shard_slots_are_immutable;

-- What pruning leaves behind of a shard's order.
CREATE TABLE evenhand.marks (
    shard_key integer PRIMARY KEY REFERENCES evenhand.shards,
    -- The greatest own time of any id that was pruned: an unknown id not later than this is expired.
    pruned_id_millis bigint,
    -- The greatest sequence that was pruned: the order never continues at or below it.
    pruned_through bigint NOT NULL DEFAULT -1,
    -- Where the next pass starts to look, so that it does not walk what earlier passes deleted.
    resume_from bigint NOT NULL DEFAULT 0
);
CREATE TRIGGER marks_stay BEFORE DELETE OR TRUNCATE ON evenhand.marks
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
ALTER TABLE evenhand.marks ENABLE ALWAYS TRIGGER marks_stay;

CREATE FUNCTION evenhand.refuse_policy(p_message text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'EV001', MESSAGE = p_message,
        HINT = 'Changing tenants, weights, pool or scoring means a new shard.';
END
$$;

-- The pool's key, made with the default scoring if the pool is new.
CREATE FUNCTION evenhand.pool_key_of(p_pool text) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pool_key integer;
BEGIN
    SELECT p.pool_key INTO v_pool_key FROM evenhand.pools AS p WHERE p.pool = p_pool;
    IF NOT FOUND THEN
        INSERT INTO evenhand.pools (pool) VALUES (p_pool) ON CONFLICT DO NOTHING;
        SELECT p.pool_key INTO STRICT v_pool_key FROM evenhand.pools AS p WHERE p.pool = p_pool;
    END IF;
    RETURN v_pool_key;
END
$$;

-- Settles how a pool is ranked: the first registration decides, later ones must agree.
CREATE FUNCTION evenhand.settle_scoring(p_pool_key integer, p_scoring bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pool evenhand.pools;
    v_scoring bigint[];
BEGIN
    SELECT p.* INTO STRICT v_pool FROM evenhand.pools AS p WHERE p.pool_key = p_pool_key FOR UPDATE;
    v_scoring := ARRAY[v_pool.value_critical, v_pool.value_standard, v_pool.value_batch, v_pool.aging_per_tick,
                       v_pool.max_aging_ticks, v_pool.starvation_ticks, v_pool.wait_tick_ms];
    IF v_pool.registered THEN
        IF v_scoring <> p_scoring THEN
            PERFORM evenhand.refuse_policy(format('pool %s is registered with another scoring', v_pool.pool));
        END IF;
        RETURN;
    END IF;
    UPDATE evenhand.pools AS p
    SET registered = true,
        value_critical = p_scoring[1], value_standard = p_scoring[2], value_batch = p_scoring[3],
        aging_per_tick = p_scoring[4], max_aging_ticks = p_scoring[5], starvation_ticks = p_scoring[6],
        wait_tick_ms = p_scoring[7]
    WHERE p.pool_key = p_pool_key;
    IF v_scoring <> p_scoring THEN
        PERFORM evenhand.rank_again(p_pool_key);
    END IF;
END
$$;

-- Whether a shard that is there already is the same registration.
CREATE FUNCTION evenhand.is_same_registration(
    p_shard text, p_digest bytea, p_cycle_length integer, p_canonical bytea, p_pool_key integer
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_shard evenhand.shards;
BEGIN
    SELECT s.* INTO v_shard FROM evenhand.shards AS s WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF (v_shard.digest, v_shard.cycle_length, v_shard.canonical) <> (p_digest, p_cycle_length, p_canonical) THEN
        PERFORM evenhand.refuse_policy(format('shard %s is bound to another policy', p_shard));
    END IF;
    IF v_shard.pool_key <> p_pool_key THEN
        PERFORM evenhand.refuse_policy(format('shard %s serves another pool', p_shard));
    END IF;
    RETURN true;
END
$$;

-- Binds a policy to its shard and the shard to its pool. `p_cycle` holds for each slot the position, from 1, of its
-- tenant in `p_tenants`. `p_scoring` holds the value weights of critical, standard and batch, aging per tick, most
-- aging ticks, starvation ticks, and the wait tick in milliseconds.
CREATE FUNCTION evenhand.register_policy(
    p_shard text, p_digest bytea, p_canonical bytea, p_tenants text[], p_weights integer[], p_bounds integer[],
    p_cycle integer[], p_pool text, p_scoring bigint[],
    OUT created boolean, OUT store_time_us bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pool_key integer;
    v_shard_key integer;
    v_other text;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    v_pool_key := evenhand.pool_key_of(p_pool);
    -- One registration at a time in a pool, and no enqueue that ranks by a scoring that is about to change.
    PERFORM pg_advisory_xact_lock(hashtextextended('evenhand.pools', v_pool_key));
    created := NOT evenhand.is_same_registration(p_shard, p_digest, cardinality(p_cycle), p_canonical, v_pool_key);
    IF created THEN
        SELECT s.shard INTO v_other FROM evenhand.shards AS s WHERE s.pool_key = v_pool_key;
        IF FOUND THEN
            PERFORM evenhand.refuse_policy(format('pool %s is served by shard %s', p_pool, v_other));
        END IF;
    END IF;
    PERFORM evenhand.settle_scoring(v_pool_key, p_scoring);
    IF created THEN
        INSERT INTO evenhand.shards (shard, pool_key, cycle_length, digest, canonical, registered_at)
        VALUES (p_shard, v_pool_key, cardinality(p_cycle), p_digest, p_canonical, evenhand.clock())
        ON CONFLICT (shard) DO NOTHING
        RETURNING shard_key INTO v_shard_key;
        IF NOT FOUND THEN
            -- Somebody registered the same shard for another pool at the same moment.
            PERFORM evenhand.is_same_registration(p_shard, p_digest, cardinality(p_cycle), p_canonical, v_pool_key);
        END IF;
        PERFORM evenhand.write_cycle(v_shard_key, p_shard, p_digest, p_canonical, p_tenants, p_weights, p_bounds, p_cycle);
        INSERT INTO evenhand.marks (shard_key) VALUES (v_shard_key);
    END IF;
    store_time_us := evenhand.micros(evenhand.clock());
END
$$;

-- Writes the cycle where claims and people can read it, and checks it against digest and weights once more.
CREATE FUNCTION evenhand.write_cycle(
    p_shard_key integer, p_shard text, p_digest bytea, p_canonical bytea, p_tenants text[], p_weights integer[],
    p_bounds integer[], p_cycle integer[]
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_digest <> sha256('evenhand/policy/v1'::bytea || '\x00'::bytea || p_canonical) THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('the digest for shard %s is not that of its policy', p_shard);
    END IF;
    INSERT INTO evenhand.shard_tenants (shard_key, tenant, weight, starvation_bound)
    SELECT p_shard_key, t.tenant, t.weight, t.bound
    FROM unnest(p_tenants, p_weights, p_bounds) AS t (tenant, weight, bound);
    INSERT INTO evenhand.shard_slots (shard_key, slot, tenant)
    SELECT p_shard_key, c.ordinal - 1, p_tenants[c.position]
    FROM unnest(p_cycle) WITH ORDINALITY AS c (position, ordinal);
    IF EXISTS (
        SELECT FROM evenhand.shard_tenants AS t
        WHERE t.shard_key = p_shard_key
          AND t.weight <> (SELECT count(*) FROM evenhand.shard_slots AS s
                           WHERE s.shard_key = p_shard_key AND s.tenant = t.tenant)
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('the cycle for shard %s does not give each tenant its weight', p_shard);
    END IF;
END
$$;

CREATE FUNCTION evenhand.load_policy(p_shard text, OUT canonical bytea, OUT digest bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    SELECT s.canonical, s.digest INTO canonical, digest FROM evenhand.shards AS s WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
END
$$;

CREATE FUNCTION evenhand.refuse_unknown_shard(p_shard text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'EV002', MESSAGE = format('no policy is registered for shard %s', p_shard);
END
$$;
