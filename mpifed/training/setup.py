"""The objects of a run, and what the loop over its rounds reads of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from mpifed.components.registry import Section
from mpifed.config.options import CheckpointOptions, EvaluationOptions
from mpifed.data.base import Dataset, Shards, Split
from mpifed.exchange.attacks import Attackers
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.collusion import Colluding, collusion
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.exchange.privacy import local_noise, pairwise_noise
from mpifed.federation.clients import Clients, Draws, Federation
from mpifed.federation.options import ComputeOptions, NetworkOptions, PrivacyOptions
from mpifed.local.objective import HeldOutRisks
from mpifed.local.solver import LocalSolver
from mpifed.method.algorithm import Algorithm
from mpifed.method.checks import check_rows, check_state
from mpifed.models.base import Model
from mpifed.state import RunState, shared_tensors
from mpifed.training.validation import check_tokens


def transforms_of(
    options: PrivacyOptions | None, n_clients: int, hostile: Attackers | None
) -> list[Any]:
    """Return what clients do to their updates before they send them, in turn."""
    transforms: list[Any] = []
    if options is not None and options.where == "local":
        transforms.append(local_noise(options, n_clients))
    if options is not None and options.pairwise_multiplier:
        transforms.append(partial(pairwise_noise, options=options))
    if hostile is not None and hostile.attack.changes_updates:
        colluding = isinstance(hostile.attack, Colluding)
        transforms.append(partial(collusion, hostile) if colluding else hostile.transform)
    return transforms


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The objects of a run, without its shards and its state, and what its rounds read.

    ``method`` is the name of the algorithm, ``data`` names the data set, ``horizon`` is R of the
    schedules, and ``sample_budget`` the bytes of samples that a rank holds, None for all.
    """

    experiment: str
    method: str
    data: Section
    dataset: Dataset
    federation: Federation
    exchange: Exchange
    model: Model
    solver: LocalSolver
    algorithm: Algorithm
    attackers: Attackers | None
    device: torch.device
    dtype: torch.dtype
    sample_budget: float | None
    seed: int
    rounds: int
    horizon: int
    on_divergence: str
    evaluation: EvaluationOptions
    checkpoint: CheckpointOptions
    network: NetworkOptions
    compute: ComputeOptions

    def channel(
        self, round: int, active: np.ndarray, memory: Any = None, clients: Clients | None = None
    ) -> Channel:
        """Return the channel of a round, in which clients add noise and attack.

        ``clients`` are the participants hosted here, who can look at models of others.
        """
        channel = self.exchange.at(round, active, memory)
        n_clients = self.federation.n_clients
        channel.transforms = transforms_of(self.exchange.privacy, n_clients, self.attackers)
        averages = self.algorithm.averages_models
        if clients is not None and averages and isinstance(channel, GossipChannel):
            layers = [slice(span.begin, span.end) for span in self.model.spans()]
            channel.layers = layers or [slice(0, self.model.n_parameters)]
            if averages == "one":
                like = torch.zeros(0, dtype=self.dtype, device=self.device)
                channel.held_out = HeldOutRisks(self.model, clients, like)
        return channel

    def load(self) -> Shards:
        """Load the shards of the clients hosted here onto the device; collective."""
        shards = self.dataset.load(self.federation.hosted, self.dtype)
        check_tokens(self.model, shards, self.data)
        shards = replace(shards, fresh=self.dataset.fresh)
        if self.device.type == "cpu":
            return shards
        splits = (shards.train, shards.val, shards.test)
        train, val, test = (
            Split(s.x.to(self.device), s.y.to(self.device), s.offsets) for s in splits
        )
        return Shards(shards.client_ids, train, val, test, shards.fresh)

    def first_state(self, everyone: Clients) -> RunState:
        """Return the state before round 1 and before ``Algorithm.prepare``; collective."""
        first = self.algorithm.init(everyone, self.exchange, Draws(self.seed, 0), self.dtype)
        check_state(self.algorithm, "init", first)
        check_rows(self.algorithm, first, len(everyone), self.exchange.shared_is_rows)
        return RunState(first, self.first_memory(first, len(everyone)))

    def first_memory(self, first: Any, n_hosted: int) -> Any:
        """Return what the exchange remembers of ``first``, an algorithm's state before round 1."""
        return self.exchange.remember(shared_tensors(first), n_hosted, self.dtype)
