SELECT outcomes, attempts, finished, dead, more FROM evenhand.prune_history($1, $2, $3, $4)
