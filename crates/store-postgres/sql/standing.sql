SELECT standing, successor FROM evenhand.standing($1)
