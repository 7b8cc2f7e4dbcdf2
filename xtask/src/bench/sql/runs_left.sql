SELECT count(*)::float8 FROM evenhand.runs WHERE state IN ('queued', 'running');
