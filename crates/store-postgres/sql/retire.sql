SELECT created, retired_at_us, old_length, pool, unserved_tenants, unserved_queued FROM evenhand.retire($1, $2)
