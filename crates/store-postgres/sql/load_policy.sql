SELECT canonical, digest FROM evenhand.load_policy($1)
