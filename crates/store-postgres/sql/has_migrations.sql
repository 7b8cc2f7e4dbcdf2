SELECT pg_catalog.to_regclass('evenhand.migrations') IS NOT NULL
