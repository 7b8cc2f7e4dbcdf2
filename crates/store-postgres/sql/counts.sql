SELECT pool, tenant, queued, running, done, dead, cancelled FROM evenhand.counts()
