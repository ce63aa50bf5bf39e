"""Asynchronous precompute of user-ad representations."""
