SELECT pg_catalog.pg_total_relation_size('evenhand.reservations')::float8;
