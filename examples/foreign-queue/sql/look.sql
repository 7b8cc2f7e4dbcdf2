-- What became of the mail that was taken in this turn, if one was; and whether the customer has mails waiting.
SELECT
    (SELECT m.state FROM mail_outbox AS m
     WHERE m.reserved_by_shard = $2 AND m.reserved_by_sequence = $3) AS state,
    EXISTS (SELECT FROM mail_outbox AS m
     WHERE m.customer = $1 AND m.state = 'waiting' AND m.not_before <= now()) AS waiting
