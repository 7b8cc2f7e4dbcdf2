SELECT sequence, outcome, recorded_at_us, run_id, tenant, fence, worker, ready_at_us, claimed_at_us, result, ended_at_us
FROM evenhand.sequences($1, $2, $3)
