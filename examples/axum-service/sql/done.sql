UPDATE orders SET state = 'done' WHERE id = $1
