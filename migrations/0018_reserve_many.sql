-- Reservations that one process asks for at the same time, in one transaction: one row each, adjacent, in their order.

-- Answers for each id in order: its sequences, or the SQLSTATE and message of its refusal. A refused id consumes nothing
-- and fails nobody else.
CREATE FUNCTION evenhand.reserve_many(
    p_shard text, p_ids uuid[], p_digest bytea, p_cycle_length integer, p_counts integer[]
) RETURNS TABLE (first_sequence bigint, reserved_at_us bigint, store_time_us bigint, refusal text, message text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_shard_key integer;
    v_digest bytea;
    v_cycle_length integer;
    v_now timestamptz;
    v_all_plainly_new boolean;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    SELECT s.shard_key, s.digest, s.cycle_length INTO v_shard_key, v_digest, v_cycle_length
    FROM evenhand.shards AS s WHERE s.shard = p_shard FOR NO KEY UPDATE;
    IF (v_digest = p_digest AND v_cycle_length = p_cycle_length) IS NOT TRUE THEN
        PERFORM evenhand.shard_key_of(p_shard);
        PERFORM evenhand.refuse_policy(format('shard %s is bound to another policy', p_shard));
    END IF;
    v_now := evenhand.clock();
    -- As in `reserve`: ids and mark are read at one moment, after the lock; the trigger reads the cursor.
    SELECT count(DISTINCT w.id) = cardinality(p_ids) AND bool_and(
               r.id IS NULL AND m.standing = 'active'
               AND (m.pruned_id_millis < evenhand.id_millis(w.id)) IS NOT FALSE
               AND evenhand.id_millis(w.id) <= evenhand.millis(v_now) + 300000)
    INTO v_all_plainly_new
    FROM evenhand.marks AS m
    CROSS JOIN unnest(p_ids) AS w (id)
    LEFT JOIN evenhand.reservations AS r ON r.id = w.id
    WHERE m.shard_key = v_shard_key;
    IF v_all_plainly_new THEN
        BEGIN
            RETURN QUERY
            WITH made AS (
                INSERT INTO evenhand.reservations (id, reserved_at, shard_key, count)
                SELECT w.id, v_now, v_shard_key, w.count
                FROM unnest(p_ids, p_counts) WITH ORDINALITY AS w (id, count, ordinal) ORDER BY w.ordinal
                RETURNING reservations.id, reservations.first_sequence, reservations.reserved_at
            )
            SELECT made.first_sequence, evenhand.micros(made.reserved_at), evenhand.micros(v_now), NULL::text, NULL::text
            FROM unnest(p_ids) WITH ORDINALITY AS w (id, ordinal) JOIN made ON made.id = w.id
            ORDER BY w.ordinal;
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            -- One of them is refused, or came in two shards at once: each for itself tells which.
            IF SQLSTATE NOT LIKE 'EV%' AND SQLSTATE <> '23505' THEN
                RAISE;
            END IF;
        END;
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

GRANT EXECUTE ON FUNCTION evenhand.reserve_many TO evenhand_app;
