"""The objects of a run, and what the loop over its rounds reads of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mpifed.components.registry import Section
from mpifed.config.options import CheckpointOptions, EvaluationOptions
from mpifed.data.base import Dataset, Shards, Split, check_tokens
from mpifed.data.central import central_of
from mpifed.exchange.attacks import Attackers
from mpifed.exchange.base import Exchange
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.federation import Federation
from mpifed.federation.hosted import CachedShards, HostedShards, LoadedShards
from mpifed.federation.options import ComputeOptions, NetworkOptions
from mpifed.io.memory import check_memory
from mpifed.local.objective import HeldOutRisks
from mpifed.local.solver import LocalSolver
from mpifed.method.algorithm import Algorithm
from mpifed.method.checks import check_rows, check_state
from mpifed.models.base import Model
from mpifed.models.modules import ModuleModel
from mpifed.state import RunState, shared_tensors
from mpifed.training.footprint import sample_bytes
from mpifed.training.scores import Metric, metrics_of


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The objects of a run, without its shards and its state, and what its rounds read.

    ``method`` and ``data`` are the sections of which algorithm and data set were made, ``horizon``
    is R of the schedules, and ``sample_budget`` the bytes of samples that a rank holds, None for
    all.
    """

    experiment: str
    method: Section
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

    @cached_property
    def metrics(self) -> list[Metric]:
        """The scores of ``evaluation.metrics``."""
        names = self.evaluation.metric_names
        return metrics_of(names, self.dataset.description) if names else []

    @property
    def central(self) -> Dataset | None:
        """The test set of ``evaluation.central``, whose "clients" are parts of it."""
        return central_of(self.dataset) if self.evaluation.central else None

    @property
    def central_part(self) -> tuple[np.ndarray, Split]:
        """The parts of the central test set that this rank scores: their numbers, ascending, and
        samples. Collective at first, and so no ``cached_property``, which locks other threads out.
        """
        if "_central_part" not in vars(self):
            vars(self)["_central_part"] = self._load_central()
        part: tuple[np.ndarray, Split] = vars(self)["_central_part"]
        return part

    def _load_central(self) -> tuple[np.ndarray, Split]:
        central, federation = self.central, self.federation
        assert central is not None
        n, rank = central.description.n_clients, federation.communicator.rank
        of_clients = central.description.n_clients == federation.n_clients
        ids = np.array_split(np.arange(n), federation.communicator.size)[rank]
        ids = federation.hosted if of_clients else ids
        size = sample_bytes(central.description.input_shape, self.dtype)
        check_memory(
            float(size * central.description.n_test[ids].sum(dtype=np.float64)),
            f"evaluation.central is {self.evaluation.central}, whose part on a rank",
        )
        if central.make_split is not None:
            split = central.make_split("test", ids, self.dtype)
        else:
            split = central.load(ids, self.dtype).test
        return ids, Split(split.x.to(self.device), split.y.to(self.device), split.offsets)

    def hold_out(self, channel: GossipChannel, clients: Clients) -> None:
        """Give ``channel`` the layers and held-out risks by which ``clients``, the participants
        hosted here, choose among models of others, where they do.
        """
        if channel.mixing.correction is not None and channel.mixing.correction.chooses:
            layers = [slice(span.begin, span.end) for span in self.model.spans()]
            channel.layers = layers or [slice(0, self.model.n_parameters)]
            like = torch.zeros(0, dtype=self.dtype, device=self.device)
            channel.held_out = HeldOutRisks(self.model, clients, like)

    def load(self) -> Shards:
        """Load the shards of the clients hosted here onto the device; collective."""
        shards = self.dataset.load(self.federation.hosted, self.dtype)
        n_tokens = self.model.n_tokens if isinstance(self.model, ModuleModel) else None
        if n_tokens is not None:
            file = self.data.options.get("path") or self.data.options.get("raw")
            origin = f"data.name is '{self.data.name}'" + f", '{file}'" * bool(file)
            check_tokens(shards, n_tokens, origin)
        shards = replace(shards, fresh=self.dataset.fresh)
        if self.device.type == "cpu":
            return shards
        splits = (shards.train, shards.val, shards.test)
        train, val, test = (
            Split(s.x.to(self.device), s.y.to(self.device), s.offsets) for s in splits
        )
        return Shards(shards.client_ids, train, val, test, shards.fresh)

    def hosted_shards(self) -> HostedShards:
        """Return the shards of the clients hosted here. Collective where all are loaded."""
        if self.central is not None:
            _ = self.central_part  # before the others, whose memory it may need for a time
        if self.sample_budget is None:
            return LoadedShards(self.federation, self.load())
        size = sample_bytes(self.dataset.description.input_shape, self.dtype)
        parts = self.federation, self.dataset, self.dtype, self.device
        return CachedShards(*parts, size, self.sample_budget)

    def first_state(self, shards: HostedShards) -> RunState:
        """Return the state before round 1 and before ``Algorithm.prepare``; collective."""
        n_hosted = len(self.federation.hosted)
        everyone = shards.among_hosted(np.arange(n_hosted))
        first = self.algorithm.init(everyone, self.exchange, Draws(self.seed, 0), self.dtype)
        check_state(self.algorithm, "init", first)
        check_rows(self.algorithm, first, n_hosted, self.exchange.shared_is_rows)
        return RunState(first, self.first_memory(first, n_hosted))

    def first_memory(self, first: Any, n_hosted: int) -> Any:
        """Return what the exchange remembers of ``first``, an algorithm's state before round 1."""
        return self.exchange.remember(shared_tensors(first), n_hosted, self.dtype)
