"""Corrections of gossip: what clients send and keep, so that unlike data do not bias the result."""

from mpifed.exchange.corrections.base import Correction, Kept, Neighbours, build

__all__ = ["Correction", "Kept", "Neighbours", "build"]
