-- A repeatable read transaction keeps the snapshot of its first statement until it ends.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM pg_catalog.pg_class;
