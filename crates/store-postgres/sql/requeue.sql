SELECT outcome, state FROM evenhand.requeue($1)
