INSERT INTO orders (shop, item, quantity) VALUES ($1, $2, $3) RETURNING id
