"""Runs over every combination of values: ``python -m mpifed.sweep``."""
