-- Whether any of these customers has a mail waiting.
SELECT EXISTS (
    SELECT FROM mail_outbox AS m
    WHERE m.customer = ANY ($1) AND m.state = 'waiting' AND m.not_before <= now()
)
