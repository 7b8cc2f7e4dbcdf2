SELECT c.* FROM evenhand.claim($1, $2, $3, $4, $5, $6) AS c
