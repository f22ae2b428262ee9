"""Shared body."""
