SELECT requeued, dead FROM evenhand.recover($1)
