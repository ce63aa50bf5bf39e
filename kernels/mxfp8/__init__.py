"""The MXFP8 ops: reference.py to read, eager.py to run."""
