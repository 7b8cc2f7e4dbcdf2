-- Marks a mail as sent, unless it was given back and is somebody else's by now.
UPDATE mail_outbox AS m
SET state = 'sent'
WHERE m.id = $1 AND m.reserved_by_shard = $2 AND m.reserved_by_sequence = $3 AND m.state = 'sending'
