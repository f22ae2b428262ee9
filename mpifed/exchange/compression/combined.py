"""Compressors made of others: a gate before a compressor, and one compressor after another."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Gt, Le
from torch import Tensor

from mpifed.components.registry import named
from mpifed.components.schema import ComponentOf
from mpifed.errors import InputError
from mpifed.exchange.compression.base import PURPOSE, Compressor, build, chunks, random_bits
from mpifed.exchange.compression.sparse import Sparsifier
from mpifed.federation.clients import Draws


class Bernoulli(Compressor):
    """A gate: with probability p what inner makes, over p, else nothing is sent.

    Parameters
    ----------
    p : float
        Probability that the gate is open.
    inner : str or mapping
        The compressor behind the gate.
    """

    def __init__(
        self,
        *,
        p: Annotated[float, Gt(0), Le(1)] = 0.5,
        inner: Annotated[Any, ComponentOf("compression")] = "none",
    ) -> None:
        self.p, self.inner = p, build(inner, "compression.inner")
        self.unbiased = self.inner.unbiased

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the same options; raise ``InputError`` if ``inner`` is not a compressor."""
        Bernoulli(**options)
        return options

    def omega(self, size: int) -> float:
        return (1 + self.inner.omega(size)) / self.p - 1

    def contraction(self, size: int) -> float:
        return self.p * self.inner.contraction(size)

    def open(self, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE) -> np.ndarray:
        """Return whose gate is open: bool (clients,)."""
        bits = random_bits(draws, f"{purpose}/gate", ids, 1)[:, 0]
        return (bits >> np.uint64(11)) * 2.0**-53 < self.p

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        gate = torch.from_numpy(self.open(draws, ids, purpose)).to(rows)[:, None]
        return self.inner(rows, draws, ids, purpose) * (gate / self.p if self.unbiased else gate)

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        sent = self.inner.bits(size, itemsize, draws, ids, purpose)
        return np.where(self.open(draws, ids, purpose), sent, 0)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        sent = self.inner.floats(size, draws, ids, purpose)
        return np.where(self.open(draws, ids, purpose), sent, 0)


class Composition(Compressor):
    """Outer after inner: the coordinates that inner keeps, as outer writes them. After a biased
    inner the result is divided by 1 + omega_outer(k), which makes it a contraction with delta =
    delta_inner / (1 + omega_outer) (Basu et al. 2019, section 2).

    Parameters
    ----------
    outer : str or mapping
        The compressor that writes the kept coordinates; it must be unbiased.
    inner : str or mapping
        The compressor that keeps some of the coordinates: ``rand_k`` or ``top_k``.
    """

    def __init__(
        self,
        *,
        outer: Annotated[Any, ComponentOf("compression")] = "quantise",
        inner: Annotated[Any, ComponentOf("compression")] = "rand_k",
    ) -> None:
        inner_name, _ = named(inner, "compression.inner")
        outer_name, _ = named(outer, "compression.outer")
        first = build(inner, "compression.inner")
        self.outer = build(outer, "compression.outer")
        if not isinstance(first, Sparsifier):
            raise InputError(
                f"compression.inner is '{inner_name}', which sends every coordinate, so that "
                "nothing is saved by writing them twice; allowed: rand_k, top_k"
            )
        if isinstance(self.outer, (Sparsifier, Bernoulli, Composition)):
            raise InputError(
                f"compression.outer is '{outer_name}', which does not write numbers but leaves "
                "some out; allowed: none, quantise, natural (a gate goes around a composition: "
                "bernoulli with the composition as its inner)"
            )
        if not self.outer.unbiased:
            raise InputError(
                f"compression.outer is '{outer_name}', which is biased; what writes the kept "
                "coordinates must be unbiased, as quantise and natural are"
            )
        self.inner: Sparsifier = first
        self.unbiased = first.unbiased

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the same options; raise ``InputError`` for parts that cannot be combined."""
        Composition(**options)
        return options

    def omega(self, size: int) -> float:
        outer = self.outer.omega(self.inner.kept(size))
        return (1 + self.inner.omega(size)) * (1 + outer) - 1

    def contraction(self, size: int) -> float:
        outer = self.outer.omega(self.inner.kept(size))
        return self.inner.contraction(size) / (1 + outer)

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        size = rows.shape[1]
        k, scale = self.inner.kept(size), self.inner.scale(size)
        if not self.unbiased:
            scale /= 1 + self.outer.omega(k)
        # 0 times what is not finite is not finite, so that it is seen if it is left out.
        arrived = rows * 0
        for part in chunks(*rows.shape):
            kept = self.inner.select(rows[part], draws, ids[part], purpose)
            mask = torch.from_numpy(kept).to(rows.device)
            values = rows[part][mask].view(-1, k) * scale
            written = self.outer(values, draws, ids[part], f"{purpose}/outer")
            arrived[part][mask] += written.view(-1)
        return arrived

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        k = self.inner.kept(size)
        written = self.outer.bits(k, itemsize, draws, ids, f"{purpose}/outer")
        return k * self.inner.index_bits + written

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return self.inner.floats(size, draws, ids, purpose)
