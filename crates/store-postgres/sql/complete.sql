SELECT evenhand.complete($1, $2, $3, $4)
