SELECT pg_catalog.pg_total_relation_size('evenhand.runs')::float8;
