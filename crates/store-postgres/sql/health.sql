SELECT store_time_us, oldest_reservation_at_us, tenants, oldest_ready_at_us, oldest_snapshot_age_us FROM evenhand.health($1)
