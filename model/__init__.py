"""The foundation model, its students and their training engine."""
