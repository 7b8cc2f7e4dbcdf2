SELECT c.outcome, c.sequences, c.expires_at_us, (c.run).* FROM evenhand.claim_round($1, $2, $3, $4, $5, $6, $7, $8, $9) AS c
