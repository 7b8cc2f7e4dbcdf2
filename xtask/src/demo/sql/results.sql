SELECT run_id, fence, digest FROM demo.results ORDER BY run_id
