"""Compressors: what a message loses on its way, one row per client."""

from mpifed.exchange.compression.base import Compressor, build

__all__ = ["Compressor", "build"]
