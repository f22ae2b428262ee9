"""Schedules: sequences of mixing matrices, one for each round, and the table of their names."""
