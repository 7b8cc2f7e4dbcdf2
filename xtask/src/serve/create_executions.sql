-- What the handlers of `xtask serve` did: a row for each time that one of them was called.
CREATE SCHEMA serve;
-- Without a key: a run that is executed twice must show, not fail.
CREATE TABLE serve.executions (
    process bigint NOT NULL,
    run_id uuid NOT NULL,
    fence bigint NOT NULL,
    tenant text NOT NULL,
    -- What the run was claimed against.
    shard text NOT NULL,
    sequence bigint NOT NULL
);
