"""The pooling ops: reference.py to read, eager.py to run."""
