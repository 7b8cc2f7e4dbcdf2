-- Takes the customer's next mail for one turn. Mails that others are just taking are stepped over.
WITH next AS (
    SELECT m.id
    FROM mail_outbox AS m
    WHERE m.customer = $1 AND m.state = 'waiting' AND m.not_before <= now()
    ORDER BY m.not_before, m.id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE mail_outbox AS m
SET state = 'sending', reserved_by_shard = $2, reserved_by_sequence = $3, reserved_at = now()
FROM next
WHERE m.id = next.id
RETURNING m.id, m.recipient, m.subject
