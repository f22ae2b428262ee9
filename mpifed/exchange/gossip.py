"""Exchange by gossip: x_t <- sum_s W^k[t, s] x_s (Marfoq et al. 2021, Alg. 4, line 15).

What W^k is made from is computed once on rank 0, broadcast, and stored with the run. ``routing``
gives the matrix of a round and ``routes`` what ranks must send each other for it. The mixing is
exact (``reduction``), so the route of a row cannot change a number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import scipy.sparse
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import topologies
from mpifed.components.schema import ComponentOf
from mpifed.errors import InputError, RunError
from mpifed.exchange import choco
from mpifed.exchange.asynchrony import AsynchronousChannel, Timetable, first_values
from mpifed.exchange.base import Channel, Exchange
from mpifed.exchange.compression import Compressor
from mpifed.exchange.contraction import predict
from mpifed.exchange.corrections import Kept
from mpifed.exchange.corrections.fitting import fitted, mixed_by
from mpifed.exchange.described import gossip_lines
from mpifed.exchange.mixing import complete, computed_in_rounds, prepare_arrays, restore
from mpifed.exchange.neighbours import CompressedMessages, GossipChannel, Replicas
from mpifed.exchange.reduction import weighted_sum
from mpifed.exchange.routing import Routing
from mpifed.exchange.together import gossip_refusal
from mpifed.federation.clients import Federation, participants
from mpifed.mpi.communicator import Communicator
from mpifed.state import Nothing
from topologies.parameters import OwnPartError

WIDTH = 1 << 16
"""Numbers of the rows that are compared with their mean at a time."""


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
    transport : {'auto', 'collective', 'neighbourhood', 'messages'}
        How rows travel between ranks. It changes no number.
    consensus_step : float or 'paper', optional
        Step size of CHOCO-Gossip where messages are compressed. None is the best that is proven
        (``choco.optimal_step``), 'paper' that of the paper's theorem.
    correction : str or mapping
        What clients send and keep so that unlike data do not bias the result.
    asynchrony : {'none', 'wait_free', 'pairwise'}
        Whether clients wait for each other: in rounds that all have in common; not at all, mixing
        the latest values that have arrived (SWIFT); or averaging with one neighbour at a time
        (AD-PSGD). When is what the sections ``network`` and ``compute`` say.
    kept_versions : int
        Values of each client that are kept for its neighbours under 'wait_free': a client sends
        nothing new while all but one of them are on their way.
    """

    shared_is_rows = True

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
        transport: Literal["auto", "collective", "neighbourhood", "messages"] = "auto",
        consensus_step: Annotated[float, Gt(0), Le(1)] | Literal["paper"] | None = None,
        correction: Annotated[Any, ComponentOf("correction")] = "none",
        asynchrony: Literal["none", "wait_free", "pairwise"] = "none",
        kept_versions: Annotated[int, Ge(2), Le(100)] = 2,
    ) -> None:
        super().__init__(federation, seed, stored, compressor)
        self.asynchrony = asynchrony
        self.values_kept = {"none": 0, "wait_free": kept_versions, "pairwise": 1}[asynchrony]
        self.timetable: Timetable | None = None
        self.consensus_step = consensus_step
        self._arrays = dict(stored)
        if compressor is not None and "choco" not in self._arrays:
            self._arrays["choco"] = self._constants(seed, schedule)
        self._same_everywhere()
        self.schedule = restore(len(federation.training), seed, schedule, stored)
        self.correction = fitted(correction, self.schedule, federation)
        mixing, within = mixed_by(self.correction, self.schedule)
        drawn = computed_in_rounds(schedule)
        self.routing = Routing(federation, mixing, drawn, transport, within)

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options with every parameter spelled out; see ``mixing.complete``."""
        return complete(options, n_training)

    @staticmethod
    def prepare(
        communicator: Communicator, n_training: int, seed: int, options: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return what the schedule is made from: computed on rank 0, the same bytes everywhere.

        Raises
        ------
        InputError
            On every rank, if there is no such graph, matrix or schedule.
        """
        made: Any = None
        if communicator.rank == 0:
            try:
                made = prepare_arrays(n_training, seed, options)
            except OwnPartError as error:
                made = f"exchange.{error.part}: {error}"
            except topologies.TopologyError as error:
                made = f"exchange: {error}"
        names = communicator.broadcast_object(sorted(made) if isinstance(made, dict) else made)
        if isinstance(names, str):
            raise InputError(names)
        return {name: communicator.broadcast(made[name] if made else None) for name in names}

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

    def _same_everywhere(self) -> None:
        """Refuse matrices that differ between ranks. Collective."""
        digest = hashlib.sha256()
        for name in sorted(self._arrays):
            digest.update(np.ascontiguousarray(self._arrays[name]).tobytes())
        self.sha256 = digest.hexdigest()
        if self.federation.communicator.broadcast_object(self.sha256) != self.sha256:
            raise RunError("this rank holds another mixing matrix than rank 0")

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Return why these options cannot be combined, or None."""
        return gossip_refusal(configuration)

    def _constants(self, seed: int, schedule: Any) -> np.ndarray:
        """``gap`` and ``spread`` of the static W, found on rank 0. Collective."""
        found = None
        if self.federation.communicator.rank == 0:
            n = len(self.federation.training)
            matrix = restore(n, seed, schedule, self._arrays).matrix(1)
            found = choco.constants(matrix.to_dense())
        return self.federation.communicator.broadcast(found)

    def _bounds(self, size: int) -> tuple[float, float, float]:
        """``gap``, ``spread`` and ``delta`` for messages of ``size`` numbers."""
        assert self.compressor is not None
        gap, spread = self._arrays["choco"]
        # Without an edge, or a gap, no step reaches a consensus; a small one does no harm.
        return max(float(gap), 1e-12), float(spread), self.compressor.contraction(size)

    def choco_step(self, size: int) -> float:
        """Return gamma for messages of ``size`` numbers."""
        if self.consensus_step is None:
            return choco.optimal_step(*self._bounds(size))
        if self.consensus_step == "paper":
            return choco.theoretical_step(*self._bounds(size))
        return self.consensus_step

    def remarks(self, size: int, rounds: int) -> list[str]:
        """Return the forecast of CHOCO-Gossip for messages of ``size`` numbers, if compressed."""
        if self.compressor is None:
            return []
        words: dict[Any, str] = {None: "the best proven", "paper": "that of the paper's theorem"}
        where_from = words.get(self.consensus_step, "as configured")
        return choco.forecast(self.choco_step(size), where_from, self._bounds(size), rounds)

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

    def at(self, round: int, active: np.ndarray, memory: Any = None) -> Channel:
        if self.timetable is not None:
            make = partial(self.timetable.plan, partial(self.routing.weights, round))
            return AsynchronousChannel(self.federation, self.ledger, make, memory)
        messages = None
        if self.compressor is not None:
            messages = CompressedMessages(self.compressor, self.seed, self.choco_step)
        how, memory = messages or self.correction, memory or Nothing()
        return GossipChannel(self.federation, self.routing, self.ledger, how, round, active, memory)

    def remember(self, shared: list[Tensor], n_hosted: int, dtype: torch.dtype) -> Any:
        sizes = [math.prod(tensor.shape[1:]) for tensor in shared]
        if self.values_kept:
            empty = self.values_kept if self.asynchrony == "wait_free" else None
            return first_values(shared, empty)
        if self.correction is not None:
            widths = sum(map(self.correction.width, sizes))
            return Kept(shared[0].new_zeros(n_hosted, widths, dtype=dtype))
        if self.compressor is None:
            return Nothing()
        return Replicas(shared[0].new_zeros(n_hosted, sum(sizes), dtype=dtype))

    def spread(self, shared: Tensor) -> Tensor:
        return shared.repeat(len(self.federation.hosted), *([1] * shared.dim()))

    def mean(self, shared: Tensor, by_samples: bool = False) -> Tensor:
        federation = self.federation
        ids, rows = self._training_rows(shared)
        mass = n = len(federation.training)
        weights = np.ones(len(ids))
        if by_samples:
            weights, mass = federation.n_train[ids].astype(float), federation.n_train_total
        # Divided after the sum, so that the mean of equal rows is that row.
        total = weighted_sum(federation.communicator, rows, weights, ids, n)
        return torch.from_numpy(total / mass).to(shared)

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

    def predicted_contraction(self, rounds: int) -> dict[str, float | int] | None:
        """Return how ``rounds`` rounds of averaging alone would contract; ``contraction.predict``.

        None where messages are compressed, corrected or late, which contracts by another law.
        """
        if self.compressor is not None or self.correction is not None or self.values_kept:
            return None
        federation, seed = self.federation, self.seed
        taking_part = None
        if federation.participation != 1.0:

            def taking_part(k: int) -> np.ndarray:
                active = participants(federation, federation.participation, seed, k)
                return active[federation.training]

        return predict(self.schedule, taking_part, rounds)

    def _training_rows(self, shared: Tensor) -> tuple[np.ndarray, Tensor]:
        hosted = self.federation.hosted
        training = ~self.federation.unseen[hosted]
        if training.all():
            return hosted, shared
        return hosted[training], shared[torch.from_numpy(np.flatnonzero(training))]

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> np.ndarray:
        return self.routing.arcs(round, active, itemsize)

    def arrays(self) -> dict[str, np.ndarray]:
        return self._arrays

    def describe(self, payload: int, itemsize: int) -> list[str]:
        route = self.routing.route(1, ~self.federation.unseen, itemsize)
        if self.correction is not None:
            payload = self.correction.numbers(payload // itemsize) * itemsize
        return gossip_lines(route, self.schedule.period, payload, self.values_kept)
