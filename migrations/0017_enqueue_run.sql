-- Enqueueing from any language: one function with named arguments, and every check of the Rust API.

CREATE FUNCTION evenhand.refuse_argument(p_message text, p_hint text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
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
    IF p_id IS NULL OR p_id !~ '^[A-Za-z0-9._:-]{1,128}$' COLLATE "C" OR p_id COLLATE "C" IN ('.', '..') THEN
        PERFORM evenhand.refuse_argument(
            format('%s %L is no id', p_what, left(p_id, 300)), 'An id is 1 to 128 of A-Z a-z 0-9 . _ : - and neither . nor ..');
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

-- Refuses an interval outside of its bounds, which are seconds, and cuts the others to whole milliseconds.
CREATE FUNCTION evenhand.require_millis(p_what text, p_interval interval, p_least numeric, p_most numeric, p_hint text)
RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_interval IS NULL OR extract(epoch FROM p_interval) NOT BETWEEN p_least AND p_most THEN
        PERFORM evenhand.refuse_argument(format('%s is %s', p_what, coalesce(p_interval::text, 'NULL')), p_hint);
    END IF;
    RETURN floor(extract(epoch FROM p_interval) * 1000)::bigint;
END
$$;

-- Refuses what is no payload. Workers read JSON of up to 127 levels and numbers of a double's range: the claim of a run
-- with anything else would fail, and so would that of every run that is claimed together with it.
CREATE FUNCTION evenhand.require_payload(p_payload jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_payload IS NULL OR octet_length(p_payload::text) > 262144 THEN
        PERFORM evenhand.refuse_argument(
            format('the payload has %s bytes', coalesce(octet_length(p_payload::text)::text, 'no')),
            'It is JSON of at most 262144 bytes as text. Keep large data elsewhere, and its address in the payload.');
    END IF;
    IF jsonb_path_exists(p_payload, 'strict $.**{127} ? (@.type() == "array" || @.type() == "object")') THEN
        PERFORM evenhand.refuse_argument('the payload is nested too deep', 'Arrays and objects have at most 127 levels.');
    END IF;
    IF jsonb_path_exists(p_payload, 'strict $.** ? (@.type() == "number" && (@ > 1e308 || @ < -1e308))') THEN
        PERFORM evenhand.refuse_argument(
            'the payload has a number that is too large', 'Numbers are -1e308 to 1e308. Write larger ones as strings.');
    END IF;
END
$$;

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
    v_delay_ms bigint;
    v_timeout_ms bigint;
BEGIN
    PERFORM evenhand.require_id('tenant', tenant);
    PERFORM evenhand.require_id('pool', pool);
    PERFORM evenhand.require_id('team', coalesce(team, tenant));
    PERFORM evenhand.require_name('kind', kind, 128);
    IF idempotency_key IS NOT NULL THEN
        PERFORM evenhand.require_name('idempotency key', idempotency_key, 255);
    END IF;
    PERFORM evenhand.require_payload(payload);
    IF value_class IS NULL OR value_class COLLATE "C" NOT IN ('critical', 'standard', 'batch') THEN
        PERFORM evenhand.refuse_argument(format('value class is %L', left(value_class, 300)), 'It is critical, standard or batch.');
    END IF;
    PERFORM evenhand.require_within('base priority', base_priority, 0, 100, '');
    PERFORM evenhand.require_within('cost', cost_micros, 0, 1000000000000000, ' micros');
    PERFORM evenhand.require_within('attempts_max', attempts_max, 1, 1000, '');
    v_timeout_ms := evenhand.require_millis(
        'timeout', timeout, 0.001, 604800, 'It is 1 millisecond to 7 days, and cut to whole milliseconds.');
    IF delay IS NOT NULL THEN
        v_delay_ms := evenhand.require_millis('delay', delay, 0, 31557600000, 'It is 0 to 1000 years.');
        IF ready_at IS NOT NULL THEN
            PERFORM evenhand.refuse_argument('both ready_at and delay are given', 'Give one of them, or none for at once.');
        END IF;
    END IF;
    IF NOT isfinite(ready_at) OR ready_at >= timestamptz '9999-01-01 00:00:00+00' THEN
        PERFORM evenhand.refuse_argument(
            format('ready_at is %s', ready_at), 'It is a time before the year 9999; one in the past means now.');
    END IF;
    -- A collation that the caller's own columns bring along would be at odds with that of the table.
    SELECT e.run_id, e.outcome INTO run_id, v_outcome
    FROM evenhand.enqueue(
        pool COLLATE "C", tenant, coalesce(team, tenant), kind, payload, value_class, base_priority, cost_micros,
        evenhand.micros(ready_at), v_delay_ms, attempts_max, v_timeout_ms, idempotency_key) AS e;
    IF v_outcome = 'conflict' THEN
        RAISE EXCEPTION USING ERRCODE = 'EV011',
            MESSAGE = format('idempotency key %s names run %s, which has other content', idempotency_key, run_id),
            HINT = 'Use another key for another run.';
    END IF;
    created := v_outcome = 'created';
END
$$;

GRANT EXECUTE ON FUNCTION evenhand.enqueue_run TO evenhand_app;
