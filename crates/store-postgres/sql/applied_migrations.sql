SELECT version, checksum, success FROM evenhand.migrations ORDER BY version
