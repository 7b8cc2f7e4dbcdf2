-- How many runs of a tenant or team are running at once, across all replicas.

-- A count of running runs would let two claims that count at one moment both take the last place. So each place is a
-- row, a permit, and whoever claims takes a free one under its lock. The lease names the permits that it holds, and
-- whoever deletes the lease frees them in the same transaction: what is running is what has a lease, and nothing leaks.

-- In the order in which limits are listed.
CREATE TYPE evenhand.limit_kind AS ENUM ('tenant', 'team');

CREATE TABLE evenhand.limits (
    pool_key integer NOT NULL REFERENCES evenhand.pools,
    kind evenhand.limit_kind NOT NULL,
    name text COLLATE "C" NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 128),
    runs_max integer NOT NULL CHECK (runs_max BETWEEN 0 AND 10000),
    -- How many permits there are above the limit, because it was lowered or set while they were held. Until they are
    -- gone nothing is claimed.
    excess integer NOT NULL CHECK (excess >= 0),
    PRIMARY KEY (pool_key, kind, name)
);

-- As many rows a limit as it allows and has in excess.
CREATE TABLE evenhand.permits (
    run_id uuid,
    pool_key integer NOT NULL,
    ordinal integer NOT NULL,
    kind evenhand.limit_kind NOT NULL,
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (pool_key, kind, name, ordinal)
) WITH (fillfactor = 50);
CREATE INDEX permits_free ON evenhand.permits (pool_key, kind, name, ordinal) WHERE run_id IS NULL;

ALTER TABLE evenhand.leases
    ADD COLUMN tenant_permit integer,
    ADD COLUMN team_permit integer,
    -- Whether somebody asked for the run to stop.
    ADD COLUMN stop_requested boolean NOT NULL DEFAULT false;

-- Claims of a pool hold this shared and a change of its limits holds it alone, so that no claim is under way which did
-- not see the limit. Claims take it after the reservation, and wait for nothing afterwards.
CREATE FUNCTION evenhand.hold_limits(p_pool_key integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('evenhand.limits', p_pool_key));
END
$$;

-- Free permits, locked: as many as wanted, or as there are. NULL when there is no such limit. Nobody is waited for.
CREATE FUNCTION evenhand.lock_permits(
    p_pool_key integer, p_kind evenhand.limit_kind, p_name text, p_wanted integer
) RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_excess integer;
    v_ordinals integer[];
BEGIN
    SELECT l.excess INTO v_excess FROM evenhand.limits AS l
    WHERE l.pool_key = p_pool_key AND l.kind = p_kind AND l.name = p_name;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_excess > 0 AND NOT evenhand.is_excess_gone(p_pool_key, p_kind, p_name) THEN
        RETURN '{}';
    END IF;
    SELECT coalesce(array_agg(f.ordinal), '{}') INTO v_ordinals
    FROM (
        SELECT p.ordinal FROM evenhand.permits AS p
        WHERE p.pool_key = p_pool_key AND p.kind = p_kind AND p.name = p_name AND p.run_id IS NULL
        ORDER BY p.pool_key, p.kind, p.name, p.ordinal LIMIT p_wanted FOR UPDATE SKIP LOCKED
    ) AS f;
    RETURN v_ordinals;
END
$$;

-- Whether all permits in excess are gone, after what has become free is taken away.
CREATE FUNCTION evenhand.is_excess_gone(p_pool_key integer, p_kind evenhand.limit_kind, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_excess integer;
    v_deleted integer;
BEGIN
    SELECT l.excess INTO v_excess FROM evenhand.limits AS l
    WHERE l.pool_key = p_pool_key AND l.kind = p_kind AND l.name = p_name FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- Somebody else is taking them away.
        RETURN false;
    END IF;
    v_deleted := evenhand.delete_free_permits(p_pool_key, p_kind, p_name, v_excess);
    IF v_deleted > 0 THEN
        UPDATE evenhand.limits AS l SET excess = v_excess - v_deleted
        WHERE l.pool_key = p_pool_key AND l.kind = p_kind AND l.name = p_name;
    END IF;
    RETURN v_deleted = v_excess;
END
$$;

CREATE FUNCTION evenhand.delete_free_permits(
    p_pool_key integer, p_kind evenhand.limit_kind, p_name text, p_most integer
) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_deleted integer;
BEGIN
    DELETE FROM evenhand.permits AS p
    WHERE p.ctid = ANY (ARRAY(
        SELECT f.ctid FROM evenhand.permits AS f
        WHERE f.pool_key = p_pool_key AND f.kind = p_kind AND f.name = p_name AND f.run_id IS NULL
        ORDER BY f.pool_key, f.kind, f.name, f.ordinal LIMIT p_most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END
$$;

-- Gives the lease and its permits back, and writes down how the attempt ended.
CREATE OR REPLACE FUNCTION evenhand.end_attempt(p_run_id uuid, p_result text, p_now timestamptz, p_retry_at timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lease evenhand.leases;
BEGIN
    DELETE FROM evenhand.leases AS l WHERE l.run_id = p_run_id RETURNING l.* INTO STRICT v_lease;
    UPDATE evenhand.attempts AS a SET result = p_result, ended_at = p_now, retry_at = p_retry_at
    WHERE a.shard_key = v_lease.shard_key AND a.sequence = v_lease.sequence;
    IF v_lease.tenant_permit IS NOT NULL OR v_lease.team_permit IS NOT NULL THEN
        PERFORM evenhand.free_permits(p_run_id, v_lease.tenant_permit, v_lease.team_permit);
    END IF;
END
$$;

-- A permit that is no longer the run's, since its limit was lifted meanwhile, is left alone.
CREATE FUNCTION evenhand.free_permits(p_run_id uuid, p_tenant_permit integer, p_team_permit integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run record;
BEGIN
    SELECT r.pool_key, r.tenant, r.team INTO STRICT v_run FROM evenhand.runs AS r WHERE r.id = p_run_id;
    UPDATE evenhand.permits AS p SET run_id = NULL
    WHERE p.pool_key = v_run.pool_key AND p.kind = 'tenant' AND p.name = v_run.tenant AND p.ordinal = p_tenant_permit
      AND p.run_id = p_run_id;
    UPDATE evenhand.permits AS p SET run_id = NULL
    WHERE p.pool_key = v_run.pool_key AND p.kind = 'team' AND p.name = v_run.team AND p.ordinal = p_team_permit
      AND p.run_id = p_run_id;
END
$$;

-- Permits for the runs of a tenant or team that are running already, as many as there are.
CREATE FUNCTION evenhand.permit_running(p_pool_key integer, p_kind evenhand.limit_kind, p_name text) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_running uuid[];
BEGIN
    -- In the order in which renewals lock them.
    SELECT coalesce(array_agg(h.run_id), '{}') INTO v_running
    FROM (
        SELECT l.run_id FROM evenhand.leases AS l JOIN evenhand.runs AS r ON r.id = l.run_id
        WHERE r.pool_key = p_pool_key AND p_name = CASE p_kind WHEN 'tenant' THEN r.tenant ELSE r.team END
        ORDER BY l.run_id FOR UPDATE OF l
    ) AS h;
    INSERT INTO evenhand.permits (pool_key, kind, name, ordinal, run_id)
    SELECT p_pool_key, p_kind, p_name, h.ordinal, h.run_id
    FROM unnest(v_running) WITH ORDINALITY AS h (run_id, ordinal);
    UPDATE evenhand.leases AS l
    SET tenant_permit = CASE p_kind WHEN 'tenant' THEN h.ordinal ELSE l.tenant_permit END,
        team_permit = CASE p_kind WHEN 'team' THEN h.ordinal ELSE l.team_permit END
    FROM unnest(v_running) WITH ORDINALITY AS h (run_id, ordinal)
    WHERE l.run_id = h.run_id;
    RETURN cardinality(v_running);
END
$$;

-- Sets how many runs of a tenant or team are running at once; NULL lifts the limit. What is running goes on.
CREATE FUNCTION evenhand.set_limit(p_pool text, p_kind text, p_name text, p_runs_max integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
    SET enable_mergejoin = off SET jit = off
    -- Claims of the pool wait meanwhile, and this waits for a lease whose run is being completed in a long transaction.
    SET lock_timeout = '2s'
AS $$
DECLARE
    v_kind evenhand.limit_kind := p_kind::evenhand.limit_kind;
    v_pool_key integer;
    v_permits integer;
    v_excess integer := 0;
BEGIN
    PERFORM evenhand.require_read_committed();
    PERFORM evenhand.require_durable_commit();
    v_pool_key := evenhand.pool_key_of(p_pool);
    PERFORM pg_advisory_xact_lock(hashtextextended('evenhand.limits', v_pool_key));
    IF p_runs_max IS NULL THEN
        DELETE FROM evenhand.permits AS p WHERE p.pool_key = v_pool_key AND p.kind = v_kind AND p.name = p_name;
        DELETE FROM evenhand.limits AS l WHERE l.pool_key = v_pool_key AND l.kind = v_kind AND l.name = p_name;
        RETURN;
    END IF;
    SELECT l.runs_max + l.excess INTO v_permits FROM evenhand.limits AS l
    WHERE l.pool_key = v_pool_key AND l.kind = v_kind AND l.name = p_name;
    IF NOT FOUND THEN
        v_permits := evenhand.permit_running(v_pool_key, v_kind, p_name);
    END IF;
    IF v_permits <= p_runs_max THEN
        INSERT INTO evenhand.permits (pool_key, kind, name, ordinal)
        SELECT v_pool_key, v_kind, p_name, last.ordinal + n.n
        FROM (
            SELECT coalesce(max(p.ordinal), 0) AS ordinal FROM evenhand.permits AS p
            WHERE p.pool_key = v_pool_key AND p.kind = v_kind AND p.name = p_name
        ) AS last CROSS JOIN generate_series(1, p_runs_max - v_permits) AS n (n);
    ELSE
        v_excess := v_permits - p_runs_max
            - evenhand.delete_free_permits(v_pool_key, v_kind, p_name, v_permits - p_runs_max);
    END IF;
    INSERT INTO evenhand.limits AS l (pool_key, kind, name, runs_max, excess)
    VALUES (v_pool_key, v_kind, p_name, p_runs_max, v_excess)
    ON CONFLICT (pool_key, kind, name) DO UPDATE SET runs_max = excluded.runs_max, excess = excluded.excess;
END
$$;

-- The limits of a pool, tenants before teams, each by name, and how many runs of each are running.
CREATE FUNCTION evenhand.limits(p_pool text)
RETURNS TABLE (kind text, name text, runs_max integer, running integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
BEGIN ATOMIC
    SELECT l.kind::text, l.name, l.runs_max,
           (SELECT count(*)::integer FROM evenhand.permits AS p
            WHERE p.pool_key = l.pool_key AND p.kind = l.kind AND p.name = l.name AND p.run_id IS NOT NULL)
    FROM evenhand.limits AS l
    WHERE l.pool_key = (SELECT o.pool_key FROM evenhand.pools AS o WHERE o.pool = p_pool)
    ORDER BY l.pool_key, l.kind, l.name;
END;

GRANT EXECUTE ON FUNCTION evenhand.set_limit, evenhand.limits TO evenhand_app;
GRANT EXECUTE ON FUNCTION evenhand.limits TO evenhand_observer;
GRANT SELECT ON evenhand.limits, evenhand.permits TO evenhand_observer;
