-- Records other than reservations: how long they stay, who may delete them, and what they say of one tenant.

-- Ended runs in the order in which they ended, for pruning.
CREATE INDEX runs_ended ON evenhand.runs (state, finished_at) WHERE finished_at IS NOT NULL;

-- Where the next pass starts to look, so that it does not walk what earlier passes deleted.
CREATE TABLE evenhand.history_marks (
    shard_key integer PRIMARY KEY REFERENCES evenhand.shards,
    outcomes_from bigint NOT NULL DEFAULT 0,
    attempts_from bigint NOT NULL DEFAULT 0,
    -- The first attempt that was stepped over because it had not ended, and when: after an hour the next pass starts
    -- there.
    attempts_left bigint,
    attempts_left_at timestamptz
);

-- The same for ended runs. Once an hour a pass starts from the beginning, so that a run that was committed long after
-- it had ended is found too.
CREATE TABLE evenhand.ended_marks (
    state evenhand.run_state PRIMARY KEY,
    resume_from timestamptz NOT NULL DEFAULT '-infinity',
    restarted_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO evenhand.ended_marks (state) VALUES ('done'), ('cancelled'), ('dead');

-- The shard's oldest reservation on record. Whatever lies before it can never be claimed again.
CREATE FUNCTION evenhand.oldest_reservation(
    p_shard_key integer,
    OUT first_sequence bigint, OUT reserved_at timestamptz
)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT r.first_sequence, r.reserved_at
    FROM evenhand.reservations AS r
    WHERE r.shard_key = p_shard_key
      -- Pruning has deleted everything before.
      AND r.first_sequence >= (SELECT m.resume_from FROM evenhand.marks AS m WHERE m.shard_key = p_shard_key)
    ORDER BY r.shard_key, r.first_sequence LIMIT 1;
END;

-- Refuses to forget records of a shard up to a sequence, the newest of which is of this time.
CREATE FUNCTION evenhand.require_forgettable(p_shard_key integer, p_last_sequence bigint, p_newest_at timestamptz)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_oldest_reserved bigint;
BEGIN
    IF p_newest_at > evenhand.clock() - interval '1 hour' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = 'a record younger than an hour, or of an attempt that has not ended, may not be deleted';
    END IF;
    SELECT o.first_sequence INTO v_oldest_reserved FROM evenhand.oldest_reservation(p_shard_key) AS o;
    IF v_oldest_reserved IS NULL OR p_last_sequence >= v_oldest_reserved THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = 'a record may not be deleted while the reservation of its sequence, or an older one, is on record';
    END IF;
END
$$;

-- Every delete, whoever makes it, leaves what could still be claimed and whatever is younger than an hour.
CREATE FUNCTION evenhand.keep_outcomes() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM evenhand.require_forgettable(g.shard_key, g.last_sequence, g.newest_at)
    FROM (
        SELECT d.shard_key, max(d.first_sequence + (d.count - 1)) AS last_sequence, max(d.recorded_at) AS newest_at
        FROM gone AS d GROUP BY d.shard_key
    ) AS g;
    RETURN NULL;
END
$$;
CREATE TRIGGER outcomes_stay AFTER DELETE ON evenhand.outcomes
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION evenhand.keep_outcomes();
ALTER TABLE evenhand.outcomes ENABLE ALWAYS TRIGGER outcomes_stay;

CREATE FUNCTION evenhand.keep_attempts() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM evenhand.require_forgettable(g.shard_key, g.last_sequence, g.newest_at)
    FROM (
        SELECT d.shard_key, max(d.sequence) AS last_sequence, max(coalesce(d.ended_at, 'infinity')) AS newest_at
        FROM gone AS d GROUP BY d.shard_key
    ) AS g;
    RETURN NULL;
END
$$;
CREATE TRIGGER attempts_stay AFTER DELETE ON evenhand.attempts
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION evenhand.keep_attempts();
CREATE TRIGGER attempts_are_evidence BEFORE TRUNCATE ON evenhand.attempts
    FOR EACH STATEMENT EXECUTE FUNCTION evenhand.refuse_change();
ALTER TABLE evenhand.attempts ENABLE ALWAYS TRIGGER attempts_stay;
ALTER TABLE evenhand.attempts ENABLE ALWAYS TRIGGER attempts_are_evidence;

-- Deletes up to `p_limit` outcomes of one shard from `p_from` on, in order, up to the first that was recorded at or after
-- the cutoff. One that was recorded late holds up those behind it until it is old too.
CREATE FUNCTION evenhand.prune_outcomes(
    p_shard_key integer, p_from bigint, p_before bigint, p_cutoff timestamptz, p_limit integer,
    OUT deleted integer, OUT resume_from bigint, OUT more boolean
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT min(s.first_sequence) FILTER (WHERE s.recorded_at >= p_cutoff OR s.place > p_limit),
           coalesce(bool_or(s.place > p_limit) AND bool_and(s.recorded_at < p_cutoff), false)
    INTO resume_from, more
    FROM (
        SELECT o.first_sequence, o.recorded_at, row_number() OVER (ORDER BY o.shard_key, o.first_sequence) AS place
        FROM evenhand.outcomes AS o
        WHERE o.shard_key = p_shard_key AND o.first_sequence >= p_from AND o.first_sequence < p_before
        ORDER BY o.shard_key, o.first_sequence LIMIT p_limit + 1
    ) AS s;
    resume_from := coalesce(resume_from, p_before);
    DELETE FROM evenhand.outcomes AS o
    WHERE o.shard_key = p_shard_key AND o.first_sequence >= p_from AND o.first_sequence < resume_from;
    GET DIAGNOSTICS deleted = ROW_COUNT;
END
$$;

-- The same for attempts, which lie in the order of their claims. Those that have not ended, or not long ago, are stepped
-- over; `left_at` is the first of them.
CREATE FUNCTION evenhand.prune_attempts(
    p_shard_key integer, p_from bigint, p_before bigint, p_cutoff timestamptz, p_limit integer,
    OUT deleted integer, OUT resume_from bigint, OUT first_left bigint, OUT more boolean
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT min(s.sequence) FILTER (WHERE s.claimed_at >= p_cutoff OR s.place > p_limit),
           min(s.sequence) FILTER (WHERE s.place <= p_limit AND (s.ended_at < p_cutoff) IS NOT TRUE),
           coalesce(bool_or(s.place > p_limit) AND bool_and(s.claimed_at < p_cutoff), false)
    INTO resume_from, first_left, more
    FROM (
        SELECT a.sequence, a.claimed_at, a.ended_at, row_number() OVER (ORDER BY a.shard_key, a.sequence) AS place
        FROM evenhand.attempts AS a
        WHERE a.shard_key = p_shard_key AND a.sequence >= p_from AND a.sequence < p_before
        ORDER BY a.shard_key, a.sequence LIMIT p_limit + 1
    ) AS s;
    resume_from := coalesce(resume_from, p_before);
    IF first_left >= resume_from THEN
        first_left := NULL;
    END IF;
    DELETE FROM evenhand.attempts AS a
    WHERE a.shard_key = p_shard_key AND a.sequence >= p_from AND a.sequence < resume_from AND a.ended_at < p_cutoff;
    GET DIAGNOSTICS deleted = ROW_COUNT;
END
$$;

-- Deletes up to `p_limit` runs that ended in this state before the cutoff, those that ended first before others.
CREATE FUNCTION evenhand.prune_ended(
    p_state evenhand.run_state, p_cutoff timestamptz, p_limit integer,
    OUT deleted integer, OUT more boolean
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_mark evenhand.ended_marks;
    v_rows tid[];
    v_next timestamptz;
BEGIN
    deleted := 0;
    more := true;
    -- Two passes never work on one state at once.
    SELECT m.* INTO v_mark FROM evenhand.ended_marks AS m WHERE m.state = p_state FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_mark.restarted_at < v_now - interval '1 hour' THEN
        v_mark.restarted_at := v_now;
        v_mark.resume_from := '-infinity';
    END IF;
    SELECT coalesce(array_agg(d.ctid), '{}') INTO v_rows
    FROM (
        SELECT r.ctid FROM evenhand.runs AS r
        WHERE r.state = p_state AND r.finished_at >= v_mark.resume_from AND r.finished_at < p_cutoff
        ORDER BY r.state, r.finished_at LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS d;
    DELETE FROM evenhand.runs AS r WHERE r.ctid = ANY (v_rows);
    deleted := cardinality(v_rows);
    SELECT r.finished_at INTO v_next FROM evenhand.runs AS r
    WHERE r.state = p_state AND r.finished_at >= v_mark.resume_from AND r.finished_at < p_cutoff
    ORDER BY r.state, r.finished_at LIMIT 1;
    more := FOUND;
    UPDATE evenhand.ended_marks AS m
    SET resume_from = coalesce(v_next, greatest(v_mark.resume_from, p_cutoff)), restarted_at = v_mark.restarted_at
    WHERE m.state = p_state;
END
$$;

-- One pass over outcomes and attempts of all shards, at most one batch of each.
CREATE FUNCTION evenhand.prune_evidence(
    p_cutoff timestamptz, p_batch integer,
    OUT outcomes integer, OUT attempts integer, OUT more boolean
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_shard record;
    v_mark evenhand.history_marks;
    v_outcomes record;
    v_attempts record;
BEGIN
    outcomes := 0;
    attempts := 0;
    more := false;
    INSERT INTO evenhand.history_marks (shard_key)
    SELECT m.shard_key FROM evenhand.marks AS m
    WHERE NOT EXISTS (SELECT FROM evenhand.history_marks AS h WHERE h.shard_key = m.shard_key)
    ON CONFLICT DO NOTHING;
    FOR v_shard IN
        SELECT m.shard_key, o.first_sequence AS before
        FROM evenhand.history_marks AS m CROSS JOIN LATERAL evenhand.oldest_reservation(m.shard_key) AS o
        WHERE o.first_sequence IS NOT NULL
        ORDER BY m.shard_key
    LOOP
        -- Two passes never work on one shard at once.
        SELECT m.* INTO v_mark FROM evenhand.history_marks AS m
        WHERE m.shard_key = v_shard.shard_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            more := true;
            CONTINUE;
        END IF;
        IF v_mark.attempts_left_at < v_now - interval '1 hour' THEN
            v_mark.attempts_from := v_mark.attempts_left;
            v_mark.attempts_left := NULL;
        END IF;
        v_outcomes := evenhand.prune_outcomes(
            v_shard.shard_key, v_mark.outcomes_from, v_shard.before, p_cutoff, p_batch - outcomes);
        v_attempts := evenhand.prune_attempts(
            v_shard.shard_key, v_mark.attempts_from, v_shard.before, p_cutoff, p_batch - attempts);
        outcomes := outcomes + v_outcomes.deleted;
        attempts := attempts + v_attempts.deleted;
        more := more OR v_outcomes.more OR v_attempts.more;
        UPDATE evenhand.history_marks AS m
        SET outcomes_from = greatest(m.outcomes_from, v_outcomes.resume_from),
            attempts_from = greatest(v_mark.attempts_from, v_attempts.resume_from),
            attempts_left = coalesce(v_mark.attempts_left, v_attempts.first_left),
            attempts_left_at = CASE WHEN v_mark.attempts_left IS NOT NULL THEN v_mark.attempts_left_at
                                    WHEN v_attempts.first_left IS NOT NULL THEN v_now END
        WHERE m.shard_key = v_shard.shard_key;
    END LOOP;
END
$$;

-- Deletes one batch of each: outcomes and attempts, done and cancelled runs, dead runs, that are older than their
-- windows.
CREATE FUNCTION evenhand.prune_history(
    p_evidence_ms bigint, p_finished_ms bigint, p_dead_ms bigint, p_batch integer,
    OUT outcomes integer, OUT attempts integer, OUT finished integer, OUT dead integer, OUT more boolean
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
    v_ms CONSTANT interval := interval '1 millisecond';
    v_evidence record;
    v_done record;
    v_cancelled record;
    v_dead record;
BEGIN
    PERFORM evenhand.require_read_committed();
    IF least(p_evidence_ms, p_finished_ms, p_dead_ms) < 3600000
        OR greatest(p_evidence_ms, p_finished_ms, p_dead_ms) > 31622400000 OR p_batch NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = 'a window is 1 hour to 366 days, a batch 1 to 10000 rows';
    END IF;
    v_evidence := evenhand.prune_evidence(v_now - p_evidence_ms * v_ms, p_batch);
    v_done := evenhand.prune_ended('done', v_now - p_finished_ms * v_ms, p_batch);
    v_cancelled := evenhand.prune_ended('cancelled', v_now - p_finished_ms * v_ms, p_batch - v_done.deleted);
    v_dead := evenhand.prune_ended('dead', v_now - p_dead_ms * v_ms, p_batch);
    outcomes := v_evidence.outcomes;
    attempts := v_evidence.attempts;
    finished := v_done.deleted + v_cancelled.deleted;
    dead := v_dead.deleted;
    more := v_evidence.more OR v_done.more OR v_cancelled.more OR v_dead.more;
END
$$;

-- The first sequence at or after `p_from` whose slot is one of `p_slots`, which are in order. NULL behind the range.
CREATE FUNCTION evenhand.next_turn(p_slots integer[], p_cycle_length integer, p_from bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cycle bigint := p_from / p_cycle_length;
    v_place integer := width_bucket((p_from % p_cycle_length)::integer - 1, p_slots) + 1;
BEGIN
    IF v_place > cardinality(p_slots) THEN
        v_cycle := v_cycle + 1;
        v_place := 1;
    END IF;
    IF v_cycle > (9223372036854775807 - p_slots[v_place]) / p_cycle_length THEN
        RETURN NULL;
    END IF;
    RETURN v_cycle * p_cycle_length + p_slots[v_place];
END
$$;

-- The tenant's sequences that were reserved in a period, with the times of their reservations. Its slots are counted
-- through, so that other tenants' sequences cost nothing.
CREATE FUNCTION evenhand.turns(
    p_shard_key integer, p_slots integer[], p_cycle_length integer, p_from timestamptz, p_to timestamptz, p_limit bigint,
    OUT sequences bigint[], OUT reserved_at timestamptz[]
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_oldest bigint;
    v_newest bigint;
    v_sequence bigint;
    v_block record;
    v_last bigint := -1;
BEGIN
    sequences := '{}';
    reserved_at := '{}';
    SELECT o.first_sequence INTO v_oldest FROM evenhand.oldest_reservation(p_shard_key) AS o;
    SELECT r.first_sequence INTO v_newest FROM evenhand.reservations AS r
    WHERE r.shard_key = p_shard_key ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1;
    IF v_oldest IS NULL THEN
        RETURN;
    END IF;
    v_sequence := evenhand.next_turn(
        p_slots, p_cycle_length, evenhand.first_to_keep(p_shard_key, v_oldest, v_newest, p_from));
    WHILE v_sequence IS NOT NULL AND cardinality(sequences) < p_limit LOOP
        IF v_sequence > v_last THEN
            v_block := evenhand.block_at(p_shard_key, v_sequence);
            EXIT WHEN v_block.first_sequence IS NULL OR v_block.reserved_at >= p_to;
            v_last := v_block.last_sequence;
            IF v_block.first_sequence > v_sequence THEN
                v_sequence := evenhand.next_turn(p_slots, p_cycle_length, v_block.first_sequence);
                CONTINUE;
            END IF;
        END IF;
        IF v_block.reserved_at >= p_from THEN
            sequences := array_append(sequences, v_sequence);
            reserved_at := array_append(reserved_at, v_block.reserved_at);
        END IF;
        EXIT WHEN v_sequence = 9223372036854775807;
        v_sequence := evenhand.next_turn(p_slots, p_cycle_length, v_sequence + 1);
    END LOOP;
END
$$;

-- The reservation that covers a sequence, or the next one behind it.
CREATE FUNCTION evenhand.block_at(
    p_shard_key integer, p_sequence bigint,
    OUT first_sequence bigint, OUT last_sequence bigint, OUT reserved_at timestamptz
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT r.first_sequence, r.first_sequence + (r.count - 1), r.reserved_at
    INTO first_sequence, last_sequence, reserved_at
    FROM evenhand.reservations AS r
    WHERE r.shard_key = p_shard_key AND r.first_sequence <= p_sequence
    ORDER BY r.shard_key, r.first_sequence DESC LIMIT 1;
    IF NOT FOUND OR last_sequence < p_sequence THEN
        SELECT r.first_sequence, r.first_sequence + (r.count - 1), r.reserved_at
        INTO first_sequence, last_sequence, reserved_at
        FROM evenhand.reservations AS r
        WHERE r.shard_key = p_shard_key AND r.first_sequence > p_sequence
        ORDER BY r.shard_key, r.first_sequence LIMIT 1;
    END IF;
END
$$;

-- A tenant's turns in a period, at most `p_limit` from the earliest on: how each ended, and which run it took. The outcome
-- is NULL where none is on record.
CREATE FUNCTION evenhand.tenant_history(p_shard text, p_tenant text, p_from_us bigint, p_to_us bigint, p_limit bigint)
RETURNS TABLE (
    sequence bigint, reserved_at_us bigint, outcome text, run_id uuid, tenant text, fence bigint, worker text,
    ready_at_us bigint, claimed_at_us bigint, result text, ended_at_us bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_epoch CONSTANT timestamptz := 'epoch';
    v_end_us CONSTANT bigint := 253402207200000000;
    v_shard_key integer := evenhand.shard_key_of(p_shard);
    v_slots integer[];
    v_cycle_length integer;
    v_turns record;
BEGIN
    SELECT s.cycle_length INTO STRICT v_cycle_length FROM evenhand.shards AS s WHERE s.shard_key = v_shard_key;
    v_slots := ARRAY(SELECT t.slot FROM evenhand.shard_slots AS t
                     WHERE t.shard_key = v_shard_key AND t.tenant = p_tenant ORDER BY t.shard_key, t.tenant, t.slot);
    IF cardinality(v_slots) = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'EV012',
            MESSAGE = format('the policy of shard %s does not know tenant %s', p_shard, p_tenant);
    END IF;
    -- Nothing was reserved before the epoch, nor will be behind the last time that a client can name.
    v_turns := evenhand.turns(
        v_shard_key, v_slots, v_cycle_length,
        v_epoch + greatest(p_from_us, 0) * interval '1 microsecond',
        v_epoch + greatest(least(p_to_us, v_end_us), 0) * interval '1 microsecond', p_limit);
    RETURN QUERY
    SELECT t.sequence, evenhand.micros(t.reserved_at), evenhand.outcome_of(v_shard_key, t.sequence),
           a.run_id, a.tenant, a.fence, a.worker, evenhand.micros(a.ready_at), evenhand.micros(a.claimed_at), a.result,
           evenhand.micros(a.ended_at)
    FROM unnest(v_turns.sequences, v_turns.reserved_at) WITH ORDINALITY AS t (sequence, reserved_at, place)
    LEFT JOIN LATERAL (
        -- One probe a sequence, however many attempts the shard has.
        SELECT b.* FROM evenhand.attempts AS b WHERE b.shard_key = v_shard_key AND b.sequence = t.sequence OFFSET 0
    ) AS a ON true
    ORDER BY t.place;
END
$$;

-- The same for people: times as times, and no more columns than one reads.
CREATE FUNCTION evenhand.tenant_turns(
    p_shard text, p_tenant text, p_from timestamptz, p_to timestamptz, p_limit bigint DEFAULT 1000
) RETURNS TABLE (
    sequence bigint, reserved_at timestamptz, outcome text, run_id uuid, worker text, ready_at timestamptz,
    claimed_at timestamptz, result text, ended_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_micro CONSTANT interval := interval '1 microsecond';
    v_epoch CONSTANT timestamptz := 'epoch';
BEGIN
    RETURN QUERY
    SELECT h.sequence, v_epoch + h.reserved_at_us * v_micro, h.outcome, h.run_id, h.worker,
           v_epoch + h.ready_at_us * v_micro, v_epoch + h.claimed_at_us * v_micro, h.result,
           v_epoch + h.ended_at_us * v_micro
    FROM evenhand.tenant_history(p_shard, p_tenant, evenhand.micros(p_from), evenhand.micros(p_to), p_limit) AS h;
END
$$;

GRANT EXECUTE ON FUNCTION evenhand.prune_history, evenhand.prune_reservations TO evenhand_app, evenhand_retention;
GRANT EXECUTE ON FUNCTION evenhand.tenant_history, evenhand.tenant_turns TO evenhand_app, evenhand_observer;
GRANT SELECT ON evenhand.history_marks, evenhand.ended_marks TO evenhand_observer;
