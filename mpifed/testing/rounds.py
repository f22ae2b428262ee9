"""Rounds of a method in this process, on one rank or on several that are played by threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch

from mpifed import state as states
from mpifed.checkpoint import files as checkpoint
from mpifed.components.registry import Section, name_of
from mpifed.config.configuration import Configuration, resolve, to_mapping
from mpifed.config.experiments import with_overrides
from mpifed.data.base import Dataset, Description, Shards, Split
from mpifed.exchange.base import Exchange
from mpifed.exchange.gossip import Gossip
from mpifed.federation.clients import Clients, Draws
from mpifed.mpi.communicator import Alone, Communicator
from mpifed.testing.data import with_names
from mpifed.testing.ranks import Played, Table, in_threads
from mpifed.training.build import make, make_dataset
from mpifed.training.engine import Clock, Engine, computing_threads
from mpifed.training.evaluation import of_trained, training_of
from mpifed.training.simulated_time import taking_part

T = TypeVar("T")

DATA = {"name": "synthetic", "n_test": 10, "dimension": 6}
"""What is trained on where no data are passed."""


class Listed(Dataset):
    """Samples of each client, as arrays, on which it is trained and scored."""

    def __init__(self, clients: Sequence[tuple[Any, ...]]) -> None:
        self._train = [(np.asarray(x, float), np.asarray(y)) for x, y, *_ in clients]
        targets = [y for _, y in self._train]
        labels = all(y.dtype.kind in "biu" and y.ndim == 1 for y in targets)
        outputs = (
            int(max(y.max() for y in targets if len(y))) + 1
            if labels
            else _columns(targets[0]).shape[1]
        )
        self._validation = [
            tuple(map(np.asarray, held_out)) or (x[:0], y[:0])
            for (x, y), (_, _, *held_out) in zip(self._train, clients, strict=True)
        ]
        counts = np.array([len(y) for y in targets], np.int64)
        self.description = Description(
            "listed",
            self._train[0][0].shape[1:],
            max(outputs, 2) if labels else outputs,
            counts,
            np.array([len(y) for _, y in self._validation], np.int64),
            counts,
            "classification" if labels else "regression" if outputs else "unlabelled",
        )

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the arrays of some clients."""
        train, validation = (
            self._split([samples[i] for i in client_ids], dtype)
            for samples in (self._train, self._validation)
        )
        return Shards(client_ids, train, validation, train)

    def _split(self, parts: Sequence[tuple[np.ndarray, np.ndarray]], dtype: torch.dtype) -> Split:
        description = self.description
        labels = description.task == "classification"
        x = [np.zeros((0, *description.input_shape)), *(x for x, _ in parts)]
        y = [
            np.zeros((0, *description.target_shape)),
            *(y if labels else _columns(y) for _, y in parts),
        ]
        offsets = np.cumsum([0, *(len(part) for part, _ in parts)]).astype(np.int64)
        targets = torch.from_numpy(np.concatenate(y)).to(description.target_type(dtype))
        return Split(torch.from_numpy(np.concatenate(x)).to(dtype), targets, offsets)


def _columns(y: np.ndarray) -> np.ndarray:
    """Return targets (samples, outputs)."""
    return y if y.ndim > 1 else y[:, None]


@dataclass(frozen=True)
class Deployed:
    """What the clients predict with after a round.

    Attributes
    ----------
    parameters : ndarray or None
        (clients, M, P); None where nothing is predicted.
    mixture : ndarray or None
        Weights (clients, M), or None where M is 1.
    results : mapping of str to ndarray
        Further numbers of each client, (clients, ...).
    """

    parameters: np.ndarray | None
    mixture: np.ndarray | None
    results: Mapping[str, np.ndarray] = field(default_factory=dict)


class Rounds:
    """Rounds of a method on given data; ``run_rounds`` makes one.

    Attributes
    ----------
    round : int
        The last round, 0 before the first one.
    configuration : Configuration
        All options, also those that were not passed.
    """

    def __init__(
        self,
        method: Any,
        data: Any = None,
        *,
        ranks: int = 1,
        **options: Any,
    ) -> None:
        self.configuration, self._dataset = _understood(method, data, options)
        self._ranks(ranks)
        self._engines: list[Engine] = self._on_each(self._begun)

    def _ranks(self, ranks: int) -> None:
        self._table = Table(np.zeros(ranks, np.int64))
        self._communicators: list[Communicator] = (
            [Alone()] if ranks == 1 else [Played(rank, self._table) for rank in range(ranks)]
        )

    def _on_each(self, action: Callable[[int], T]) -> list[T]:
        """Return what ``action(rank)`` returns on every rank."""
        with nullcontext() if torch.get_num_threads() == 1 else computing_threads(1):
            if len(self._communicators) == 1:
                return [action(0)]
            actions = [partial(action, rank) for rank in range(len(self._communicators))]
            return in_threads(actions, self._table)

    def _begun(self, rank: int, stored: dict[str, np.ndarray] | None = None) -> Engine:
        configuration = self.configuration
        communicator = self._communicators[rank]
        dataset = self._dataset or make_dataset(configuration, communicator)
        setup = make(configuration, communicator, configuration.rounds, stored, dataset)
        engine = Engine(setup, setup.hosted_shards(), Clock())
        if stored is None:
            with torch.no_grad():
                engine.prepare()
        return engine

    def advance(self, rounds: int = 1) -> Rounds:
        """Run further rounds; return itself."""

        def advance(rank: int) -> None:
            for _ in range(rounds):
                self._engines[rank].advance()
                self._engines[rank].agree(stop=False)

        self._on_each(advance)
        return self

    def start_from(self, **fields: Any) -> Rounds:
        """Go on from other values of some fields of the method's state.

        Before round 1, the exchange remembers these values in place of the first ones.

        Parameters
        ----------
        **fields
            Arrays or tensors of the shapes that ``state`` has, rows in the order of the clients;
            a field of tensors is such an object.

        Returns
        -------
        Rounds
            These rounds.

        Examples
        --------
        FedAvg from x = 10, where both optima are 0 and lr is 1/2:

        >>> model = {"name": "linear", "bias": False, "loss": "half_squared"}
        >>> rounds = run_rounds("fedavg", [([[1.0]], [0.0])] * 2, rounds=0, model=model,
        ...                     local={"lr": 0.5})
        >>> rounds.start_from(model=[[10.0]]).advance().state.model.tolist()
        [[5.0]]
        """
        before = self.state
        for name, value in fields.items():
            if isinstance(getattr(before, name), torch.Tensor):
                tensor = (
                    value if isinstance(value, torch.Tensor) else torch.tensor(np.asarray(value))
                )
                fields[name] = tensor.to(getattr(before, name))
        after = replace(before, **fields)

        def start(rank: int) -> None:
            engine = self._engines[rank]
            is_rows = engine.setup.exchange.shared_is_rows
            rows = torch.from_numpy(engine.setup.federation.hosted)
            state, memory = states.select(after, rows, is_rows), engine.state.memory
            if not self.round:
                memory = engine.setup.first_memory(state, len(rows))
            engine.rows.take(states.RunState(state, memory))

        self._on_each(start)
        return self

    def resumed(self, ranks: int = 1) -> Rounds:
        """Return rounds that continue from a checkpoint of these, on any number of ranks."""
        continued = object.__new__(type(self))
        continued.configuration, continued._dataset = self.configuration, self._dataset
        continued._ranks(ranks)
        with TemporaryDirectory() as folder:

            def save(rank: int) -> None:
                stored = to_mapping(self.configuration)
                self._engines[rank].checkpoint(Path(folder), "round\n", stored)

            self._on_each(save)
            self._on_each(lambda rank: self._engines[rank].writer.finish())
            path = checkpoint.path_of(Path(folder) / "checkpoints", self.round)
            meta, stored = checkpoint.read_meta(path), checkpoint.read_arrays(path)

            def restored(rank: int) -> Engine:
                engine = continued._begun(rank, stored)
                engine.restore(path, meta)
                return engine

            continued._engines = continued._on_each(restored)
        return continued

    @property
    def round(self) -> int:
        """The last round."""
        return self._engines[0].round

    @property
    def algorithm(self) -> Any:
        """The method itself."""
        return self._engines[0].setup.algorithm

    @property
    def model(self) -> Any:
        """The model of the run."""
        return self._engines[0].setup.model

    @property
    def clients(self) -> Clients:
        """The clients of the first rank with their samples: all clients, where there is one."""
        return self._engines[0].everyone

    @property
    def exchange(self) -> Exchange:
        """The exchange of the first rank; its ``ledger`` counts what all clients have sent."""
        return self._engines[0].setup.exchange

    @property
    def participants(self) -> np.ndarray:
        """The clients that take part in the next round, ascending."""
        return np.flatnonzero(taking_part(self._engines[0].setup, self.round + 1))

    def mixing_matrix(self, round: int | None = None) -> np.ndarray:
        """Return the matrix W of a round under gossip, of the next one by default.

        Parameters
        ----------
        round : int, optional
            A round, from 1.

        Returns
        -------
        ndarray
            (clients, clients), where all of them take part.

        Examples
        --------
        >>> rounds = run_rounds("fedavg", exchange={"name": "gossip", "topology": "complete"})
        >>> rounds.mixing_matrix().round(3)[0].tolist()
        [0.2, 0.2, 0.2, 0.2, 0.2]
        """
        exchange = self.exchange
        if not isinstance(exchange, Gossip):
            raise TypeError("exchange is 'server', which mixes by no matrix; allowed: gossip")
        return exchange.schedule.matrix(self.round + 1 if round is None else round).to_dense()

    @property
    def state(self) -> Any:
        """The method's state, with a row for each client in their order."""
        return self._gathered("algorithm")

    @property
    def memory(self) -> Any:
        """What the exchange remembers: error feedback, moments of a server, replicas."""
        return self._gathered("memory")

    def _gathered(self, part: str) -> Any:
        parts = [getattr(engine.state, part) for engine in self._engines]
        is_rows = self._engines[0].setup.exchange.shared_is_rows
        rows = [
            {name: tensor for name, tensor, has_rows in states.tensors(each, is_rows) if has_rows}
            for each in parts
        ]
        values = {name: self._in_order([each[name] for each in rows]) for name in rows[0]}
        return states.replace_tensors(parts[0], values)

    def _in_order(
        self, parts: Sequence[torch.Tensor], among: np.ndarray | None = None
    ) -> torch.Tensor:
        """Return rows of clients of all ranks in their order, of ``among`` or of all clients."""
        federations = [engine.setup.federation for engine in self._engines]
        clients = np.concatenate([each.hosted for each in federations])
        if among is not None:
            clients = clients[np.isin(clients, among)]
        return torch.cat(list(parts))[torch.from_numpy(np.argsort(clients, kind="stable"))]

    @property
    def digest(self) -> str:
        """The digest of the state, the same on any number of ranks."""
        return str(self._on_each(lambda rank: self._engines[rank].digest())[0])

    @property
    def metrics(self) -> dict[str, Any]:
        """A row of ``metrics.csv`` after this round, without seconds; None where not defined."""

        def row(rank: int) -> dict[str, Any]:
            result = self._engines[rank].evaluated()
            return {} if result is None else result[0]

        return {key: value for key, value in self._on_each(row)[0].items() if key != "seconds"}

    @property
    def deployed(self) -> Deployed:
        """What the training clients predict with."""

        def deploy(rank: int) -> Any:
            engine = self._engines[rank]
            clients = training_of(engine.setup, engine.shards)
            with torch.no_grad():
                predictor = engine.setup.algorithm.deploy(
                    of_trained(engine.setup, engine.state, clients.rows),
                    clients,
                    Draws(engine.seed, engine.round),
                )
            results = predictor.results if len(clients) else {}
            if predictor.parameters is None:
                return None, None, results
            rows = [predictor.parameters_of(i) for i in range(len(clients))]
            size = engine.setup.model.n_parameters
            parameters = torch.stack(rows) if rows else torch.zeros(0, 1, size)
            return parameters, predictor.mixture, results

        parts = self._on_each(deploy)
        training = self.clients.federation.training
        names: Mapping[str, Any] = next((results for *_, results in parts if results), {})
        results = {
            name: self._in_order([part[name] for *_, part in parts if part], training).numpy()
            for name in names
        }
        if parts[0][0] is None:
            return Deployed(None, None, results)
        parameters = self._in_order([each for each, *_ in parts if len(each)], training)
        mixtures = [mixture for _, mixture, _ in parts if mixture is not None and len(mixture)]
        mixture = self._in_order(mixtures, training).numpy() if mixtures else None
        return Deployed(parameters.numpy(), mixture, results)


def run_rounds(
    method: Any,
    data: Any = None,
    *,
    rounds: int = 1,
    ranks: int = 1,
    **options: Any,
) -> Rounds:
    """Run a few rounds of a method in this process, with no run directory.

    What it computes is what ``mpifed.run`` computes of a file with these options, bit for bit.

    Parameters
    ----------
    method : str, type or mapping
        A method's name, ``module:Class``, its class, or a mapping with ``name`` and its options.
    data : sequence of (array_like, array_like, ...), Dataset, str or mapping, optional
        Inputs and targets of each client, on which it is trained and scored: whole numbers are
        labels, others are regressed on. Two more arrays are inputs and targets for validation. Or a
        data set, or what ``mpifed.run(data=...)`` takes. A small synthetic one by default.
    rounds : int
        Rounds to run. 0 gives the state before the first.
    ranks : int
        Ranks, played by threads of this process.
    **options
        Keys of the configuration, as in ``mpifed.run``: ``exchange``, ``local``, ``model``,
        ``compression``, ``participation``, ``seed``, ``clients``, ``dtype``, and those with dots in
        a mapping. Classes stand for their names. Arrays are computed with in float64 by default.

    Returns
    -------
    Rounds
        ``state``, ``deployed``, ``digest`` and ``metrics`` after the last round; ``advance`` runs
        further ones and ``resumed`` continues from a checkpoint.

    Examples
    --------
    Two clients with f(x) = (x - c)² / 2, c = 0 and 4. FedAvg ends at the mean of their optima:

    >>> data = [([[1.0]], [0.0]), ([[1.0]], [4.0])]
    >>> model = {"name": "linear", "bias": False, "loss": "half_squared"}
    >>> result = run_rounds("fedavg", data, model=model, rounds=80, local={"lr": 0.5})
    >>> round(result.state.model.item(), 6)
    2.0
    >>> result.digest == run_rounds("fedavg", data, model=model, rounds=80, ranks=2,
    ...                             local={"lr": 0.5}).digest
    True
    """
    return Rounds(method, data, ranks=ranks, rounds=max(rounds, 1), **options).advance(rounds)


def _understood(
    method: Any, data: Any, options: Mapping[str, Any]
) -> tuple[Configuration, Dataset | None]:
    """Return the configuration of some rounds, and the data set where it was passed itself."""
    keys = {key: with_names(value, key) for key, value in options.items()}
    keys["algorithm"] = with_names(method, "algorithm")
    if isinstance(data, Dataset):
        dataset: Dataset | None = data
    elif isinstance(data, Sequence) and not isinstance(data, str):
        dataset = Listed(data)
        keys.setdefault("dtype", "float64")
    else:
        dataset = None
    if dataset is None:
        keys["data"] = with_names(DATA if data is None else data, "data")
        return resolve(with_overrides({"clients": 5}, keys)), None
    mapping = with_overrides({"clients": dataset.description.n_clients}, keys)
    return resolve({**mapping, "data": Section(name_of(type(dataset), "data"))}), dataset
