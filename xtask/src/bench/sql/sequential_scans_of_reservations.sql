-- How often somebody has read the whole table since the database was made.
SELECT seq_scan::float8 FROM pg_catalog.pg_stat_user_tables
WHERE relid = 'evenhand.reservations'::regclass;
