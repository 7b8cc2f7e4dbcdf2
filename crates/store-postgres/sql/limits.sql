SELECT kind, name, runs_max, running FROM evenhand.limits($1)
