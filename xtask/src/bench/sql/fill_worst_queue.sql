-- Tenant `worst`: forced runs of the lowest rank, and one run of each of the 302 ranks above that is not ready yet. A
-- claim finds the oldest run forced, and has to look at every rank for a higher one that is forced too.
INSERT INTO evenhand.runs (
    id, ready_tick, ready_at, enqueued_at, cost_micros, timeout_ms, pool_key, rank, attempts_max, base_priority,
    value_class, tenant, team, kind, payload
)
SELECT evenhand.new_id(n.now, r.ordinal), w.tick, to_timestamp(w.tick * p.wait_tick_ms / 1000.0), n.now, 0, 60000,
       p.pool_key, evenhand.rank_of(p, r.class, r.priority), 20, r.priority, r.class, 'worst', 'worst',
       'bench.nothing', '{}'
FROM evenhand.pools AS p,
     (SELECT evenhand.clock() AS now) AS n,
     (
         SELECT g.number AS ordinal, 'batch'::evenhand.value_class AS class, 0 AS priority, 20 AS waited
         FROM generate_series(1, 1000) AS g (number)
         UNION ALL
         SELECT 1000 + row_number() OVER (), c.class, g.priority, -20
         FROM unnest(enum_range(NULL::evenhand.value_class)) AS c (class), generate_series(0, 100) AS g (priority)
         WHERE (c.class, g.priority) <> ('batch', 0)
     ) AS r,
     LATERAL (SELECT evenhand.tick_of(n.now, p.wait_tick_ms) - r.waited AS tick) AS w
WHERE p.pool = 'claim';
