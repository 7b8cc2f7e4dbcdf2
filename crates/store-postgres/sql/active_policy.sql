SELECT shard, canonical, digest FROM evenhand.active_policy($1)
