SELECT evenhand.complete_many($1, $2, $3, $4)
