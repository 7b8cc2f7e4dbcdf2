SELECT evenhand.wake_up($1, $2, $3)
