SELECT created, standing, successor, unserved_tenants, unserved_queued, store_time_us
FROM evenhand.register_policy($1, $2, $3, $4, $5, $6, $7, $8, $9)
