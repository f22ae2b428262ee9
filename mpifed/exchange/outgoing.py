"""What clients do to their updates before they send them: attacks, and noise of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.base import Channel, ServerChannel
from mpifed.exchange.forwarding import Forwarding, ServerForwarding
from mpifed.exchange.reduction import SparseRows
from mpifed.federation.clients import Federation


@dataclass(frozen=True)
class Round:
    """Who takes part in which round."""

    number: int
    active: np.ndarray


@dataclass(frozen=True)
class Change:
    """A change of the updates of some clients."""

    federation: Federation
    who: np.ndarray
    how: Callable[[Tensor, np.ndarray, Round], Tensor]


def changing(channel: Channel, change: Change, round: Round) -> Channel:
    """Return a channel by which clients send what ``change`` makes of their updates."""
    kind = ChangingServer if isinstance(channel, ServerChannel) else Changing
    return kind(channel, change, round)  # type: ignore[arg-type]


class Changing(Forwarding):
    """A channel by which some clients send something else; see ``changing``."""

    def __init__(self, channel: Channel, change: Change, round: Round) -> None:
        super().__init__(channel)
        self.change, self.round = change, round

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        return self.channel.average(self._changed(rows, before), weights, before, whole)

    def _changed(self, rows: Tensor, before: Tensor | None) -> Tensor:
        """``rows`` with those of some clients replaced; they are updates where None is before."""
        hosted = self.change.federation.hosted
        ids = hosted[self.round.active[hosted]]
        places = np.flatnonzero(self.change.who[ids])
        if not len(places):
            return rows
        which = torch.from_numpy(places).to(rows.device)
        base: Tensor | float = 0.0
        if before is not None:
            base = before[which] if self.shared_is_rows else before
        made = self.change.how(rows[which] - base, ids[places], self.round)
        return rows.index_copy(0, which, (made + base).to(rows))


class ChangingServer(Changing, ServerForwarding):
    """The same of a channel to a server."""

    def __init__(self, channel: ServerChannel, change: Change, round: Round) -> None:
        ServerForwarding.__init__(self, channel)
        self.change, self.round = change, round

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        return self.server.send(rows if whole else self._changed(rows, None), whole)

    def send_chosen(self, rows: SparseRows) -> SparseRows:
        values = self._changed(rows.values, None)
        return self.server.send_chosen(SparseRows(rows.columns, values, rows.size))

    def among(self, chosen: np.ndarray) -> ChangingServer:
        part = Round(self.round.number, self.round.active & chosen)
        return ChangingServer(self.server.among(chosen), self.change, part)
