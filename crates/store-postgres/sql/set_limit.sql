SELECT evenhand.set_limit($1, $2, $3, $4)
