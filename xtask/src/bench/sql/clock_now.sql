-- The one clock of the schema as the migrations define it.
CREATE OR REPLACE FUNCTION evenhand.clock() RETURNS timestamptz
LANGUAGE sql VOLATILE
RETURN pg_catalog.clock_timestamp();
