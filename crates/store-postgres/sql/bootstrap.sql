-- What has to be there before the first migration: the roles, and the schema that one of them owns. Roles belong to the
-- whole server, so another database may have made them already, or may be making them at this moment.
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY
        ARRAY['evenhand_owner', 'evenhand_migrator', 'evenhand_app', 'evenhand_retention', 'evenhand_observer']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = v_role) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    IF NOT pg_catalog.pg_has_role('evenhand_migrator', 'evenhand_owner', 'MEMBER') THEN
        BEGIN
            GRANT evenhand_owner TO evenhand_migrator;
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_catalog.pg_has_role(current_user, 'evenhand_owner', 'MEMBER') THEN
        EXECUTE pg_catalog.format('GRANT evenhand_owner TO %I', current_user);
    END IF;
END
$$;
CREATE SCHEMA IF NOT EXISTS evenhand AUTHORIZATION evenhand_owner;
