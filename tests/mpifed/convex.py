"""Small convex problems with known answers, and a method on one of them, round by round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpifed.dataset import Description
from mpifed.method import Draws
from mpifed.testing import Rounds

ISOTROPIC = [[[1.0]], [[4.0]]], [[0.0], [3.0]]
ANISOTROPIC = [np.diag([1.0, 4.0]), np.diag([3.0, 1.0])], [[1.0, 0.0], [0.0, 2.0]]

REGRESSION = {"name": "linear", "bias": False, "loss": "half_squared"}
CLASSIFICATION = {"name": "linear", "bias": False}
FLIX = ("flix", "dcgd", "diana")
EXACT = {"local_solver": "newton", "local_tolerance": 1e-12}


@dataclass
class Problem:
    """Inputs and targets of each client, the model, and who takes part in a round."""

    samples: list[tuple[Any, Any]]
    model: Any = field(default_factory=lambda: REGRESSION)
    participation: Any = 1.0


def problem_of(xs, ys, task="regression", participation=1.0, model=None):
    """The problem of the given samples, with a linear model without bias where none is given."""
    if task == "regression":
        ys = [np.asarray(y, float) for y in ys]
    linear = REGRESSION if task == "regression" else CLASSIFICATION
    return Problem(list(zip(xs, ys, strict=True)), model or linear, participation)


def clients_of(xs, ys, task="regression", participation=1.0):
    """Clients with the given samples, float64, and the description of their data."""
    problem = problem_of(xs, ys, task, participation)
    counts, zeros = np.array([len(x) for x in xs]), np.zeros(len(xs), int)
    kind = {"classification": 2, "regression": 1}[task]
    description = Description("test", np.shape(xs[0])[1:], kind, counts, zeros, zeros, task)
    return Run("local", problem).clients, description


def quadratics(matrices, centres, **how):
    """f_i = (x - c_i)' A_i (x - c_i) / 2 as least squares: rows sqrt(m) chol(A_i)'."""
    roots = [np.linalg.cholesky(a).T * np.sqrt(len(a)) for a in matrices]
    return problem_of(roots, [r @ c for r, c in zip(roots, centres, strict=True)], **how)


def logistic(n=6, m=40, d=5, seed=0, **how):
    draw = np.random.default_rng(seed)
    xs = [draw.normal(size=(m, d)) + draw.normal(size=d) for _ in range(n)]
    ys = [(x @ draw.normal(size=d) + draw.normal(size=m) > 0).astype(int) for x in xs]
    return problem_of(xs, ys, "classification", **how)


def random_labels(counts, shape=(5,), n_classes=2, seed=0, model="linear", **how):
    """Clients with random inputs and labels, each of which occurs."""
    draw = np.random.default_rng(seed)
    xs = [draw.uniform(-1, 1, (n, *shape)) for n in counts]
    ys = np.split(draw.permutation(np.arange(sum(counts)) % n_classes), np.cumsum(counts)[:-1])
    return problem_of(xs, ys, "classification", model=model, **how)


def two_quadratics(**how):
    """f_i = a_i (x - c_i)^2 / 2 with a = (1, 3) and c = (0, 4): one sample a client."""
    return quadratics([[[1.0]], [[3.0]]], [[0.0], [4.0]], **how)


def random_quadratics(n=10, d=20, seed=1, **how):
    draw = np.random.default_rng(seed)
    matrices = []
    for _ in range(n):
        q = np.linalg.qr(draw.normal(size=(d, d)))[0]
        matrices.append(q @ np.diag(draw.uniform(1, 5, d)) @ q.T)
    return quadratics(matrices, list(draw.normal(size=(n, d))), **how)


def gossip(correction="none", topology="ring", weights="metropolis_hastings", **options):
    """The section ``exchange`` of gossip; a topology of None is that of the schedule's own."""
    graph = {"topology": topology, "weights": weights}
    graph = {key: value for key, value in graph.items() if value is not None}
    return {"name": "gossip", **graph, "correction": correction, **options}


class Run(Rounds):
    """One method on one problem, round by round; ``compression`` is a name and its options.

    Further keywords are options of the method.
    """

    def __init__(
        self,
        name: Any,
        problem: Problem,
        compression: tuple[str, dict[str, Any]] | None = None,
        *,
        seed: int = 0,
        dtype: str = "float64",
        local: dict[str, Any] | None = None,
        exchange: Any = "server",
        model: Any = None,
        rounds: int = 1,
        keys: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if getattr(name, "__name__", name).lower() in FLIX:
            options = {**EXACT, **options}
        if compression is not None:
            keys = {**(keys or {}), "compression": {"name": compression[0], **compression[1]}}
        super().__init__(
            {"name": name, **options},
            problem.samples,
            participation=problem.participation,
            model=model or problem.model,
            exchange=exchange,
            local=local or {},
            seed=seed,
            dtype=dtype,
            rounds=rounds,
            **(keys or {}),
        )

    @property
    def flix(self) -> Any:
        """The part of the state that methods of FLIX have in common."""
        return getattr(self.state, "flix", self.state)

    @property
    def x(self) -> np.ndarray:
        """The shared model, or its first row."""
        return self.flix.model[0].flatten().numpy()

    def go(self, rounds: int = 1) -> Run:
        """Run further rounds; return itself."""
        self.advance(rounds)
        return self

    def measured(self) -> dict[str, Any]:
        """What the method measures after this round."""
        draws = Draws(self.configuration.seed, self.round)
        return self.algorithm.measure(self.state, self.clients, self.exchange, draws)

    def remarks(self) -> str:
        """What the method remarks on before it begins."""
        return " ".join(self.algorithm.remarks(self.state, self.clients, self.exchange))

    def models(self) -> np.ndarray:
        """What the clients predict with, one row (P,) for each client and component."""
        parameters = self.deployed.parameters
        return parameters.reshape(-1, parameters.shape[-1])

    def adapted(self, clients: Any = None) -> np.ndarray:
        """What clients would predict with that took no part, as ``models``; all by default."""
        clients = clients or self.clients
        draws = Draws(self.configuration.seed, self.round)
        rows = self.algorithm.adapt(self.state, clients, self.exchange, draws).parameters
        return rows.reshape(-1, rows.shape[-1]).numpy()


class Descent(Run):
    """Gradient descent by gossip: FedAvg of whole shards from ``x``, zero by default."""

    def __init__(
        self,
        problem: Problem,
        exchange: Any,
        eta: float,
        x: np.ndarray | None = None,
        steps: int = 1,
        **options: Any,
    ) -> None:
        local = {"lr": eta, "steps": steps}
        super().__init__("fedavg", problem, exchange=exchange, local=local, **options)
        self.start_from(model=0 * self.state.model if x is None else x[:, None])

    def rows(self, rounds: int) -> np.ndarray:
        """The clients' models after further rounds, (clients, P)."""
        return self.advance(rounds).state.model[:, 0].numpy()
