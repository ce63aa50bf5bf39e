"""Representations and transfer to students."""
