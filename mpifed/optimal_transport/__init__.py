"""Optimal transport."""
