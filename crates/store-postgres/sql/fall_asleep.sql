SELECT pool_key, until_us, sleeper, channel FROM evenhand.fall_asleep($1, $2, $3)
