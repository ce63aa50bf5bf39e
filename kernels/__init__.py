"""Tensor ops with a reference and fast paths."""
