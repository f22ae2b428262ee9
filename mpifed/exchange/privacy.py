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

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Gt, Lt
from torch import Tensor

from mpifed.components.registry import find_algorithm
from mpifed.errors import InputError, RunError
from mpifed.exchange.base import Channel, ServerChannel
from mpifed.exchange.forwarding import ServerForwarding
from mpifed.exchange.outgoing import Change, Round, changing
from mpifed.exchange.robust import Aggregating, clipped
from mpifed.federation.clients import Federation
from mpifed.random import SERVER, stream
from mpifed.sparse_rows import SparseRows

PACKAGE = "dp_accounting"
PURPOSE = "privacy"


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """The section ``privacy``: clipped updates and Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float, optional
        z, the standard deviation of the noise over the clip norm. None is no privacy.
    clip_norm : float, optional
        C, the largest Euclidean norm of an update; longer ones are scaled to it.
    where : {'central', 'local'}
        Whether the server adds noise to the sum of updates, or each client to its own.
    delta : float
        The delta for which epsilon is found; below one over the number of clients.
    """

    noise_multiplier: Annotated[float, Gt(0)] | None = None
    clip_norm: Annotated[float, Gt(0)] | None = None
    where: Literal["central", "local"] = "central"
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) != (self.clip_norm is None):
            given, missing = "noise_multiplier", "clip_norm"
            if self.noise_multiplier is None:
                given, missing = missing, given
            raise InputError(
                f"privacy.{given} is given, but privacy.{missing} is empty; noise is in units of "
                "the clip norm, so that both are needed"
            )

    @property
    def is_asked_for(self) -> bool:
        """Whether there is noise at all."""
        return self.noise_multiplier is not None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of a coordinate, z C."""
        return (self.noise_multiplier or 0.0) * (self.clip_norm or 0.0)


def refusal(configuration: Any) -> str | None:
    """Return why the section ``privacy`` does not go with the configuration, or None."""
    options = configuration.privacy
    if not options.is_asked_for:
        return None
    said = f"privacy.noise_multiplier is {options.noise_multiplier:g}"
    exchange, name = configuration.exchange, configuration.algorithm.name
    if exchange.name != "server":
        return f"{said} and exchange is '{exchange.name}'; allowed: server"
    algorithm = find_algorithm(name)
    if not algorithm.communicates:
        return f"{said}, but {name} sends nothing; allowed: no section privacy"
    if algorithm.aggregates != "mean":
        return (
            f"{said}, but clients of {name} send more than one update of a model in a round; "
            "allowed: a method whose server takes one mean, such as fedavg and fedem"
        )
    if configuration.algorithm.options.get("restarts", 1) != 1:
        return f"{said}, which does not cover rounds before round 1; allowed: algorithm.restarts=1"
    if configuration.on_divergence != "stop":
        return f"{said}, but on_divergence leaves clients out by their data; allowed: stop"
    if options.delta >= 1 / configuration.n_training:
        return (
            f"privacy.delta is {options.delta:g}, which allows to publish a client's data; it must "
            f"be below 1 / {configuration.n_training}, one over the training clients"
        )
    if (reason := _of_the_server(configuration, said)) is not None:
        return reason
    if importlib.util.find_spec(PACKAGE) is None:
        return (
            f"{said}, whose epsilon needs the package dp-accounting, which is not installed: "
            "python -m pip install 'mpifed[privacy]'"
        )
    return None


def _of_the_server(configuration: Any, said: str) -> str | None:
    """Why noise at the server does not go with its other options, or None."""
    if configuration.privacy.where == "local":
        return None
    options = configuration.exchange.options
    if "aggregator" in options or "clip" in options:
        return (
            f"{said} and privacy.where is 'central', whose noise is made for a mean of clipped "
            "updates; allowed: exchange.aggregator=mean without exchange.clip, or "
            "privacy.where=local"
        )
    if options["average_over"] == "all":
        return (
            f"{said} and exchange.average_over is 'all', but central noise divides by the expected "
            "number of participants; allowed: participants"
        )
    if configuration.compression.name != "none":
        return (
            f"{said} and compression is '{configuration.compression.name}', which makes updates "
            "longer than the clip norm; allowed: compression=none, or privacy.where=local"
        )
    return None


def with_central_noise(
    channel: Channel, options: PrivacyOptions, federation: Federation, seed: int, round: Round
) -> Channel:
    """Return a channel to a server that clips updates and adds noise to their sum.

    Parameters
    ----------
    channel : Channel
        The channel of the round.
    options : PrivacyOptions
        With noise.
    federation : Federation
        All clients.
    seed : int
        The seed of the run.
    round : Round
        Who takes part.
    """
    assert isinstance(channel, ServerChannel)
    return Private(channel, options, federation, seed, round)


def with_local_noise(
    channel: Channel, options: PrivacyOptions, federation: Federation, seed: int, round: Round
) -> Channel:
    """Return a channel by which each client clips its update and adds noise to it.

    The parameters are those of ``with_central_noise``.
    """
    everyone = np.ones(federation.n_clients, bool)
    change = Change(federation, everyone, partial(noised, options=options, seed=seed))
    return changing(channel, change, round)


def noised(
    updates: Tensor, ids: np.ndarray, round: Round, options: PrivacyOptions, seed: int
) -> Tensor:
    """Return clipped updates (clients, ...) of ``ids`` with noise of each client, float64."""
    assert options.clip_norm is not None
    made = clipped(updates.double(), options.clip_norm)
    size, drawn = made[0].numel(), np.empty((len(ids), made[0].numel()))
    for row, client in enumerate(ids):
        drawn[row] = stream(seed, PURPOSE, round.number, int(client)).standard_normal(size)
    return made + torch.from_numpy(drawn * options.deviation).to(made).view(made.shape)


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
        updates = clipped(rows.double(), self.options.clip_norm)
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
