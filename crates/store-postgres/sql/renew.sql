SELECT expires_at_us, stop_requested FROM evenhand.renew($1, $2, $3)
