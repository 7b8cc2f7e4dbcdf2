-- The durable order: one row a reservation, append only.

CREATE TABLE evenhand.reservations (
    id uuid PRIMARY KEY,
    first_sequence bigint NOT NULL CHECK (first_sequence >= 0),
    reserved_at timestamptz NOT NULL,
    shard_key integer NOT NULL,
    count integer NOT NULL CHECK (count BETWEEN 1 AND 1048576),
    UNIQUE (shard_key, first_sequence)
);

-- Where a shard's order continues: behind its newest reservation. NULL once the range is used up.
CREATE FUNCTION evenhand.next_sequence(p_shard_key integer, OUT next_sequence bigint, OUT newest_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last bigint := -1;
    v_pruned_through bigint;
BEGIN
    SELECT m.pruned_through INTO STRICT v_pruned_through FROM evenhand.marks AS m WHERE m.shard_key = p_shard_key;
    SELECT r.first_sequence + (r.count - 1), r.reserved_at INTO v_last, newest_at
    FROM evenhand.reservations AS r WHERE r.shard_key = p_shard_key
    ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1;
    v_last := coalesce(v_last, -1);
    -- The newest reservation is never pruned, so an order that ends at or before a pruned sequence has lost rows.
    IF v_last <= v_pruned_through AND v_pruned_through >= 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'EV008',
            MESSAGE = format('sequences up to %s were pruned, but the newest reservation ends at %s', v_pruned_through, v_last);
    END IF;
    next_sequence := CASE WHEN v_last < 9223372036854775807 THEN v_last + 1 END;
END
$$;

-- Every insert, whoever makes it, continues the order. `first_sequence` may be left out; a wrong one is refused.
CREATE FUNCTION evenhand.continue_order() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_next bigint;
    v_newest_at timestamptz;
BEGIN
    SELECT n.next_sequence, n.newest_at INTO v_next, v_newest_at FROM evenhand.next_sequence(NEW.shard_key) AS n;
    IF v_next IS NULL OR v_next > 9223372036854775807 - (NEW.count - 1) THEN
        RAISE EXCEPTION USING ERRCODE = 'EV006',
            MESSAGE = format('%s sequences do not fit before the end of the range', NEW.count);
    END IF;
    IF coalesce(NEW.first_sequence, v_next) <> v_next THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = format('the order continues at %s, not at %s', v_next, NEW.first_sequence);
    END IF;
    NEW.first_sequence := v_next;
    -- Time never runs backwards within a shard, even if the clock does.
    NEW.reserved_at := greatest(NEW.reserved_at, v_newest_at);
    RETURN NEW;
END
$$;
CREATE TRIGGER reservations_continue_the_order BEFORE INSERT ON evenhand.reservations
    FOR EACH ROW EXECUTE FUNCTION evenhand.continue_order();
CREATE TRIGGER reservations_are_evidence BEFORE UPDATE OR TRUNCATE ON evenhand.reservations
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
ALTER TABLE evenhand.reservations ENABLE ALWAYS TRIGGER reservations_continue_the_order;
ALTER TABLE evenhand.reservations ENABLE ALWAYS TRIGGER reservations_are_evidence;

-- Takes the next sequences. The order is the contract: lock, look up the id, read the mark, read the cursor.
CREATE FUNCTION evenhand.reserve(
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
    v_known_shard_key integer;
    v_known_count integer;
    v_reserved_at timestamptz;
    v_now timestamptz;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    SELECT s.shard_key, s.digest, s.cycle_length INTO v_shard_key, v_digest, v_cycle_length
    FROM evenhand.shards AS s WHERE s.shard = p_shard FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
    IF v_digest <> p_digest OR v_cycle_length <> p_cycle_length THEN
        PERFORM evenhand.refuse_policy(format('shard %s is bound to another policy', p_shard));
    END IF;
    v_now := evenhand.clock();
    store_time_us := evenhand.micros(v_now);
    SELECT r.shard_key, r.count, r.first_sequence, r.reserved_at
    INTO v_known_shard_key, v_known_count, first_sequence, v_reserved_at
    FROM evenhand.reservations AS r WHERE r.id = p_id;
    IF FOUND THEN
        IF v_known_shard_key <> v_shard_key THEN
            RAISE EXCEPTION USING ERRCODE = 'EV003', MESSAGE = format('id %s is known under another shard', p_id);
        END IF;
        IF v_known_count <> p_count THEN
            RAISE EXCEPTION USING ERRCODE = 'EV003',
                MESSAGE = format('id %s took %s sequences, not %s', p_id, v_known_count, p_count);
        END IF;
        reserved_at_us := evenhand.micros(v_reserved_at);
        RETURN;
    END IF;
    PERFORM evenhand.check_new_id(v_shard_key, p_id, v_now);
    INSERT INTO evenhand.reservations (id, reserved_at, shard_key, count)
    VALUES (p_id, v_now, v_shard_key, p_count)
    RETURNING reservations.first_sequence, reservations.reserved_at INTO first_sequence, v_reserved_at;
    reserved_at_us := evenhand.micros(v_reserved_at);
END
$$;

-- Refuses an unknown id that may have been used and forgotten, or that comes from another clock.
CREATE FUNCTION evenhand.check_new_id(p_shard_key integer, p_id uuid, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_id_millis bigint := evenhand.id_millis(p_id);
    v_skew_max_ms CONSTANT bigint := 300000;
    v_newest_at timestamptz;
BEGIN
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

CREATE FUNCTION evenhand.shard_key_of(p_shard text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_shard_key integer;
BEGIN
    SELECT s.shard_key INTO v_shard_key FROM evenhand.shards AS s WHERE s.shard = p_shard;
    IF NOT FOUND THEN
        PERFORM evenhand.refuse_unknown_shard(p_shard);
    END IF;
    RETURN v_shard_key;
END
$$;

CREATE FUNCTION evenhand.cursor(p_shard text, OUT next_sequence bigint, OUT store_time_us bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    SELECT n.next_sequence INTO next_sequence FROM evenhand.next_sequence(evenhand.shard_key_of(p_shard)) AS n;
    store_time_us := evenhand.micros(evenhand.clock());
END
$$;

-- The shard's reservations that end at or after a sequence, in order.
CREATE FUNCTION evenhand.reservations_from(p_shard text, p_from bigint, p_limit integer)
RETURNS TABLE (id uuid, first_sequence bigint, count integer, reserved_at_us bigint, store_time_us bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard_key integer := evenhand.shard_key_of(p_shard);
    v_start bigint;
BEGIN
    -- The block that covers the sequence starts before it.
    SELECT r.first_sequence INTO v_start FROM evenhand.reservations AS r
    WHERE r.shard_key = v_shard_key AND r.first_sequence <= p_from AND r.first_sequence + (r.count - 1) >= p_from
    ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1;
    RETURN QUERY
    SELECT r.id, r.first_sequence, r.count, evenhand.micros(r.reserved_at), evenhand.micros(evenhand.clock())
    FROM evenhand.reservations AS r
    WHERE r.shard_key = v_shard_key AND r.first_sequence >= coalesce(v_start, p_from)
    ORDER BY r.shard_key, r.first_sequence LIMIT p_limit;
END
$$;
