SELECT id, first_sequence, count, reserved_at_us, store_time_us FROM evenhand.reservations_from($1, $2, $3)
