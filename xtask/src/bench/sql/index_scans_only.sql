-- The guards plan their statements while the table is still empty.
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET jit = off;
