-- Waking idle workers: whoever falls asleep says so, and whoever enqueues notifies only while somebody sleeps. A
-- notification takes a lock of the whole server until its transaction has ended, so busy workers must not cause any.

-- A row that nobody deletes ends with its time. The time stands in front of the key: rows of the past, and what is left
-- of deleted ones while an old snapshot is held, are never walked by those who enqueue.
CREATE UNLOGGED TABLE evenhand.sleepers (
    until timestamptz NOT NULL,
    sleeper bigint GENERATED ALWAYS AS IDENTITY,
    pool_key integer NOT NULL,
    worker text COLLATE "C" NOT NULL CHECK (octet_length(worker) BETWEEN 1 AND 128),
    PRIMARY KEY (pool_key, until, sleeper)
);

-- Puts a worker of the shard's pool to sleep. It is awake to notifications on `channel` from when this is committed, and
-- has to look once more after that: what was enqueued a moment before has notified nobody.
CREATE FUNCTION evenhand.fall_asleep(
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
    DELETE FROM evenhand.sleepers AS s
    WHERE s.ctid = ANY (ARRAY(
        SELECT d.ctid FROM evenhand.sleepers AS d WHERE d.pool_key = v_pool_key AND d.until < v_now
        ORDER BY d.pool_key, d.until LIMIT 100 FOR UPDATE SKIP LOCKED));
    v_until := v_now + p_longest_ms * interval '1 millisecond';
    INSERT INTO evenhand.sleepers AS s (pool_key, until, worker) VALUES (v_pool_key, v_until, p_worker)
    RETURNING s.sleeper INTO fall_asleep.sleeper;
    fall_asleep.pool_key := v_pool_key;
    until_us := evenhand.micros(v_until);
    channel := evenhand.wake_channel(v_pool_key);
END
$$;

CREATE FUNCTION evenhand.wake_channel(p_pool_key integer) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN 'evenhand_' || p_pool_key;

-- Ends a sleep.
CREATE FUNCTION evenhand.wake_up(p_pool_key integer, p_until_us bigint, p_sleeper bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    DELETE FROM evenhand.sleepers AS s
    WHERE s.pool_key = p_pool_key AND s.until = timestamptz 'epoch' + p_until_us * interval '1 microsecond'
      AND s.sleeper = p_sleeper;
END
$$;

-- Notifies the sleepers of a pool that something has come into its queue, at the last moment before the commit.
-- Acts for the owner, since a deferred trigger runs as whoever commits.
CREATE FUNCTION evenhand.wake_sleepers() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := evenhand.clock();
BEGIN
    -- Above read committed the sleepers of this moment cannot be seen.
    IF current_setting('transaction_isolation') <> 'read committed'
        OR EXISTS (SELECT FROM evenhand.sleepers AS s WHERE s.pool_key = NEW.pool_key AND s.until >= v_now) THEN
        PERFORM pg_notify(evenhand.wake_channel(NEW.pool_key), '');
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER runs_wake_sleepers AFTER INSERT OR UPDATE OF state ON evenhand.runs
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 'queued') EXECUTE FUNCTION evenhand.wake_sleepers();

GRANT EXECUTE ON FUNCTION evenhand.fall_asleep, evenhand.wake_up TO evenhand_app;
GRANT SELECT ON evenhand.sleepers TO evenhand_observer;
