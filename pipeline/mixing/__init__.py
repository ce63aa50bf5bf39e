"""From foreign logs to mixed batches."""
