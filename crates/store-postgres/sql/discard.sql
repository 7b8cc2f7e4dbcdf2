SELECT outcome, state FROM evenhand.discard($1)
