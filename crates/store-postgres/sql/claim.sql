SELECT c.outcome, c.expires_at_us, (c.run).* FROM evenhand.claim($1, $2, $3, $4, $5) AS c
