-- Enqueueing from any language: one function with named arguments, and every check of the Rust API.

CREATE FUNCTION evenhand.refuse_argument(p_message text, p_hint text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'EV012', MESSAGE = p_message, HINT = p_hint;
END
$$;

-- Refuses what is no id: 1 to 128 bytes of A-Z a-z 0-9 . _ : - and neither . nor ..
CREATE FUNCTION evenhand.require_id(p_what text, p_id text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_id IS NULL OR p_id !~ '^[A-Za-z0-9._:-]{1,128}$' OR p_id IN ('.', '..') THEN
        PERFORM evenhand.refuse_argument(
            format('%s %L is no id', p_what, p_id), 'An id is 1 to 128 of A-Z a-z 0-9 . _ : - and neither . nor ..');
    END IF;
END
$$;

-- Refuses what is no name: printable ASCII up to a length.
CREATE FUNCTION evenhand.require_name(p_what text, p_name text, p_length_max integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_name IS NULL OR p_name !~ '^[ -~]+$' COLLATE "C" OR octet_length(p_name) > p_length_max THEN
        PERFORM evenhand.refuse_argument(
            format('%s %L is no name', p_what, left(p_name, 300)),
            format('It is 1 to %s characters of printable ASCII.', p_length_max));
    END IF;
END
$$;

-- Refuses a number outside of its bounds.
CREATE FUNCTION evenhand.require_within(p_what text, p_number bigint, p_least bigint, p_most bigint, p_unit text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_number IS NULL OR p_number NOT BETWEEN p_least AND p_most THEN
        PERFORM evenhand.refuse_argument(
            format('%s is %s', p_what, coalesce(p_number::text, 'NULL')),
            format('It is %s to %s%s.', p_least, p_most, p_unit));
    END IF;
END
$$;

-- Whole milliseconds of an interval; NULL when it is NULL or out of range.
CREATE FUNCTION evenhand.interval_millis(p_interval interval) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN p_interval BETWEEN interval '-100 years' AND interval '1000 years'
            THEN floor(extract(epoch FROM p_interval) * 1000)::bigint END;

-- Enqueues a run in the caller's transaction: it is there once that commits. The same key and content give the first run
-- again, `created` false; a key that names a run of other content is refused as EV011.
CREATE FUNCTION evenhand.enqueue_run(
    tenant text, kind text, payload jsonb DEFAULT '{}', pool text DEFAULT 'default', team text DEFAULT NULL,
    value_class text DEFAULT 'standard', base_priority integer DEFAULT 0, cost_micros bigint DEFAULT 0,
    ready_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, attempts_max integer DEFAULT 20,
    timeout interval DEFAULT '5 minutes', idempotency_key text DEFAULT NULL,
    OUT run_id uuid, OUT created boolean
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    v_outcome text;
    v_delay_ms bigint := evenhand.interval_millis(delay);
BEGIN
    PERFORM evenhand.require_id('tenant', tenant);
    PERFORM evenhand.require_id('pool', pool);
    PERFORM evenhand.require_id('team', coalesce(team, tenant));
    PERFORM evenhand.require_name('kind', kind, 128);
    IF idempotency_key IS NOT NULL THEN
        PERFORM evenhand.require_name('idempotency key', idempotency_key, 255);
    END IF;
    IF payload IS NULL OR octet_length(payload::text) > 262144 THEN
        PERFORM evenhand.refuse_argument(
            format('the payload has %s bytes', coalesce(octet_length(payload::text)::text, 'no')),
            'It is JSON of at most 262144 bytes as text. Keep large data elsewhere, and its address in the payload.');
    END IF;
    IF value_class IS NULL OR value_class NOT IN ('critical', 'standard', 'batch') THEN
        PERFORM evenhand.refuse_argument(format('value class is %L', value_class), 'It is critical, standard or batch.');
    END IF;
    PERFORM evenhand.require_within('base priority', base_priority, 0, 100, '');
    PERFORM evenhand.require_within('cost', cost_micros, 0, 1000000000000000, ' micros');
    PERFORM evenhand.require_within('attempts_max', attempts_max, 1, 1000, '');
    PERFORM evenhand.require_within('timeout in ms', evenhand.interval_millis(timeout), 1, 604800000, ' ms, which is 7 days');
    IF delay IS NOT NULL THEN
        PERFORM evenhand.require_within('delay in ms', v_delay_ms, 0, 31622400000000, ' ms');
        IF ready_at IS NOT NULL THEN
            PERFORM evenhand.refuse_argument('both ready_at and delay are given', 'Give one of them, or none for at once.');
        END IF;
    END IF;
    IF NOT isfinite(ready_at) OR extract(year FROM ready_at) NOT BETWEEN 1970 AND 9998 THEN
        PERFORM evenhand.refuse_argument(format('ready_at is %s', ready_at), 'It is a time from 1970 to 9998.');
    END IF;
    SELECT e.run_id, e.outcome INTO run_id, v_outcome
    FROM evenhand.enqueue(
        pool, tenant, coalesce(team, tenant), kind, payload, value_class, base_priority, cost_micros,
        evenhand.micros(ready_at), v_delay_ms, attempts_max, evenhand.interval_millis(timeout), idempotency_key) AS e;
    IF v_outcome = 'conflict' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV011',
            MESSAGE = format('idempotency key %s names run %s, which has other content', idempotency_key, run_id),
            HINT = 'Use another key for another run.';
    END IF;
    created := v_outcome = 'created';
END
$$;

GRANT EXECUTE ON FUNCTION evenhand.enqueue_run TO evenhand_app;
