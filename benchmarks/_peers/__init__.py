"""What `benchmarks.peers` is made of: the data, both sides, and the verdict."""
