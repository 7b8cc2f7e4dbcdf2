INSERT INTO serve.executions (process, run_id, fence, tenant, shard, sequence) VALUES ($1, $2, $3, $4, $5, $6)
