"""Maps from foreign logs to the canonical tables."""
