SELECT tenants, next_ready_at_us, store_time_us FROM evenhand.ready_tenants($1)
