-- Evidence is kept for a bounded time, and the mark remembers what was pruned.

-- Every delete, whoever makes it, leaves the newest reservation and whatever is younger than an hour, and moves the
-- mark in the same transaction.
CREATE FUNCTION evenhand.mark_pruned() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_gone record;
BEGIN
    FOR v_gone IN
        SELECT g.shard_key, max(g.reserved_at) AS newest_at, max(g.first_sequence) AS newest_first,
               max(g.first_sequence + (g.count - 1)) AS last_sequence, max(g.id::text COLLATE "C")::uuid AS newest_id
        FROM gone AS g GROUP BY g.shard_key ORDER BY g.shard_key
    LOOP
        IF v_gone.newest_at > evenhand.clock() - interval '1 hour' THEN
            RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = 'a reservation younger than an hour may not be deleted';
        END IF;
        IF NOT EXISTS (
            SELECT FROM evenhand.reservations AS r
            WHERE r.shard_key = v_gone.shard_key AND r.first_sequence > v_gone.newest_first
        ) THEN
            RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = 'the newest reservation of a shard may not be deleted';
        END IF;
        UPDATE evenhand.marks AS m
        SET pruned_id_millis = greatest(m.pruned_id_millis, evenhand.id_millis(v_gone.newest_id)),
            pruned_through = greatest(m.pruned_through, v_gone.last_sequence)
        WHERE m.shard_key = v_gone.shard_key;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER reservations_leave_a_mark AFTER DELETE ON evenhand.reservations
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION evenhand.mark_pruned();
ALTER TABLE evenhand.reservations ENABLE ALWAYS TRIGGER reservations_leave_a_mark;

-- The first sequence, from `p_from` up to the shard's newest reservation, that must stay: the first reservation at or
-- after the cutoff. Times do not fall within a shard, so halving finds it without an index on time.
CREATE FUNCTION evenhand.first_to_keep(p_shard_key integer, p_from bigint, p_newest bigint, p_cutoff timestamptz)
RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_low bigint := p_from;
    v_high bigint := p_newest;
    v_middle bigint;
    v_found record;
BEGIN
    WHILE v_low < v_high LOOP
        v_middle := v_low + (v_high - v_low) / 2;
        SELECT r.first_sequence, r.count, r.reserved_at INTO STRICT v_found
        FROM evenhand.reservations AS r
        WHERE r.shard_key = p_shard_key AND r.first_sequence >= v_middle
        ORDER BY r.shard_key, r.first_sequence LIMIT 1;
        IF v_found.reserved_at < p_cutoff THEN
            v_low := least(v_high, v_found.first_sequence + v_found.count);
        ELSE
            v_high := v_middle;
        END IF;
    END LOOP;
    RETURN v_low;
END
$$;

-- Deletes up to `p_limit` reservations of one shard, oldest first, and steps over those that others hold.
CREATE FUNCTION evenhand.prune_shard(p_shard_key integer, p_from bigint, p_keep bigint, p_limit integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_rows tid[];
    v_sequences numeric;
    v_last bigint;
    v_resume bigint;
BEGIN
    SELECT array_agg(d.ctid), sum(d.count), max(d.first_sequence + (d.count - 1)) INTO v_rows, v_sequences, v_last
    FROM (
        SELECT r.ctid, r.first_sequence, r.count FROM evenhand.reservations AS r
        WHERE r.shard_key = p_shard_key AND r.first_sequence >= p_from AND r.first_sequence < p_keep
        ORDER BY r.shard_key, r.first_sequence LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS d;
    IF v_rows IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM evenhand.reservations AS r WHERE r.ctid = ANY (v_rows);
    IF v_sequences = v_last - p_from + 1 THEN
        v_resume := v_last + 1;
    ELSE
        -- A row was stepped over: the next pass has to find it again.
        SELECT r.first_sequence INTO v_resume FROM evenhand.reservations AS r
        WHERE r.shard_key = p_shard_key AND r.first_sequence >= p_from
        ORDER BY r.shard_key, r.first_sequence LIMIT 1;
    END IF;
    UPDATE evenhand.marks AS m SET resume_from = v_resume WHERE m.shard_key = p_shard_key;
    RETURN cardinality(v_rows);
END
$$;

-- One pass over all shards, at most one batch, those with the oldest evidence first.
CREATE FUNCTION evenhand.prune_reservations(
    p_window_ms bigint, p_batch integer,
    OUT cutoff_us bigint, OUT deleted integer, OUT more boolean
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_cutoff timestamptz := evenhand.clock() - p_window_ms * interval '1 millisecond';
    v_shard record;
    v_from bigint;
    v_keep bigint;
    v_deleted integer;
BEGIN
    PERFORM evenhand.require_read_committed();
    IF p_window_ms NOT BETWEEN 3600000 AND 31622400000 OR p_batch NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = 'a window is 1 hour to 366 days, a batch 1 to 10000 rows';
    END IF;
    cutoff_us := evenhand.micros(v_cutoff);
    deleted := 0;
    more := false;
    FOR v_shard IN
        SELECT m.shard_key, newest.first_sequence AS newest
        FROM evenhand.marks AS m
        CROSS JOIN LATERAL (
            SELECT r.first_sequence, r.reserved_at FROM evenhand.reservations AS r
            WHERE r.shard_key = m.shard_key AND r.first_sequence >= m.resume_from
            ORDER BY r.shard_key, r.first_sequence LIMIT 1
        ) AS oldest
        CROSS JOIN LATERAL (
            SELECT r.first_sequence FROM evenhand.reservations AS r
            WHERE r.shard_key = m.shard_key ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1
        ) AS newest
        WHERE oldest.reserved_at < v_cutoff AND oldest.first_sequence < newest.first_sequence
        ORDER BY oldest.reserved_at, m.shard_key
    LOOP
        -- Two passes never work on one shard at once.
        SELECT m.resume_from INTO v_from FROM evenhand.marks AS m
        WHERE m.shard_key = v_shard.shard_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND OR deleted >= p_batch THEN
            more := true;
            CONTINUE;
        END IF;
        v_keep := evenhand.first_to_keep(v_shard.shard_key, v_from, v_shard.newest, v_cutoff);
        v_deleted := evenhand.prune_shard(v_shard.shard_key, v_from, v_keep, p_batch - deleted);
        deleted := deleted + v_deleted;
        more := more OR EXISTS (
            SELECT FROM evenhand.marks AS m JOIN evenhand.reservations AS r ON r.shard_key = m.shard_key
            WHERE m.shard_key = v_shard.shard_key AND r.first_sequence >= m.resume_from AND r.first_sequence < v_keep
        );
    END LOOP;
END
$$;
