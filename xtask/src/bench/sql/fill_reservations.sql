-- $1 old reservations and a new one, in order; the guards give each its sequence.
INSERT INTO evenhand.reservations (id, reserved_at, shard_key, count)
SELECT evenhand.new_id(t.at, g.number), t.at, s.shard_key, 1
FROM evenhand.shards AS s, generate_series(0, $1) AS g (number),
     LATERAL (
         SELECT evenhand.clock() - CASE WHEN g.number < $1 THEN interval '2 hours' ELSE interval '0' END AS at
     ) AS t;
