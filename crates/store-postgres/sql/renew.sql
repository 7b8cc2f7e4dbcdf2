SELECT expires_at_us FROM evenhand.renew($1, $2, $3)
