"""Gossip without rounds that anybody waits for: a discrete-event schedule, the same everywhere."""

from mpifed.exchange.asynchrony.channel import AsynchronousChannel, Timetable, first_values

__all__ = ["AsynchronousChannel", "Timetable", "first_values"]
