SELECT run_id, fence, tenant, shard, sequence FROM serve.executions
