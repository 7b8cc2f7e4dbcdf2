SELECT evenhand.record_failed($1, $2)
