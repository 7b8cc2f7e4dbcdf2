SELECT outcome, state FROM evenhand.cancel($1)
