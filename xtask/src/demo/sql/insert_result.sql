INSERT INTO demo.results (run_id, fence, digest) VALUES ($1, $2, $3)
