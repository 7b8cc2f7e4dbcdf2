UPDATE stock SET available = available - $2 WHERE item = $1
