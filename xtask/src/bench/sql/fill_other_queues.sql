-- Eight runs of each other tenant, so that there are 1,024 of them in the table.
INSERT INTO evenhand.runs (
    id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank, attempts_max, base_priority,
    value_class, tenant, team, kind, payload
)
SELECT evenhand.new_id(n.now, n.number), evenhand.tick_of(n.now, p.wait_tick_ms), n.now, n.now, 0, 60000, p.pool_key,
       evenhand.rank_of(p, 'standard', 0), 20, 0, 'standard', t.tenant, t.tenant, 'bench.nothing', '{}'
FROM evenhand.pools AS p
JOIN evenhand.shards AS s ON s.pool_key = p.pool_key
JOIN evenhand.shard_tenants AS t ON t.shard_key = s.shard_key,
     (SELECT evenhand.clock() AS now, g.number FROM generate_series(1, 8) AS g (number)) AS n
WHERE p.pool = 'claim' AND t.tenant LIKE 'other-%';
