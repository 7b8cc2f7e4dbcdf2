-- Gives back what was taken longer ago than any sender needs: its sender is gone.
UPDATE mail_outbox AS m
SET state = 'waiting'
WHERE m.state = 'sending' AND m.reserved_at <= now() - $1 * interval '1 microsecond'
