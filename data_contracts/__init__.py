"""The schema, and the rules at each boundary."""
