SELECT tenants, store_time_us FROM evenhand.ready_tenants($1)
