"""The gdpa ops: reference.py to read, eager.py to run."""
