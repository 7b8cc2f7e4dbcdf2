SELECT * FROM evenhand.run($1)
