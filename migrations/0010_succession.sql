-- Pools outlive policies: a shard is active, waits to follow the active one, or was retired in favour of its successor.

-- The first shard of a pool is active from the start. Every other one comes after an older one.
ALTER TABLE evenhand.shards DROP CONSTRAINT shards_pool_key_key;
ALTER TABLE evenhand.shards ADD COLUMN founds_pool boolean NOT NULL DEFAULT true;
ALTER TABLE evenhand.shards ALTER COLUMN founds_pool DROP DEFAULT;
CREATE UNIQUE INDEX shards_that_found_pools ON evenhand.shards (pool_key) WHERE founds_pool;
CREATE INDEX shards_by_pool ON evenhand.shards (pool_key, shard_key);

-- The evidence of each change.
CREATE TABLE evenhand.retirements (
    old_shard_key integer PRIMARY KEY REFERENCES evenhand.shards,
    new_shard_key integer NOT NULL UNIQUE REFERENCES evenhand.shards CHECK (new_shard_key <> old_shard_key),
    retired_at timestamptz NOT NULL,
    -- How many sequences the old order has; NULL if its range was used up.
    old_length bigint CHECK (old_length >= 0)
);
CREATE TRIGGER retirements_are_evidence BEFORE UPDATE OR DELETE OR TRUNCATE ON evenhand.retirements
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
ALTER TABLE evenhand.retirements ENABLE ALWAYS TRIGGER retirements_are_evidence;

-- What follows from the evidence stands in the mark, which every reservation reads anyway.
CREATE TYPE evenhand.shard_standing AS ENUM ('active', 'pending', 'retired');
ALTER TABLE evenhand.marks ADD COLUMN standing evenhand.shard_standing NOT NULL DEFAULT 'active';
ALTER TABLE evenhand.marks ALTER COLUMN standing DROP DEFAULT;

-- Whoever writes a standing, it is the one that the evidence shows.
CREATE FUNCTION evenhand.follow_evidence() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_standing evenhand.shard_standing;
BEGIN
    SELECT CASE
        WHEN EXISTS (SELECT FROM evenhand.retirements AS t WHERE t.old_shard_key = s.shard_key) THEN 'retired'
        WHEN s.founds_pool THEN 'active'
        WHEN EXISTS (SELECT FROM evenhand.retirements AS t WHERE t.new_shard_key = s.shard_key) THEN 'active'
        ELSE 'pending'
    END INTO v_standing
    FROM evenhand.shards AS s WHERE s.shard_key = NEW.shard_key;
    IF NEW.standing IS DISTINCT FROM v_standing THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = format('by the evidence shard %s is %s, not %s', NEW.shard_key, v_standing, NEW.standing);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER standings_follow_evidence BEFORE INSERT OR UPDATE OF standing ON evenhand.marks
    FOR EACH ROW EXECUTE FUNCTION evenhand.follow_evidence();
ALTER TABLE evenhand.marks ENABLE ALWAYS TRIGGER standings_follow_evidence;

-- The shard that took the place of a retired one.
CREATE FUNCTION evenhand.successor_of(p_shard_key integer) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.shard FROM evenhand.retirements AS t JOIN evenhand.shards AS s ON s.shard_key = t.new_shard_key
    WHERE t.old_shard_key = p_shard_key;
END;

CREATE FUNCTION evenhand.refuse_standing(
    p_shard_key integer, p_shard text, p_standing evenhand.shard_standing
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_standing = 'retired' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV007',
            MESSAGE = format('shard %s was retired in favour of shard %s', p_shard, evenhand.successor_of(p_shard_key));
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'EV014', MESSAGE = format('shard %s is pending', p_shard),
        HINT = 'Retire the active shard of its pool in its favour.';
END
$$;

CREATE FUNCTION evenhand.require_active(p_shard_key integer, p_shard text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_standing evenhand.shard_standing;
BEGIN
    SELECT m.standing INTO STRICT v_standing FROM evenhand.marks AS m WHERE m.shard_key = p_shard_key;
    IF v_standing <> 'active' THEN
        PERFORM evenhand.refuse_standing(p_shard_key, p_shard, v_standing);
    END IF;
END
$$;

-- Queued runs of a pool whose tenants a shard's policy does not know; of all tenants, without a shard. One probe a tenant
-- that has queued runs, and then what is counted.
CREATE FUNCTION evenhand.unserved_by(p_pool_key integer, p_shard_key integer)
RETURNS TABLE (tenant text, queued bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    tenant := '';
    LOOP
        SELECT r.tenant INTO tenant FROM evenhand.runs AS r
        WHERE r.pool_key = p_pool_key AND r.tenant > unserved_by.tenant AND r.state = 'queued'
        ORDER BY r.pool_key, r.tenant, r.ready_tick, r.rank DESC, r.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF NOT EXISTS (
            SELECT FROM evenhand.shard_tenants AS t WHERE t.shard_key = p_shard_key AND t.tenant = unserved_by.tenant
        ) THEN
            SELECT count(*) INTO queued FROM evenhand.runs AS r
            WHERE r.pool_key = p_pool_key AND r.tenant = unserved_by.tenant AND r.state = 'queued';
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- Binds a policy to its shard and the shard to its pool. `p_cycle` holds for each slot the position, from 1, of its
-- tenant in `p_tenants`. `p_scoring` holds the value weights of critical, standard and batch, aging per tick, most
-- aging ticks, starvation ticks, and the wait tick in milliseconds.
DROP FUNCTION evenhand.register_policy;
CREATE FUNCTION evenhand.register_policy(
    p_shard text, p_digest bytea, p_canonical bytea, p_tenants text[], p_weights integer[], p_bounds integer[],
    p_cycle integer[], p_pool text, p_scoring bigint[],
    OUT created boolean, OUT standing text, OUT successor text, OUT unserved_tenants text[], OUT unserved_queued bigint[],
    OUT store_time_us bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_pool_key integer;
    v_shard_key integer;
    v_founds_pool boolean;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    v_pool_key := evenhand.pool_key_of(p_pool);
    -- One registration at a time in a pool, and no enqueue that ranks by a scoring that is about to change.
    PERFORM pg_advisory_xact_lock(hashtextextended('evenhand.pools', v_pool_key));
    created := NOT evenhand.is_same_registration(p_shard, p_digest, cardinality(p_cycle), p_canonical, v_pool_key);
    PERFORM evenhand.settle_scoring(v_pool_key, p_scoring);
    IF created THEN
        v_founds_pool := NOT EXISTS (SELECT FROM evenhand.shards AS s WHERE s.pool_key = v_pool_key);
        INSERT INTO evenhand.shards (shard, pool_key, founds_pool, cycle_length, digest, canonical, registered_at)
        VALUES (p_shard, v_pool_key, v_founds_pool, cardinality(p_cycle), p_digest, p_canonical, evenhand.clock())
        ON CONFLICT (shard) DO NOTHING
        RETURNING shard_key INTO v_shard_key;
        IF NOT FOUND THEN
            -- Somebody registered the same shard for another pool at the same moment.
            PERFORM evenhand.is_same_registration(p_shard, p_digest, cardinality(p_cycle), p_canonical, v_pool_key);
        END IF;
        PERFORM evenhand.write_cycle(v_shard_key, p_shard, p_digest, p_canonical, p_tenants, p_weights, p_bounds, p_cycle);
        INSERT INTO evenhand.marks (shard_key, standing)
        VALUES (v_shard_key, CASE WHEN v_founds_pool THEN 'active'::evenhand.shard_standing ELSE 'pending' END);
    END IF;
    SELECT s.standing, s.successor INTO standing, successor FROM evenhand.standing(p_shard) AS s;
    SELECT u.tenants, u.queued INTO unserved_tenants, unserved_queued
    FROM evenhand.unserved_arrays(v_pool_key, evenhand.shard_key_of(p_shard)) AS u;
    store_time_us := evenhand.micros(evenhand.clock());
END
$$;

CREATE FUNCTION evenhand.unserved_arrays(
    p_pool_key integer, p_shard_key integer,
    OUT tenants text[], OUT queued bigint[]
)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(u.tenant), '{}'), coalesce(array_agg(u.queued), '{}')
    FROM evenhand.unserved_by(p_pool_key, p_shard_key) AS u;
END;

-- `active`, `pending`, or `retired` in favour of a successor.
CREATE FUNCTION evenhand.standing(p_shard text, OUT standing text, OUT successor text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    SELECT m.standing, evenhand.successor_of(m.shard_key) INTO standing, successor
    FROM evenhand.shards AS s JOIN evenhand.marks AS m ON m.shard_key = s.shard_key
    WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
END
$$;

-- The key of a pool's active shard, NULL if the pool has none.
CREATE FUNCTION evenhand.active_shard_key(p_pool_key integer) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.shard_key FROM evenhand.shards AS s JOIN evenhand.marks AS m ON m.shard_key = s.shard_key
    WHERE s.pool_key = p_pool_key AND m.standing = 'active';
END;

CREATE FUNCTION evenhand.active_policy(p_pool text, OUT shard text, OUT canonical bytea, OUT digest bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    SELECT s.shard, s.canonical, s.digest INTO shard, canonical, digest
    FROM evenhand.pools AS p JOIN evenhand.shards AS s ON s.shard_key = evenhand.active_shard_key(p.pool_key)
    WHERE p.pool = p_pool;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'EV002', MESSAGE = format('pool %s has no active shard', p_pool);
    END IF;
END
$$;

-- Puts the pending shard `p_new` in the place of the active shard `p_old`. Asked again, it answers the same.
CREATE FUNCTION evenhand.retire(
    p_old text, p_new text,
    OUT created boolean, OUT retired_at_us bigint, OUT old_length bigint, OUT pool text, OUT unserved_tenants text[],
    OUT unserved_queued bigint[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_old evenhand.shards;
    v_new evenhand.shards;
    v_retirement evenhand.retirements;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    SELECT s.* INTO v_old FROM evenhand.shards AS s WHERE s.shard_key = evenhand.shard_key_of(p_old);
    SELECT s.* INTO v_new FROM evenhand.shards AS s WHERE s.shard_key = evenhand.shard_key_of(p_new);
    SELECT p.pool INTO STRICT pool FROM evenhand.pools AS p WHERE p.pool_key = v_new.pool_key;
    -- Counted before anything is locked, since it may take a while.
    SELECT u.tenants, u.queued INTO unserved_tenants, unserved_queued
    FROM evenhand.unserved_arrays(v_new.pool_key, v_new.shard_key) AS u;
    -- Whoever reserves in the old order holds its row, so its length is settled from here on.
    PERFORM FROM evenhand.shards AS s WHERE s.shard_key IN (v_old.shard_key, v_new.shard_key)
    ORDER BY s.shard_key FOR NO KEY UPDATE;
    SELECT t.* INTO v_retirement FROM evenhand.retirements AS t
    WHERE t.old_shard_key = v_old.shard_key AND t.new_shard_key = v_new.shard_key;
    created := NOT FOUND;
    IF created THEN
        PERFORM evenhand.check_succession(v_old, v_new);
        INSERT INTO evenhand.retirements (old_shard_key, new_shard_key, retired_at, old_length)
        SELECT v_old.shard_key, v_new.shard_key, greatest(evenhand.clock(), n.newest_at), n.next_sequence
        FROM evenhand.next_sequence(v_old.shard_key) AS n
        RETURNING retirements.* INTO v_retirement;
        UPDATE evenhand.marks AS m SET standing = 'retired' WHERE m.shard_key = v_old.shard_key;
        UPDATE evenhand.marks AS m SET standing = 'active' WHERE m.shard_key = v_new.shard_key;
    END IF;
    retired_at_us := evenhand.micros(v_retirement.retired_at);
    old_length := v_retirement.old_length;
END
$$;

CREATE FUNCTION evenhand.check_succession(p_old evenhand.shards, p_new evenhand.shards) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_standing evenhand.shard_standing;
BEGIN
    IF p_old.pool_key <> p_new.pool_key THEN
        RAISE EXCEPTION USING ERRCODE = 'EV001',
            MESSAGE = format('shards %s and %s serve different pools', p_old.shard, p_new.shard);
    END IF;
    SELECT m.standing INTO STRICT v_standing FROM evenhand.marks AS m WHERE m.shard_key = p_old.shard_key;
    IF v_standing = 'retired' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV001',
            MESSAGE = format('shard %s was retired in favour of shard %s', p_old.shard, evenhand.successor_of(p_old.shard_key));
    ELSIF v_standing <> 'active' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV001', MESSAGE = format('shard %s is %s, not active', p_old.shard, v_standing);
    END IF;
    SELECT m.standing INTO STRICT v_standing FROM evenhand.marks AS m WHERE m.shard_key = p_new.shard_key;
    IF v_standing <> 'pending' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV001', MESSAGE = format('shard %s is %s, not pending', p_new.shard, v_standing);
    END IF;
END
$$;

-- Queued runs that no active shard serves, by pool and tenant.
CREATE FUNCTION evenhand.unserved() RETURNS TABLE (pool text, tenant text, queued bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
BEGIN ATOMIC
    SELECT p.pool, u.tenant, u.queued
    FROM evenhand.pools AS p
    CROSS JOIN LATERAL evenhand.unserved_by(p.pool_key, evenhand.active_shard_key(p.pool_key)) AS u
    ORDER BY p.pool, u.tenant;
END;

-- From here on: what a reservation costs. Each transaction sets up anew every statement, every expression and every
-- function that it uses, at some microseconds each. So there are few of them on the way that nearly every reservation
-- takes, and whatever is not plainly in order leaves that way and is looked at again.

-- A CHECK is parsed by each statement that inserts. The trigger checks the same.
ALTER TABLE evenhand.reservations DROP CONSTRAINT reservations_first_sequence_check;
ALTER TABLE evenhand.reservations DROP CONSTRAINT reservations_count_check;

CREATE OR REPLACE FUNCTION evenhand.id_millis(p_id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN ('x' || replace(left(p_id::text, 13), '-', ''))::bit(48)::bigint;

-- Whether an id that is known names the reservation that is asked for.
CREATE FUNCTION evenhand.check_known_id(
    p_id uuid, p_shard_key integer, p_count integer, p_known_shard_key integer, p_known_count integer
) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF p_known_shard_key <> p_shard_key THEN
        RAISE EXCEPTION USING ERRCODE = 'EV003', MESSAGE = format('id %s is known under another shard', p_id);
    END IF;
    IF p_known_count <> p_count THEN
        RAISE EXCEPTION USING ERRCODE = 'EV003',
            MESSAGE = format('id %s took %s sequences, not %s', p_id, p_known_count, p_count);
    END IF;
END
$$;

-- Refuses an unknown id in a shard that is not active, one that may have been used and forgotten, and one that comes from
-- another clock.
DROP FUNCTION evenhand.check_new_id;
CREATE FUNCTION evenhand.check_new_id(p_shard_key integer, p_shard text, p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_id_millis bigint := evenhand.id_millis(p_id);
    v_skew_max_ms CONSTANT bigint := 300000;
    v_newest_at timestamptz;
BEGIN
    PERFORM evenhand.require_active(p_shard_key, p_shard);
    IF substr(p_id::text, 15, 1) <> '7' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('id %s is not a version 7 UUID', p_id);
    END IF;
    IF EXISTS (SELECT FROM evenhand.marks AS m WHERE m.shard_key = p_shard_key AND m.pruned_id_millis >= v_id_millis) THEN
        RAISE EXCEPTION USING ERRCODE = 'EV004',
            MESSAGE = format('id %s is not later than the newest pruned one', p_id),
            HINT = 'It may have been reserved and pruned. Mint a new id.';
    END IF;
    IF v_id_millis > evenhand.millis(p_now) + v_skew_max_ms THEN
        -- A clock that has stepped back must not refuse the ids that it gave out before.
        SELECT n.newest_at INTO v_newest_at FROM evenhand.next_sequence(p_shard_key) AS n;
        IF v_newest_at IS NULL OR v_id_millis > evenhand.millis(v_newest_at) + v_skew_max_ms THEN
            RAISE EXCEPTION USING ERRCODE = 'EV005',
                MESSAGE = format('id %s is %s ms ahead of the store''s clock', p_id, v_id_millis - evenhand.millis(p_now)),
                HINT = 'Mint ids from the store''s clock.';
        END IF;
    END IF;
END
$$;

CREATE FUNCTION evenhand.refuse_lost_order(p_pruned_through bigint, p_last bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'EV008',
        MESSAGE = format('sequences up to %s were pruned, but the newest reservation ends at %s', p_pruned_through, p_last);
END
$$;

-- Where a shard's order continues: behind its newest reservation. NULL once the range is used up.
CREATE OR REPLACE FUNCTION evenhand.next_sequence(
    p_shard_key integer,
    OUT next_sequence bigint, OUT newest_at timestamptz
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last bigint;
    v_pruned_through bigint;
BEGIN
    SELECT m.pruned_through INTO STRICT v_pruned_through FROM evenhand.marks AS m WHERE m.shard_key = p_shard_key;
    SELECT r.first_sequence + (r.count - 1), r.reserved_at INTO v_last, newest_at
    FROM evenhand.reservations AS r WHERE r.shard_key = p_shard_key
    ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1;
    v_last := coalesce(v_last, -1);
    -- The newest reservation is never pruned, so an order that ends at or before a pruned sequence has lost rows.
    IF v_last <= v_pruned_through AND v_pruned_through >= 0 THEN
        PERFORM evenhand.refuse_lost_order(v_pruned_through, v_last);
    END IF;
    next_sequence := CASE WHEN v_last < 9223372036854775807 THEN v_last + 1 END;
END
$$;

-- Every insert, whoever makes it, continues the order. `first_sequence` may be left out; a wrong one is refused. Whether
-- the newest reservation is lost while older ones stayed is not seen here, but by `reserve` and `cursor`.
--
-- No search path is set here, since it would be set for each row: only the owner can insert, and `reserve` sets its own.
CREATE OR REPLACE FUNCTION evenhand.continue_order() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    v_first bigint;
    v_count integer;
    v_newest_at timestamptz;
BEGIN
    SELECT r.first_sequence, r.count, r.reserved_at INTO v_first, v_count, v_newest_at
    FROM evenhand.reservations AS r WHERE r.shard_key = NEW.shard_key
    ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1;
    -- Two of the longest blocks fit before the end of the range.
    IF v_first < 9223372036852678656 AND v_newest_at <= NEW.reserved_at AND NEW.first_sequence IS NULL
        AND NEW.count BETWEEN 1 AND 1048576
    THEN
        NEW.first_sequence := v_first + v_count;
        RETURN NEW;
    END IF;
    -- The first of its shard, near the end of the range, behind a clock that stepped back, made by hand, or wrong.
    SELECT n.next_sequence INTO v_first FROM evenhand.next_sequence(NEW.shard_key) AS n;
    IF NEW.count NOT BETWEEN 1 AND 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = format('a reservation takes 1 to 1048576 sequences, not %s', NEW.count);
    END IF;
    IF v_first IS NULL OR v_first > 9223372036854775807 - (NEW.count - 1) THEN
        RAISE EXCEPTION USING ERRCODE = 'EV006',
            MESSAGE = format('%s sequences do not fit before the end of the range', NEW.count);
    END IF;
    IF coalesce(NEW.first_sequence, v_first) <> v_first THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = format('the order continues at %s, not at %s', v_first, NEW.first_sequence);
    END IF;
    NEW.first_sequence := v_first;
    -- Time never runs backwards within a shard, even if the clock does.
    NEW.reserved_at := greatest(NEW.reserved_at, v_newest_at);
    RETURN NEW;
END
$$;

-- Takes the next sequences. The order is the contract: lock, look up the id, read the mark, read the cursor. The same
-- statement reads id and mark, and so at one moment: pruning changes both at once. The trigger reads the cursor.
CREATE OR REPLACE FUNCTION evenhand.reserve(
    p_shard text, p_id uuid, p_digest bytea, p_cycle_length integer, p_count integer,
    OUT first_sequence bigint, OUT reserved_at_us bigint, OUT store_time_us bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard_key integer;
    v_digest bytea;
    v_cycle_length integer;
    v_now timestamptz;
    v_pruned_through bigint;
    v_known_shard_key integer;
    v_known_count integer;
    v_reserved_at timestamptz;
    v_id_millis bigint;
    v_is_plainly_new boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'on' THEN
        PERFORM evenhand.require_read_committed();
        PERFORM evenhand.require_durable_commit();
    END IF;
    SELECT s.shard_key, s.digest, s.cycle_length INTO v_shard_key, v_digest, v_cycle_length
    FROM evenhand.shards AS s WHERE s.shard = p_shard FOR NO KEY UPDATE;
    IF (v_digest = p_digest AND v_cycle_length = p_cycle_length) IS NOT TRUE THEN
        PERFORM evenhand.shard_key_of(p_shard);
        PERFORM evenhand.refuse_policy(format('shard %s is bound to another policy', p_shard));
    END IF;
    v_now := evenhand.clock();
    store_time_us := evenhand.micros(v_now);
    v_id_millis := evenhand.id_millis(p_id);
    SELECT m.pruned_through, r.shard_key, r.count, r.first_sequence, r.reserved_at,
           r.id IS NULL AND m.standing = 'active' AND (m.pruned_id_millis < v_id_millis) IS NOT FALSE
               AND v_id_millis <= store_time_us / 1000 + 300000 AND p_id::text LIKE '______________7%'
    INTO v_pruned_through, v_known_shard_key, v_known_count, first_sequence, v_reserved_at, v_is_plainly_new
    FROM evenhand.marks AS m LEFT JOIN evenhand.reservations AS r ON r.id = p_id
    WHERE m.shard_key = v_shard_key;
    IF v_is_plainly_new IS NOT TRUE THEN
        IF v_known_count IS NOT NULL THEN
            PERFORM evenhand.check_known_id(p_id, v_shard_key, p_count, v_known_shard_key, v_known_count);
            reserved_at_us := evenhand.micros(v_reserved_at);
            RETURN;
        END IF;
        PERFORM evenhand.check_new_id(v_shard_key, p_shard, p_id, v_now);
    END IF;
    INSERT INTO evenhand.reservations (id, reserved_at, shard_key, count)
    VALUES (p_id, v_now, v_shard_key, p_count)
    RETURNING reservations.first_sequence, reservations.reserved_at INTO first_sequence, v_reserved_at;
    reserved_at_us := store_time_us;
    IF v_reserved_at <> v_now OR first_sequence <= v_pruned_through THEN
        IF first_sequence <= v_pruned_through THEN
            PERFORM evenhand.refuse_lost_order(v_pruned_through, first_sequence - 1);
        END IF;
        reserved_at_us := evenhand.micros(v_reserved_at);
    END IF;
END
$$;

-- The tenants of an active shard's policy that have a ready run, and when the next of the others will have one. Policy and
-- queue are walked side by side, each leaping to where the other stands, so that neither idle tenants nor tenants outside
-- the policy are read one by one.
DROP FUNCTION evenhand.ready_tenants;
CREATE FUNCTION evenhand.ready_tenants(
    p_shard text,
    OUT tenants text[], OUT next_ready_at_us bigint, OUT store_time_us bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shard record;
    v_now timestamptz := evenhand.clock();
    v_now_tick bigint;
    v_next_tick bigint;
    v_from text := '';
    v_tenant text;
    v_ready_tick bigint;
BEGIN
    SELECT s.shard_key, s.pool_key, p.wait_tick_ms INTO v_shard
    FROM evenhand.shards AS s JOIN evenhand.pools AS p ON p.pool_key = s.pool_key WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
    PERFORM evenhand.require_active(v_shard.shard_key, p_shard);
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
            ELSE
                v_next_tick := least(v_next_tick, v_ready_tick);
            END IF;
            -- The smallest text behind it.
            v_from := v_tenant || chr(1);
        END IF;
    END LOOP;
    -- A run is ready when the clock reaches its tick.
    next_ready_at_us := v_next_tick * v_shard.wait_tick_ms * 1000;
    store_time_us := evenhand.micros(v_now);
END
$$;

GRANT EXECUTE ON FUNCTION evenhand.register_policy, evenhand.retire TO evenhand_app;
GRANT EXECUTE ON FUNCTION
    evenhand.standing, evenhand.active_policy, evenhand.unserved, evenhand.ready_tenants
TO evenhand_app, evenhand_observer;
GRANT SELECT ON evenhand.retirements TO evenhand_observer;
