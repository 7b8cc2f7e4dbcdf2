SELECT id, first_sequence, count, reserved_at_us, store_time_us FROM evenhand.lost_blocks($1, $2, $3)
