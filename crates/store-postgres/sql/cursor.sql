SELECT next_sequence, store_time_us FROM evenhand.cursor($1)
