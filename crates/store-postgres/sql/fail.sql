SELECT outcome, ready_at_us FROM evenhand.fail($1, $2, $3, $4, $5, $6)
