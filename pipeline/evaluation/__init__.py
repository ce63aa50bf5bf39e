"""Metrics, promotion, tracking and the report."""
