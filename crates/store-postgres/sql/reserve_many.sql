SELECT first_sequence, reserved_at_us, store_time_us, refusal, message
FROM evenhand.reserve_many($1, $2, $3, $4, $5)
