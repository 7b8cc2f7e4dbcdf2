SELECT * FROM evenhand.runs($1, $2, $3, $4, $5, $6)
