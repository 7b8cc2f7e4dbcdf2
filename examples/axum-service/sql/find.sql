SELECT id, shop, item, quantity, state FROM orders WHERE id = $1
