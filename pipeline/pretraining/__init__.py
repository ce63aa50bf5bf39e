"""Training of the foundation model."""
