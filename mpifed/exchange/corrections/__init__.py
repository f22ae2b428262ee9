"""Corrections of gossip: what clients send and keep, so that unlike data do not bias the result."""

from mpifed.exchange.corrections.base import Correction, CorrectionMemory, Neighbours, build

__all__ = ["Correction", "CorrectionMemory", "Neighbours", "build"]
