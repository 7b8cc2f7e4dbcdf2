SELECT pool, tenant, queued, running, done, dead FROM evenhand.counts()
