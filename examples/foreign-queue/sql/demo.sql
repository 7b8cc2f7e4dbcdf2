INSERT INTO mail_outbox (customer, recipient, subject)
SELECT customer, 'reader-' || number || '@' || customer || '.example', 'News ' || number
FROM (VALUES ('acme', 300), ('bolt', 30)) AS c (customer, mails), generate_series(1, c.mails) AS number
