"""What happens to updates under a server besides noise and attacks, as transforms of one kind.

A client compresses its update before it is sent; what a biased compressor loses is added to the
update of the next round (error feedback; Seide et al. 2014; Stich et al. 2018):

    m_t = C(u_t + e_t),    e_t <- u_t + e_t - m_t

The server clips what arrives, takes a mean or another aggregate of it, and moves by a step along
that (``server_optimizers``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mpifed.exchange.aggregation import clipped
from mpifed.exchange.base import Transform, Updates
from mpifed.exchange.compression import Compressor, compressed
from mpifed.exchange.server_optimizers import ServerOptimizer
from mpifed.state import check_result, client, pair_of


class Sending(Transform):
    """Messages as they arrive, compressed by ``compressor`` or whole; they are booked."""

    def __init__(self, compressor: Compressor | None = None) -> None:
        self.compressor = compressor

    def apply(self, updates: Updates, state: Any, channel: Any) -> tuple[Updates, Any]:
        values, round = updates.values, channel.round
        purpose = channel.book(math.prod(values.shape[1:]), values.dtype, self.compressor)
        if self.compressor is None:
            return updates, state
        rows = updates.differences.flatten(1)
        arrived = compressed(self.compressor, rows, round.draws, round.ids, purpose)
        return Updates(arrived.view(values.shape)), state


@dataclass(frozen=True)
class Residuals:
    """What a biased compressor has kept back of each client's messages.

    Attributes
    ----------
    residual : Tensor
        (clients, numbers), one row per client.
    """

    residual: Tensor = client()


class ErrorFeedback(Sending):
    """Messages of which a client adds what is lost to its next update."""

    memory: ClassVar[str] = "feedback"

    def init(self, like: Tensor) -> Residuals:
        return Residuals(like.new_zeros(like.shape))

    def apply(self, updates: Updates, state: Residuals, channel: Any) -> tuple[Updates, Residuals]:
        differences = updates.differences
        part = channel.next_part(math.prod(differences.shape[1:]))
        residual = state.residual.clone()
        corrected = differences.flatten(1) + residual[:, part]
        arrived, _ = super().apply(Updates(corrected), None, channel)
        residual[:, part] = corrected - arrived.values
        return Updates(arrived.values.view(differences.shape)), Residuals(residual)


def sending(compressor: Compressor | None) -> Sending:
    """Return how updates are sent: with error feedback where a compressor is biased."""
    biased = compressor is not None and not compressor.unbiased
    return ErrorFeedback(compressor) if biased else Sending(compressor)


class Clip(Transform):
    """Updates of at most a Euclidean norm; longer ones are scaled to it."""

    def __init__(self, norm: float) -> None:
        self.norm = norm

    def apply(self, updates: Updates, state: Any, channel: Any) -> tuple[Updates, Any]:
        return Updates(clipped(updates.differences, self.norm)), state


class ServerStep(Transform):
    """By how much a server moves along the mean of updates of a round.

    ``buffers`` is where the mean is of running statistics, which take it as it is.
    """

    memory: ClassVar[str] = "moments"

    def __init__(self, optimizer: ServerOptimizer, buffers: slice = slice(0, 0)) -> None:
        self.optimizer, self.buffers = optimizer, buffers

    def init(self, like: Tensor) -> Any:
        return self.optimizer.init(like)

    def apply(self, updates: Updates, state: Any, channel: Any) -> tuple[Updates, Any]:
        mean = updates.differences
        returned = self.optimizer.step(mean.flatten(), state)
        step, moments = pair_of(returned, self.optimizer, "step")
        check_result(step, mean.flatten(), self.optimizer, "step")
        step = step.view_as(mean)
        step[..., self.buffers] = mean[..., self.buffers]
        return Updates(step), moments
