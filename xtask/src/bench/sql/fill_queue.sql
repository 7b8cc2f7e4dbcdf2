-- $1 queued runs of tenant $2, of every class and priority, which have been waiting for 0 to $3 - 1 ticks.
INSERT INTO evenhand.runs (
    id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank, attempts_max, base_priority,
    value_class, tenant, team, kind, payload
)
SELECT evenhand.new_id(n.now, n.number), w.tick, to_timestamp(w.tick * p.wait_tick_ms / 1000.0), n.now, 0, 60000,
       p.pool_key, evenhand.rank_of(p, c.class, c.priority), 20, c.priority, c.class, $2, $2, 'bench.nothing', '{}'
FROM evenhand.pools AS p,
     (SELECT evenhand.clock() AS now, g.number FROM generate_series(0, $1 - 1) AS g (number)) AS n,
     LATERAL (SELECT evenhand.tick_of(n.now, p.wait_tick_ms) - n.number % $3 AS tick) AS w,
     -- Ranks and ticks must not go in step: 101 priorities and three classes change at their own pace.
     LATERAL (SELECT (enum_range(NULL::evenhand.value_class))[1 + n.number / 11 % 3] AS class,
                     n.number / 7 % 101 AS priority) AS c
WHERE p.pool = 'claim';
