"""Seed attention: reference.py to read, eager.py to run."""
