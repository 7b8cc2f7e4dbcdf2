-- Whose run each sequence took, in the order of sequences.
SELECT tenant FROM evenhand.attempts ORDER BY shard_key, sequence;
