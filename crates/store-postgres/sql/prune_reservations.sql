SELECT cutoff_us, deleted, more FROM evenhand.prune_reservations($1, $2)
