-- How many processes executed how many runs that were claimed against a shard.
SELECT count(DISTINCT process), count(*) FROM serve.executions WHERE shard = $1
