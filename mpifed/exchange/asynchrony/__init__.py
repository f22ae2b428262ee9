"""Gossip without rounds that anybody waits for: a discrete-event schedule, the same everywhere."""

from mpifed.exchange.asynchrony.channel import AsynchronousChannel, first_values
from mpifed.exchange.asynchrony.timetable import Timetable

__all__ = ["AsynchronousChannel", "Timetable", "first_values"]
