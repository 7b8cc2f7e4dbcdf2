-- Lets a mail that could not be sent wait for a minute. It keeps the turn that it used up.
UPDATE mail_outbox AS m
SET state = 'waiting', not_before = now() + interval '1 minute'
WHERE m.id = $1 AND m.reserved_by_shard = $2 AND m.reserved_by_sequence = $3 AND m.state = 'sending'
RETURNING (extract(epoch FROM m.not_before) * 1000000)::bigint
