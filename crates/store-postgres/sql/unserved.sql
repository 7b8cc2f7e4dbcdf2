SELECT pool, tenant, queued FROM evenhand.unserved()
