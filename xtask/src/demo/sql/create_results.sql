-- What the demo's handlers write: one row a run, in the transaction that completes the run.
CREATE SCHEMA demo;
CREATE TABLE demo.results (
    run_id uuid PRIMARY KEY,
    -- The attempt that wrote it.
    fence bigint NOT NULL,
    digest text NOT NULL
);
