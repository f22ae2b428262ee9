"""Exchange by gossip: x_t <- sum_s W^k[t, s] x_s (Marfoq et al. 2021, Alg. 4, line 15).

This file has its options and how a run is set up; ``routes`` who sends which rows to whom, and
``gossip_channel`` a round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import scipy.sparse
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import topologies
from mpifed.components.registry import named
from mpifed.errors import InputError
from mpifed.exchange import choco
from mpifed.exchange.asynchrony import AsynchronousChannel, Timetable, first_values
from mpifed.exchange.base import Channel, Exchange, Round
from mpifed.exchange.compression import Compressor, proven_contraction
from mpifed.exchange.correction import CorrectionMemory, fitted, mixed_by
from mpifed.exchange.gossip_channel import GossipChannel, Mixing, Replicas
from mpifed.exchange.gossip_rounds import Chosen, When, communicating
from mpifed.exchange.mixing_options import (
    completed_options,
    computed_in_rounds,
    prepare_arrays,
    restore,
)
from mpifed.exchange.routes import Routing
from mpifed.federation.federation import Federation
from mpifed.federation.options import StepScale
from mpifed.federation.reduction import weighted_sum
from mpifed.mpi.communicator import Communicator
from mpifed.mpi.reused import Reused
from mpifed.state import Nothing, on_host
from topologies.parameters import ComponentOf

# Numbers of the rows that are compared with their mean at a time.
WIDTH = 1 << 16

# Versions of a client's value that may be kept.
MOST_VERSIONS = 100

# Steps of gossip in a round.
MOST_STEPS = 1000


class Gossip(Exchange):
    """Clients average with their neighbours by mixing matrices (D-FedEM and its kin).

    Parameters
    ----------
    topology : str or mapping, optional
        The graph, whose nodes are the training clients in their order. None is an Erdos-Renyi graph
        with p = 0.5, where the schedule uses one.
    weights : str or mapping, optional
        Rule for the weights of the edges. None is ``fmmc``, where the schedule uses one.
    schedule : str or mapping
        How the mixing matrix changes from round to round.
    consensus_step : float or 'paper', optional
        Step size of CHOCO-Gossip and of the replicas of ``beer`` and ``motef``, where messages are
        compressed. None is the best that is proven
        (``choco.optimal_step``), 'paper' that of the paper's theorem.
    correction : str or mapping
        What clients send and keep so that unlike data do not bias the result.
    asynchrony : {'none', 'wait_free', 'pairwise'}
        Whether clients wait for each other: in rounds that all have in common; not at all, mixing
        the latest values that have arrived (SWIFT); or averaging with one neighbour at a time
        (AD-PSGD). When is what the sections ``network`` and ``compute`` say.
    kept_versions : int, optional
        Values of each client that are kept for its neighbours under 'wait_free': a client sends
        nothing new while all except one are on their way. None is as many as the delays of
        first computations need, at least 2.
    when : {'every', 'late', 'geometric'} or list of int
        The rounds that communicate: every one; the last ``budget``; ``budget`` of them, at
        distances from the end that grow geometrically; or those of a list. Clients train alone in
        the others. Rounds that a resume adds communicate.
    budget : int, optional
        How many rounds communicate under 'late' and 'geometric'. None is a tenth of them.
    gossip_steps : int
        How often clients average with their neighbours in a round.
    chebyshev : bool
        Whether these steps have Chebyshev weights, for a static symmetric W.
    """

    shared_is_rows = True
    slem: float | None = None

    def __init__(
        self,
        federation: Federation,
        seed: int,
        stored: Mapping[str, np.ndarray],
        compressor: Compressor | None = None,
        *,
        topology: Annotated[Any, ComponentOf("topology")] = None,
        weights: Annotated[Any, ComponentOf("weights")] = None,
        schedule: Annotated[Any, ComponentOf("schedule")] = "static",
        consensus_step: Annotated[float, Gt(0), Le(1)] | Literal["paper"] | None = None,
        correction: Annotated[Any, ComponentOf("correction")] = "none",
        asynchrony: Literal["none", "wait_free", "pairwise"] = "none",
        kept_versions: Annotated[int, Ge(2), Le(MOST_VERSIONS)] | None = None,
        when: When = "every",
        budget: Annotated[int, Ge(1)] | None = None,
        gossip_steps: Annotated[int, Ge(1), Le(MOST_STEPS)] = 1,
        chebyshev: bool = False,
    ) -> None:
        super().__init__(federation, seed, stored, compressor)
        self.asynchrony = asynchrony
        self.kept_versions = kept_versions
        # Of each client, for others.
        self.values_kept = {"none": 0, "wait_free": kept_versions or 2, "pairwise": 1}[asynchrony]
        self.timetable: Timetable | None = None
        # Receivers and senders of a round's messages, in turn, where clients choose them.
        self.received: list[np.ndarray] = []
        self.consensus_step = consensus_step
        self._arrays = dict(stored)
        if compressor is not None and "choco" not in self._arrays:
            self._arrays["choco"] = self._constants(seed, schedule)
        if budget is not None and when not in ("late", "geometric"):
            raise InputError("exchange.budget is given, but exchange.when is not late or geometric")
        self.when, self.budget, self.gossip_steps = when, budget, gossip_steps
        self._reused, self.computed_in_rounds = Reused(2), computed_in_rounds(schedule)
        self._correction = correction
        self.by_size = weights is not None and named(weights, "exchange.weights")[0] == "by_size"
        schedule = restore(len(federation.training), seed, schedule, stored)
        if chebyshev:
            if gossip_steps == 1:
                raise InputError("exchange.chebyshev is true, but exchange.gossip_steps is 1")
            if "slem" not in self._arrays:
                self._arrays["slem"] = self._slem(schedule)
            self.slem = float(self._arrays["slem"])
        self._mix_by(schedule)

    def _mix_by(self, schedule: topologies.Schedule) -> None:
        self.schedule = schedule
        self.correction = fitted(self._correction, schedule, self.federation)
        mixing, cliques = mixed_by(self.correction, schedule)
        self.routing = Routing(self.federation, mixing, self.computed_in_rounds, cliques)

    def spread_over(self, horizon: int) -> None:
        """Choose the rounds that communicate among the first ``horizon``. Collective."""
        if self.when != "every":
            rounds = communicating(self.when, self.budget, horizon)
            chosen = Chosen(self.schedule, rounds, horizon, self.gossip_steps)
            self._mix_by(chosen)

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options with every parameter spelled out; see ``completed_options``."""
        return completed_options(options, n_training)

    @staticmethod
    def prepare(
        communicator: Communicator, n_training: int, seed: int, options: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return what the schedule is made from: computed on rank 0, the same bytes everywhere."""
        arrays: Any = None
        if communicator.rank == 0:
            try:
                arrays = prepare_arrays(n_training, seed, options)
            except topologies.TopologyError as error:
                arrays = f"exchange: {error}"
        names = communicator.broadcast_object(
            sorted(arrays) if isinstance(arrays, dict) else arrays
        )
        if isinstance(names, str):
            raise InputError(names)
        return {name: communicator.broadcast(arrays[name] if arrays else None) for name in names}

    @staticmethod
    def links(
        n_training: int, seed: int, options: Mapping[str, Any], stored: Mapping[str, np.ndarray]
    ) -> scipy.sparse.csr_array:
        """Return who mixes with whom, and how often: for placing clients on ranks."""
        schedule = restore(n_training, seed, options["schedule"], stored)
        total = scipy.sparse.csr_array((n_training, n_training))
        for k in range(1, 1 + min(schedule.period or 8, 32)):
            total = total + (schedule.matrix(k).to_sparse() != 0)
        return scipy.sparse.csr_array(total + total.T)

    def _constants(self, seed: int, schedule: Any) -> np.ndarray:
        """``gap`` and ``spread`` of the static W, found on rank 0. Collective."""
        constants = None
        if self.federation.communicator.rank == 0:
            n = len(self.federation.training)
            matrix = restore(n, seed, schedule, self._arrays).matrix(1)
            constants = choco.constants(matrix.to_dense())
        return self.federation.communicator.broadcast(constants)

    def _slem(self, schedule: topologies.Schedule) -> np.ndarray:
        """The SLEM of the static W, found on rank 0. Collective."""
        slem: Any = None
        if self.federation.communicator.rank == 0:
            matrix = schedule.matrix(1)
            slem = topologies.slem(matrix) if matrix.symmetric else "its matrix is not symmetric"
        slem = self.federation.communicator.broadcast_object(slem)
        if isinstance(slem, str):
            raise InputError(f"exchange.chebyshev is true, but {slem}")
        return np.array(slem)

    def choco_bounds(self, size: int) -> tuple[float, float, float]:
        """``gap``, ``spread`` and ``delta`` for messages of ``size`` numbers."""
        assert self.compressor is not None
        gap, spread = self._arrays["choco"]
        # Without an edge, or a gap, no step reaches a consensus; a small one does no harm.
        return max(float(gap), 1e-12), float(spread), self.compressor.contraction(size)

    def choco_step(self, size: int) -> float:
        """Return gamma for messages of ``size`` numbers; 1 if they are whole, unless configured."""
        if self.consensus_step not in (None, "paper"):
            return float(self.consensus_step)
        if self.compressor is None:
            return 1.0
        proven_contraction(self.compressor, size)
        step = choco.optimal_step if self.consensus_step is None else choco.theoretical_step
        return step(*self.choco_bounds(size))

    def keep_versions(self, reach: np.ndarray, seconds: np.ndarray) -> None:
        """Choose how many versions are kept for messages that travel ``reach`` seconds.

        A computation of a client takes ``seconds``; both float64 (nodes,).
        """
        if self.kept_versions is None:
            with np.errstate(divide="ignore", invalid="ignore"):
                delay = np.nan_to_num(np.ceil(reach / seconds)).max(initial=0.0)
            self.values_kept = int(np.clip(delay + 1, 2, MOST_VERSIONS))

    def latest(self, shared: list[Tensor], memory: Any) -> list[Tensor]:
        if self.asynchrony != "pairwise":
            return shared
        sizes = [math.prod(tensor.shape[1:]) for tensor in shared]
        parts = memory.kept[:, 0].split(sizes, dim=1)
        return [part.view_as(tensor) for part, tensor in zip(parts, shared, strict=True)]

    def participants(self, round: int, present: np.ndarray) -> np.ndarray:
        training = self.federation.training
        if self.timetable is not None:
            nodes = self.timetable.begin(round, present[training]).nodes
        elif hasattr(self.schedule, "taking_part"):
            nodes = self.schedule.taking_part(round)
        else:
            return present
        chosen = np.zeros(len(present), bool)
        chosen[training[nodes]] = True
        return chosen & present

    def rates(self, weights: Tensor, rule: StepScale) -> np.ndarray | None:
        if rule == "none" or self.by_size:
            return None
        n_training = len(self.federation.training)
        return weights.numpy() if rule == "paper" else weights.numpy() * n_training

    def at(self, round: int, active: np.ndarray, memory: Any = None) -> Channel:
        self.received = []
        now = Round(self.federation, self.seed, round, active)
        if self.timetable is None:
            mixing = Mixing(
                self.routing,
                self.correction,
                self.gossip_steps,
                self.slem,
                self.choco_step,
                self._reused,
                self.received,
            )
            return GossipChannel(self, now, memory, mixing)
        combine = partial(self.timetable.next_combination, partial(self.routing.weights, round))
        return AsynchronousChannel(self, now, memory, combine)

    def remember(self, shared: list[Tensor], n_hosted: int, dtype: torch.dtype) -> Any:
        sizes = [math.prod(tensor.shape[1:]) for tensor in shared]
        if self.values_kept:
            empty = self.values_kept if self.asynchrony == "wait_free" else None
            return first_values(shared, empty)
        if self.correction is not None:
            widths = sum(map(self.correction.width, sizes))
            return CorrectionMemory(shared[0].new_zeros(n_hosted, widths))
        if self.compressor is None:
            return Nothing()
        return Replicas(shared[0].new_zeros(n_hosted, sum(sizes), dtype=dtype))

    def spread(self, shared: Tensor) -> Tensor:
        return shared.repeat(len(self.federation.hosted), *([1] * shared.dim()))

    def mean(self, shared: Tensor, by_samples: bool = False) -> Tensor:
        federation = self.federation
        ids, rows = self._training_rows(shared)
        mass, weights = len(federation.training), np.ones(len(ids))
        if by_samples:
            weights, mass = federation.n_train[ids].astype(float), federation.n_train_total
        # Divided after the sum: weights are whole numbers until then.
        return weighted_sum(federation, rows, weights, ids) / mass

    def consensus_distance(self, shared: list[Tensor]) -> float | None:
        ids = self._training_rows(shared[0])[0]
        squares = np.zeros(len(ids))
        for part in (part for tensor in shared for part in tensor.flatten(1).split(WIDTH, dim=1)):
            mean = self.mean(part.double())
            rows = self._training_rows(part)[1]
            squares += [float((row.double() - mean).square().sum()) for row in rows]
        parts = self.federation.communicator.gather_object((ids, squares))
        if parts is None:
            return None
        every = np.zeros(self.federation.n_clients)
        for owned, values in parts:
            every[owned] = values
        return float(every.sum() / len(self.federation.training))

    def _training_rows(self, shared: Tensor) -> tuple[np.ndarray, Tensor]:
        hosted = self.federation.hosted
        training = ~self.federation.unseen[hosted]
        if training.all():
            return hosted, shared
        return hosted[training], shared[torch.from_numpy(np.flatnonzero(training))]

    @property
    def columns(self) -> Sequence[str]:
        return () if self.correction is None else self.correction.columns

    def measure(self, memory: Any) -> dict[str, float | None]:
        if not self.columns or self.correction is None:
            return {}
        return self.correction.measure(self._training_rows(memory.corrections)[1], self._gathered)

    def _gathered(self, rows: Tensor) -> np.ndarray | None:
        parts = self.federation.communicator.gather_object(on_host(rows))
        if parts is None:
            return None
        owner = self.federation.owner[self.federation.training]
        return np.concatenate(parts)[np.argsort(np.argsort(owner, kind="stable"))]

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> list[np.ndarray]:
        if self.received:
            return self.received
        first = (round - 1) * self.gossip_steps + 1
        return [self.routing.arcs(first + step, active) for step in range(self.gossip_steps)]

    def arrays(self) -> dict[str, np.ndarray]:
        return self._arrays
