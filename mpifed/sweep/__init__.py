"""Sweeps: a run for every combination of lists of values."""
