"""Sums of jagged rows: reference.py to read, eager.py to run."""
