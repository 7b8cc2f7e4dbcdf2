-- What everything else stands on: the clock, the guards of a transaction, and the arithmetic of times and ids.

-- A plan that was made while a table was small is kept until its statistics change, and would then read the whole table
-- in each call. So every function that callers use allows index scans only. Where no index fits, the planner still does
-- what is switched off, at an estimate so high that it would compile the plan first (hence no JIT).

-- Only the owner may call a new function until it is granted.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- The one clock. Every time in this schema comes from here.
CREATE FUNCTION evenhand.clock() RETURNS timestamptz
LANGUAGE sql VOLATILE
RETURN pg_catalog.clock_timestamp();

CREATE FUNCTION evenhand.micros(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE
RETURN (extract(epoch FROM p_time) * 1000000)::bigint;

CREATE FUNCTION evenhand.millis(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE
RETURN floor(extract(epoch FROM p_time) * 1000)::bigint;

-- A UUIDv7's own time in milliseconds since the Unix epoch: its first 48 bits.
CREATE FUNCTION evenhand.id_millis(p_id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN ('x' || lpad(left(p_id::text, 8) || substr(p_id::text, 10, 4), 16, '0'))::bit(64)::bigint;

-- A UUIDv7 whose 12 bits behind the milliseconds count on in 1/4096 ms (RFC 9562, 6.2, method 3), so that the ids of one
-- call sort in the order of their ordinals.
CREATE FUNCTION evenhand.new_id(p_time timestamptz, p_ordinal bigint) RETURNS uuid
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_ticks bigint := floor(extract(epoch FROM p_time) * 4096000)::bigint + p_ordinal;
BEGIN
    RETURN (lpad(to_hex(v_ticks >> 12), 12, '0') || '7' || lpad(to_hex(v_ticks & 4095), 3, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid;
END
$$;

-- Locks first and looks second, which needs a new snapshot for each statement: only read committed gives that.
CREATE FUNCTION evenhand.require_read_committed() RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV013',
            MESSAGE = format('transaction isolation is %s', current_setting('transaction_isolation')),
            HINT = 'Call this function in a read committed transaction.';
    END IF;
END
$$;

-- An acknowledged change must survive a crash, whatever the role's default is. A stronger setting stays.
CREATE FUNCTION evenhand.require_durable_commit() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- A trigger for tables whose rows are evidence.
CREATE FUNCTION evenhand.refuse_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'EV012',
        MESSAGE = format('%s of evenhand.%s is refused: its rows are evidence', lower(TG_OP), TG_TABLE_NAME);
END
$$;
