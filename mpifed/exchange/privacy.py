"""Differential privacy of clients: Gaussian noise on clipped updates, by the server or by clients.

Neighbouring federations differ in one client's data and presence, in all rounds. With C the clip
norm, z the noise multiplier and k the expected number of participants,

    central    x + (1 / k) (sum_i clip(u_i) + N(0, z^2 C^2 I))
    local      client i sends clip(u_i) + N(0, z^2 C^2 I)

The first is DP-FedAvg with a fixed denominator (McMahan, Ramage, Talwar and Zhang 2018, Alg. 1):
clients count alike, so that one moves the sum by at most C. ``theory.accounting`` has epsilon.
Noise is pseudo-random and in floating point: this simulates private training and protects nobody.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import RunError
from mpifed.exchange.base import Channel, ServerChannel
from mpifed.exchange.forwarding import ServerForwarding
from mpifed.exchange.outgoing import Change, Round, changing
from mpifed.exchange.reduction import SparseRows
from mpifed.exchange.server import Aggregating, clipped
from mpifed.federation.clients import Federation
from mpifed.federation.options import PrivacyOptions
from mpifed.random import SERVER, stream

PURPOSE = "privacy"


def with_central_noise(
    channel: Channel, options: PrivacyOptions, federation: Federation, seed: int, round: Round
) -> Channel:
    """Return a channel to a server that clips updates and adds noise to their sum."""
    assert isinstance(channel, ServerChannel)
    return Private(channel, options, federation, seed, round)


def with_local_noise(
    channel: Channel, options: PrivacyOptions, federation: Federation, seed: int, round: Round
) -> Channel:
    """Return a channel by which each client clips its update and adds noise to it."""
    everyone = np.ones(federation.n_clients, bool)
    change = Change(federation, everyone, partial(noised, options=options, seed=seed))
    return changing(channel, change, round)


def noised(
    updates: Tensor, ids: np.ndarray, round: Round, options: PrivacyOptions, seed: int
) -> Tensor:
    """Return clipped updates (clients, ...) of ``ids`` with noise of each client."""
    assert options.clip_norm is not None
    made = clipped(updates, options.clip_norm).clone()
    for row, client in zip(made, ids, strict=True):
        drawn = stream(seed, PURPOSE, round.number, int(client)).standard_normal(row.numel())
        drawn *= options.deviation
        row += torch.from_numpy(drawn).to(row).view(row.shape)
    return made


class Private(Aggregating):
    """A server that adds noise to the sum of clipped updates."""

    def __init__(
        self,
        channel: ServerChannel,
        options: PrivacyOptions,
        federation: Federation,
        seed: int,
        round: Round,
    ) -> None:
        super().__init__(channel, federation, round.active)
        self.options, self.seed, self.number = options, seed, round.number

    def mean(self, rows: Tensor, weights: Tensor, whole: float = 1.0) -> Tensor:
        assert self.options.clip_norm is not None
        updates = clipped(rows, self.options.clip_norm)
        total = self.server.sum(updates, torch.ones(len(rows), dtype=torch.float64))
        drawn = stream(self.seed, PURPOSE, self.number, SERVER).standard_normal(total.numel())
        noise = torch.from_numpy(drawn * self.options.deviation).to(total).view(total.shape)
        return (total + noise) / (len(self.federation.training) * self.federation.inclusion)

    def among(self, chosen: np.ndarray) -> ServerChannel:
        raise AssertionError("a method whose messages are private takes no means within groups")


class OneUpdate(ServerForwarding):
    """A channel by which a client sends one update in a round and nothing else."""

    def __init__(self, channel: ServerChannel) -> None:
        super().__init__(channel)
        self._sent = 0

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        self._count()
        return self.server.average(rows, weights, before, whole)

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        self._count()
        return self.server.send(rows, whole)

    def send_chosen(self, rows: SparseRows) -> SparseRows:
        raise _not_private("sends chosen coordinates")

    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        raise _not_private("adds messages with weights of its own")

    def among(self, chosen: np.ndarray) -> ServerChannel:
        raise _not_private("takes means within groups of clients")

    def collect(self, values: Tensor) -> np.ndarray:
        raise _not_private("collects numbers of single clients")

    def products(self, rows: Tensor) -> Tensor:
        raise _not_private("takes products of updates")

    def _count(self) -> None:
        self._sent += 1
        if self._sent > 1:
            raise _not_private("sends several messages in a round")


def _not_private(why: str) -> RunError:
    return RunError(
        f"the algorithm {why}, which noise on one update does not make private; its class should "
        "say aggregates = 'means' or 'sums', with which privacy is refused"
    )
