"""Robust aggregation: what a server makes of updates, some of which may be sent by attackers."""

from mpifed.exchange.aggregation.aggregators import Aggregator, ByCoordinates, ByProducts, build

__all__ = ["Aggregator", "ByCoordinates", "ByProducts", "build"]
