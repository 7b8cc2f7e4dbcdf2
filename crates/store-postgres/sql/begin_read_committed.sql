BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT pg_catalog.set_config('statement_timeout', '30s', true),
       pg_catalog.set_config('lock_timeout', '10s', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '60s', true)
