SELECT first_sequence, reserved_at_us, store_time_us FROM evenhand.reserve($1, $2, $3, $4, $5)
