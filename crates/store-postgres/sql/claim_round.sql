SELECT c.* FROM evenhand.claim_round($1, $2, $3, $4, $5, $6, $7, $8, $9) AS c
