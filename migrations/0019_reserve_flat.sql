-- What a reservation costs, once more: three statements for one, and about as many for all that a process combines.

-- The greatest id of a millisecond, which sorts behind all others that were minted by then.
CREATE FUNCTION evenhand.last_id(p_millis bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE
RETURN (lpad(to_hex(p_millis), 12, '0') || 'ffffffffffffffffffff')::uuid;

-- Every insert, whoever makes it, continues the order. `first_sequence` may be left out; a wrong one is refused. Whether
-- the newest reservation is lost while older ones stayed is not seen here for inserts by hand, but by `reserve` and
-- `cursor`.
--
-- `reserve` leaves `reserved_at` out too, and so the look at id, mark and cursor is this one: nothing is inserted unless all
-- of them are plainly in order. One statement reads them, and so at one moment: pruning changes id and mark at once.
--
-- Of several rows, the first is looked at, and the others are compared with where the one before ends, which is kept in a
-- setting for the rest of the transaction. It cannot be out of date: a sequence that follows a row on record is taken at
-- most once, since it is unique.
--
-- No search path is set here, since it would be set for each row: only the owner can insert, and `reserve` sets its own.
CREATE OR REPLACE FUNCTION evenhand.continue_order() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    v_last bigint;
    v_first bigint;
    v_newest_at timestamptz;
    v_shard_and_time text;
    v_place text;
    v_is_plainly_new boolean;
BEGIN
    IF NEW.first_sequence IS NULL AND NEW.reserved_at IS NULL THEN
        NEW.reserved_at := evenhand.clock();
        SELECT n.first_sequence + (n.count - 1),
               m.standing = 'active' AND n.reserved_at <= NEW.reserved_at AND NEW.count BETWEEN 1 AND 1048576
                   -- Two of the longest blocks fit before the end of the range.
                   AND n.first_sequence > m.pruned_through AND n.first_sequence < 9223372036852678656
                   AND (m.pruned_id_millis < i.millis) IS NOT FALSE
                   AND i.millis <= evenhand.millis(NEW.reserved_at) + 300000
                   AND get_byte(uuid_send(NEW.id), 6) BETWEEN 112 AND 127
                   AND NOT EXISTS (SELECT FROM evenhand.reservations AS r WHERE r.id = NEW.id)
        INTO v_last, v_is_plainly_new
        FROM evenhand.marks AS m
        CROSS JOIN LATERAL (SELECT evenhand.id_millis(NEW.id)) AS i (millis)
        CROSS JOIN LATERAL (
            SELECT r.first_sequence, r.count, r.reserved_at FROM evenhand.reservations AS r
            WHERE r.shard_key = m.shard_key ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1
        ) AS n
        WHERE m.shard_key = NEW.shard_key;
        IF v_is_plainly_new IS NOT TRUE THEN
            RETURN NULL;
        END IF;
        NEW.first_sequence := v_last + 1;
        RETURN NEW;
    END IF;
    v_shard_and_time := NEW.shard_key || ' ' || NEW.reserved_at || ' ';
    IF v_shard_and_time || NEW.first_sequence = current_setting('evenhand.order_continues_at', true)
        AND NEW.count BETWEEN 1 AND 1048576 AND NEW.first_sequence < 9223372036852678656
    THEN
        v_place := set_config('evenhand.order_continues_at', v_shard_and_time || NEW.first_sequence + NEW.count, true);
        RETURN NEW;
    END IF;
    SELECT n.next_sequence, n.newest_at INTO v_first, v_newest_at FROM evenhand.next_sequence(NEW.shard_key) AS n;
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
    IF v_first < 9223372036852678656 THEN
        v_place := set_config('evenhand.order_continues_at',
            NEW.shard_key || ' ' || NEW.reserved_at || ' ' || v_first + NEW.count, true);
    END IF;
    RETURN NEW;
END
$$;

-- Takes the next sequences. The order is the contract: lock, look up the id, read the mark, read the cursor. The trigger
-- looks; what it leaves out is looked at again here, to be answered or refused.
CREATE OR REPLACE FUNCTION evenhand.reserve(
    p_shard text, p_id uuid, p_digest bytea, p_cycle_length integer, p_count integer,
    OUT first_sequence bigint, OUT reserved_at_us bigint, OUT store_time_us bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard_key integer;
    v_is_bound boolean;
    v_now timestamptz;
    v_known_shard_key integer;
    v_known_count integer;
    v_reserved_at timestamptz;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'on' THEN
        PERFORM evenhand.require_read_committed();
        PERFORM evenhand.require_durable_commit();
    END IF;
    SELECT s.shard_key, s.digest = p_digest AND s.cycle_length = p_cycle_length INTO v_shard_key, v_is_bound
    FROM evenhand.shards AS s WHERE s.shard = p_shard FOR NO KEY UPDATE;
    IF v_is_bound IS NOT TRUE THEN
        PERFORM evenhand.shard_key_of(p_shard);
        PERFORM evenhand.refuse_policy(format('shard %s is bound to another policy', p_shard));
    END IF;
    INSERT INTO evenhand.reservations AS r (id, shard_key, count) VALUES (p_id, v_shard_key, p_count)
    RETURNING r.first_sequence, evenhand.micros(r.reserved_at) INTO first_sequence, reserved_at_us;
    IF first_sequence IS NOT NULL THEN
        store_time_us := reserved_at_us;
        RETURN;
    END IF;

    v_now := evenhand.clock();
    store_time_us := evenhand.micros(v_now);
    SELECT r.shard_key, r.count, r.first_sequence, r.reserved_at
    INTO v_known_shard_key, v_known_count, first_sequence, v_reserved_at
    FROM evenhand.reservations AS r WHERE r.id = p_id;
    IF FOUND THEN
        PERFORM evenhand.check_known_id(p_id, v_shard_key, p_count, v_known_shard_key, v_known_count);
    ELSE
        PERFORM evenhand.check_new_id(v_shard_key, p_shard, p_id, v_now);
        INSERT INTO evenhand.reservations AS r (id, reserved_at, shard_key, count)
        VALUES (p_id, v_now, v_shard_key, p_count)
        RETURNING r.first_sequence, r.reserved_at INTO first_sequence, v_reserved_at;
    END IF;
    reserved_at_us := evenhand.micros(v_reserved_at);
END
$$;

-- Answers for each id in order: its sequences, or the SQLSTATE and message of its refusal. A refused id consumes nothing
-- and fails nobody else. Only when an id came in two shards at once is the whole call undone, with a unique violation:
-- asked again, it is answered.
CREATE OR REPLACE FUNCTION evenhand.reserve_many(
    p_shard text, p_ids uuid[], p_digest bytea, p_cycle_length integer, p_counts integer[]
) RETURNS TABLE (first_sequence bigint, reserved_at_us bigint, store_time_us bigint, refusal text, message text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard_key integer;
    v_is_bound boolean;
    v_now timestamptz;
    v_now_us bigint;
    v_latest uuid;
    v_last bigint;
    v_are_plainly_new boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') <> 'on' THEN
        PERFORM evenhand.require_read_committed();
        PERFORM evenhand.require_durable_commit();
    END IF;
    SELECT s.shard_key, s.digest = p_digest AND s.cycle_length = p_cycle_length INTO v_shard_key, v_is_bound
    FROM evenhand.shards AS s WHERE s.shard = p_shard FOR NO KEY UPDATE;
    IF v_is_bound IS NOT TRUE THEN
        PERFORM evenhand.shard_key_of(p_shard);
        PERFORM evenhand.refuse_policy(format('shard %s is bound to another policy', p_shard));
    END IF;
    v_now := evenhand.clock();
    v_now_us := evenhand.micros(v_now);
    v_latest := evenhand.last_id(v_now_us / 1000 + 300000);
    -- As the trigger looks at one: ids, mark and cursor at one moment, after the lock.
    SELECT n.first_sequence + (n.count - 1),
           m.standing = 'active' AND n.reserved_at <= v_now
               -- 2,047 of the longest blocks fit before the end of the range.
               AND n.first_sequence > m.pruned_through AND n.first_sequence < 9223372034707292160
               AND cardinality(p_ids) < 2047
               AND NOT EXISTS (SELECT FROM evenhand.reservations AS r WHERE r.id = ANY (p_ids))
               AND (SELECT count(DISTINCT w.id) = cardinality(p_ids) AND bool_and(
                        w.count BETWEEN 1 AND 1048576 AND get_byte(uuid_send(w.id), 6) BETWEEN 112 AND 127
                        AND (w.id > b.expired) IS NOT FALSE AND w.id <= v_latest)
                    FROM unnest(p_ids, p_counts) AS w (id, count))
    INTO v_last, v_are_plainly_new
    FROM evenhand.marks AS m
    CROSS JOIN LATERAL (SELECT evenhand.last_id(m.pruned_id_millis) OFFSET 0) AS b (expired)
    CROSS JOIN LATERAL (
        SELECT r.first_sequence, r.count, r.reserved_at FROM evenhand.reservations AS r
        WHERE r.shard_key = m.shard_key ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1
    ) AS n
    WHERE m.shard_key = v_shard_key;
    IF v_are_plainly_new THEN
        RETURN QUERY
        INSERT INTO evenhand.reservations AS r (id, first_sequence, reserved_at, shard_key, count)
        SELECT w.id, v_last + 1 + sum(w.count) OVER (ORDER BY w.ordinal) - w.count, v_now, v_shard_key, w.count
        FROM unnest(p_ids, p_counts) WITH ORDINALITY AS w (id, count, ordinal) ORDER BY w.ordinal
        RETURNING r.first_sequence, v_now_us, v_now_us, NULL::text, NULL::text;
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(p_ids) LOOP
        BEGIN
            refusal := NULL;
            message := NULL;
            SELECT r.first_sequence, r.reserved_at_us, r.store_time_us INTO first_sequence, reserved_at_us, store_time_us
            FROM evenhand.reserve(p_shard, p_ids[i], p_digest, p_cycle_length, p_counts[i]) AS r;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE NOT LIKE 'EV%' AND SQLSTATE <> '23505' THEN
                RAISE;
            END IF;
            refusal := SQLSTATE;
            message := SQLERRM;
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
