SELECT sequence, reserved_at_us, outcome, run_id, tenant, fence, worker, ready_at_us, claimed_at_us, result, ended_at_us
FROM evenhand.tenant_history($1, $2, $3, $4, $5)
