"""Four problems with known optima, and where each method ends on them.

In ``equal``, all clients have one quadratic risk. In ``unlike``, each has its own,
f_i = (w - c_i)' A_i (w - c_i) / 2. In ``groups``, each half of the clients has a regressor of its
own and no noise. In ``logistic``, risks are those of logistic regression with an l2 term. Clients
take five gradient steps a round where risks are quadratic and one in ``logistic``, unless a method
says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.optimize
from scipy.special import expit

from mpifed.testing import Rounds, run_rounds

CLIENTS, DIMENSION = 4, 2
RATE, STEPS = 0.1, 5
TOLERANCE = 1e-7
"""Largest gap of a coordinate, where a method says nothing else."""

COMPARED = 5
"""Rounds after which digests of one rank and of four are compared."""

Array = np.ndarray


@dataclass(frozen=True)
class Problem:
    """Samples x (clients, m, d) and targets of each client; labels in logistic regression.

    ``rate`` and ``steps`` are those of gradient steps in a round, and ``l2`` is a factor of
    |w|^2 / 2.
    """

    name: str
    x: Array
    y: Array
    rate: float = RATE
    steps: int = STEPS
    l2: float = 0.0

    @property
    def logistic(self) -> bool:
        return self.y.dtype == int

    @property
    def bare(self) -> Problem:
        """The problem without the l2 term, and with the larger rate that it then bears."""
        return replace(self, rate=1.5, l2=0.0) if self.l2 else self

    @property
    def clients(self) -> list[tuple[Array, Array]]:
        return list(zip(self.x, self.y, strict=True))

    def gradient(self, client: int, w: Array) -> Array:
        x, y = self.x[client], self.y[client]
        outputs = x @ w
        return x.T @ ((expit(outputs) if self.logistic else outputs) - y) / len(y) + self.l2 * w

    def hessian(self, client: int, w: Array) -> Array:
        x = self.x[client]
        p = expit(x @ w)
        curvature = p * (1 - p) if self.logistic else np.ones(len(x))
        return (x.T * curvature) @ x / len(x) + self.l2 * np.eye(len(w))

    def risk(self, client: int, w: Array) -> float:
        x, y = self.x[client], self.y[client]
        z = x @ w
        losses = np.logaddexp(0, z) - y * z if self.logistic else (z - y) ** 2 / 2
        return float(losses.mean() + self.l2 * w @ w / 2)

    def minimum(self, clients: list[int], pull: float = 0.0, to: Array | None = None) -> Array:
        """Return the minimiser of a mean of risks and pull |w - to|^2 / 2, by Newton's steps."""
        to = np.zeros(DIMENSION) if to is None else to
        w = np.zeros(DIMENSION)
        for _ in range(60):
            slope = np.mean([self.gradient(i, w) for i in clients], 0) + pull * (w - to)
            curvature = np.mean([self.hessian(i, w) for i in clients], 0)
            w = w - np.linalg.solve(curvature + pull * np.eye(DIMENSION), slope)
        assert np.abs(slope).max() < 1e-12
        return w

    def stepped(self, client: int, w: Array, steps: int, pull: float = 0.0) -> Array:
        """Return what gradient steps make of w, which a term may pull back to it."""
        start = w
        for _ in range(steps):
            w = w - self.rate * (self.gradient(client, w) + pull * (w - start))
        return w


def quadratics(name: str, matrices: Array, centres: Array) -> Problem:
    roots = np.linalg.cholesky(matrices).transpose(0, 2, 1) * DIMENSION**0.5
    return Problem(name, roots, np.einsum("nij,nj->ni", roots, centres))


def problems() -> dict[str, Problem]:
    draw = np.random.default_rng(0)
    turns = np.linalg.qr(draw.normal(size=(CLIENTS, DIMENSION, DIMENSION)))[0]
    matrices = np.einsum("nij,nj,nkj->nik", turns, draw.uniform(1, 3, (CLIENTS, 2)), turns)
    same = np.repeat(matrices[:1], CLIENTS, 0)
    regressors = np.repeat([[2.0, -1.0], [-1.0, 3.0]], CLIENTS // 2, 0)
    points = np.linalg.qr(draw.normal(size=(CLIENTS, 12, DIMENSION)))[0] * 12**0.5
    points = points @ np.linalg.cholesky(matrices).transpose(0, 2, 1)
    x = draw.normal(size=(CLIENTS, 24, DIMENSION)) + 0.5 * draw.normal(size=(CLIENTS, 1, DIMENSION))
    chance = expit(np.einsum("nij,nj->ni", x, draw.normal(size=(CLIENTS, DIMENSION))))
    some = (
        quadratics("equal", same, np.repeat([[1.0, -2.0]], CLIENTS, 0)),
        quadratics("unlike", matrices, draw.normal(size=(CLIENTS, DIMENSION))),
        Problem("groups", points, np.einsum("nij,nj->ni", points, regressors)),
        Problem("logistic", x, (draw.uniform(size=chance.shape) < chance).astype(int), 0.3, 1, 1.0),
    )
    return {problem.name: problem for problem in some}


PROBLEMS = problems()


def own(problem: Problem) -> Array:
    """Each client's own minimiser."""
    return np.stack([problem.minimum([i]) for i in range(CLIENTS)])


def pooled(problem: Problem) -> Array:
    """The minimiser of the mean of all risks."""
    return np.stack([problem.minimum(list(range(CLIENTS)))] * CLIENTS)


def zero(function: Callable[[Array], Array]) -> Array:
    """Return where a function of a model vanishes."""
    found = scipy.optimize.root(function, np.zeros(DIMENSION), tol=1e-14).x
    assert np.abs(function(found)).max() < 1e-11
    return found


def average(problem: Problem, pull: float = 0.0) -> Array:
    """The model that local steps and an average leave as it is; after one step it is pooled."""

    def move(w: Array) -> Array:
        return np.mean([problem.stepped(i, w, problem.steps, pull) for i in range(CLIENTS)], 0) - w

    return np.stack([zero(move)] * CLIENTS)


def pulled(problem: Problem) -> Array:
    """The average of steps that a term 2 |w - start|^2 / 2 pulls back."""
    return average(problem, 2.0)


def tuned(problem: Problem, steps: int = 2, start: Array | None = None) -> Array:
    """Two of a client's own steps, from the average."""
    start = average(problem)[0] if start is None else start
    return np.stack([problem.stepped(i, start, steps) for i in range(CLIENTS)])


def near_average(problem: Problem) -> Array:
    """Each client's minimiser of f_i + |w - average|^2."""
    centre = average(problem)[0]
    return np.stack([problem.minimum([i], 2.0, centre) for i in range(CLIENTS)])


def near_mean(problem: Problem) -> Array:
    """Minimisers of the sum of f_i + |w_i - mean of all w|^2."""

    def models(mean: Array) -> Array:
        return np.stack([problem.minimum([i], 2.0, mean) for i in range(CLIENTS)])

    return models(zero(lambda mean: models(mean).mean(0) - mean))


def half_way(problem: Problem) -> Array:
    """Half of each client's own minimiser and half of the x that is best for these mixtures."""
    optima = own(problem)

    def slope(x: Array) -> Array:
        return np.mean([problem.gradient(i, (x + optima[i]) / 2) for i in range(CLIENTS)], 0)

    return (zero(slope) + optima) / 2


def half_way_by_steps(problem: Problem) -> Array:
    """Half of each client's own minimiser and half of the x that such local steps leave alone."""
    optima = own(problem)
    slower = replace(problem, rate=problem.rate / 4)

    def move(x: Array) -> Array:
        starts = (x + optima) / 2
        ends = [slower.stepped(i, starts[i], problem.steps) for i in range(CLIENTS)]
        return np.mean(ends - starts, 0)

    return (zero(move) + optima) / 2


def least_largest(problem: Problem) -> Array:
    """The minimiser of the largest risk."""
    found = scipy.optimize.minimize(
        lambda v: v[-1],
        [*pooled(problem)[0], 10.0],
        jac=lambda v: np.array([0.0, 0.0, 1.0]),
        constraints=[
            {
                "type": "ineq",
                "fun": lambda v, i=i: v[-1] - problem.risk(i, v[:2]),
                "jac": lambda v, i=i: np.array([*-problem.gradient(i, v[:2]), 1.0]),
            }
            for i in range(CLIENTS)
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return np.stack([found.x[:2]] * CLIENTS)


def adapted(problem: Problem) -> Array:
    """Five own steps from where the mean of risks after them is least."""
    return _after_steps(problem, first_order=False)


def adapted_first_order(problem: Problem) -> Array:
    """Five own steps from where the mean of gradients after them is zero."""
    return _after_steps(problem, first_order=True)


def _after_steps(problem: Problem, first_order: bool) -> Array:
    def slope(w: Array) -> Array:
        slopes = []
        for i in range(CLIENTS):
            point, matrix = w, np.eye(DIMENSION)
            for _ in range(STEPS):
                if not first_order:
                    matrix = (np.eye(DIMENSION) - RATE * problem.hessian(i, point)) @ matrix
                point = point - RATE * problem.gradient(i, point)
            slopes.append(matrix.T @ problem.gradient(i, point))
        return np.mean(slopes, 0)

    return tuned(replace(problem, rate=RATE), STEPS, zero(slope))


def tuned_as_trained(problem: Problem) -> Array:
    """As many of a client's own steps as in a round, from the average."""
    return tuned(problem, problem.steps)


def tuned_by_five(problem: Problem) -> Array:
    """Five of a client's own steps, from the average of models that they make."""
    return tuned(replace(problem, rate=RATE, steps=STEPS), STEPS)


def shrunk(problem: Problem) -> Array:
    """Each client's minimiser of its risk and n |w|^2 / 2; the risk of labels is the hinge loss."""
    if not problem.logistic:
        return np.stack([problem.minimum([i], float(CLIENTS)) for i in range(CLIENTS)])

    def machine(x: Array, y: Array) -> Array:
        rows, zeros = (2 * y - 1)[:, None] * x, np.zeros(len(y))

        def dual(a: Array) -> tuple[float, Array]:
            w = rows.T @ a / (CLIENTS * len(y))
            return CLIENTS * w @ w / 2 - a.mean(), (rows @ w - 1) / len(y)

        bounds = [(0, 1)] * len(y)
        found = scipy.optimize.minimize(dual, zeros, jac=True, bounds=bounds, tol=1e-15)
        return rows.T @ found.x / (CLIENTS * len(y))

    return np.stack([machine(x, y) for x, y in problem.clients])


@dataclass(frozen=True)
class Entry:
    """How a method runs, and what its clients deploy at the end.

    ``clusters`` are options for the problem ``groups``, where each client then aims at its own
    minimiser. A method that is ``alone`` has steps of its own, and takes an l2 term by an option,
    ``penalty``, or not at all; one that is ``bare`` deploys other numbers than weights decay. Those
    with a ``surrogate`` of the risk have no model.
    """

    aim: Callable[[Problem], Array]
    rounds: int = 60
    options: Any = None
    local: dict[str, Any] | None = None
    clusters: dict[str, Any] | None = None
    alone: bool = False
    penalty: str | None = None
    bare: bool = False
    surrogate: bool = False


META = {"inner_steps": STEPS, "inner_step": RATE}
"""Where a method steps by itself."""

WHOLE_STEPS = {"step_rule": "constant", "step": 1.0}
NEWTON = {"local_solver": "newton", "local_tolerance": 1e-12}

METHODS = {
    "local": Entry(own, 120),
    "fedavg": Entry(average),
    "fedavg_ft": Entry(tuned, options={"tune_epochs": 2}),
    "fedprox": Entry(pulled, 80, {"mu": 2.0}),
    "scaffold": Entry(pooled, 120),
    "svrg": Entry(average),
    "qffl": Entry(average, options={"q": 0.0}),
    "agnostic": Entry(least_largest, 600, {"deployed": "last"}, alone=True),
    "mocha": Entry(
        shrunk,
        60,
        {"mocha_lambda": 1.0, "sigma_every": None, "sdca_fraction": 1.0},
        alone=True,
    ),
    "fedem": Entry(average, options={"n_components": 1}, clusters={"n_components": 2}),
    "fedgmm": Entry(average, options={"n_components": 1, "n_gaussians": 1}),
    "clustered": Entry(average, options={"eps1": 0.0}, clusters={"eps1": 9.0, "eps2": 1e-3}),
    "ifca": Entry(average, options={"n_clusters": 1}, clusters={"n_clusters": 2}),
    "fedper": Entry(average, options={"head": []}),
    "fedrep": Entry(average, options={"head": []}),
    "fedbabu": Entry(tuned, options={"head": [], "tune_epochs": 2}),
    "lg_fedavg": Entry(average, options={"head": ["*"]}),
    "fedfomo": Entry(own, 120, bare=True),
    "fedala": Entry(own, 300, {"ala_share": 1.0, "ala_lr": 1.0}, bare=True),
    "flix": Entry(half_way, 120, {"flix_alpha": 0.5, **NEWTON}, alone=True, penalty="l2"),
    "dcgd": Entry(half_way, 120, {"flix_alpha": 0.5, **NEWTON}, alone=True, penalty="l2"),
    "diana": Entry(half_way, 120, {"flix_alpha": 0.5, **NEWTON}, alone=True, penalty="l2"),
    "flix_fedavg": Entry(half_way_by_steps, 320, {"flix_alpha": 0.5, "optimum_epochs": 600}),
    "scafflix": Entry(
        half_way,
        120,
        {"flix_alpha": 0.5, "scafflix_p": 0.4, **NEWTON},
        alone=True,
        penalty="l2",
    ),
    "fomaml": Entry(
        adapted_first_order,
        80,
        {**META, "outer_step": 0.5, "support_fraction": 1.0},
        alone=True,
        penalty="l2",
    ),
    "maml": Entry(
        adapted,
        80,
        {**META, "outer_step": 2.5, "support_fraction": 1.0},
        alone=True,
        penalty="l2",
    ),
    "reptile": Entry(
        tuned_by_five,
        100,
        {**META, "outer_step": 0.9},
        alone=True,
        penalty="l2",
    ),
    "fedadam": Entry(average, 120, {"server_lr": 1.0, "beta1": 0.0, "beta2": 0.0, "tau": 1.0}),
    "ditto": Entry(near_average, 80, {"ditto_lambda": 2.0}),
    "apfl": Entry(own, 300, {"apfl_alpha": 0.8}, local={"epochs": 1}, bare=True),
    "pfedme": Entry(
        near_mean,
        60,
        {"pfedme_lambda": 2.0, "pfedme_eta": 0.4, "inner_steps": 40},
        local={"lr": 0.2, "epochs": 1},
    ),
    "l2sgd": Entry(near_mean, 300, {"l2gd_p": 0.3, "l2gd_lambda": 2.0}, {"lr": RATE}, bare=True),
    "kgt": Entry(pooled, 120),
    "scaffnew": Entry(pooled, 200, {"scaffnew_p": 0.4}),
    "feddyn": Entry(pooled, 160, {"feddyn_alpha": 1.0}),
    "fednova": Entry(average),
    "moon": Entry(average),
    "fedpd": Entry(pooled, 160),
    "fedspd": Entry(tuned, options={"n_clusters": 1, "tune_epochs": 2}),
    "d_admm": Entry(pooled, 120, {"admm_c": 1.0}),
    "fedlt": Entry(pooled, 120),
    "pfeddst": Entry(tuned_as_trained, 60, {"head": []}),
    "streaming_diloco": Entry(average, 120, {"outer_momentum": 0.5}),
    "fedmm": Entry(pooled, 200, WHOLE_STEPS, surrogate=True),
    "fedmm_theta": Entry(pooled, 200, WHOLE_STEPS, surrogate=True),
    "sa_ssmm": Entry(pooled, 200, WHOLE_STEPS, surrogate=True),
}

GOSSIPING = {"d_admm", "fedspd", "kgt", "pfeddst"}
"""Methods that have no server."""

ELSEWHERE = {
    "l2gd": "hovers around its aim at a distance that falls with the rate",
    "fedbn": "is for networks with normalisation",
    "fedpac": "aligns the representations of networks",
    "fedproto": "averages the representations of labels",
    "fedrod": "has a second head for unbalanced labels",
    "fedrod_hyper": "makes heads of label counts",
    "knn_per": "adds nearest neighbours of a representation",
    "fedmgs": "factorises matrices",
    "fedmm_ot": "learns transport maps",
}
"""Methods for which these are no problems."""


LOOSER = {
    ("agnostic", "unlike"): 1e-3,
    ("agnostic", "logistic"): 1e-1,
    ("apfl", "logistic"): 1e-2,
    ("fedala", "unlike"): 5e-2,
    ("fedala", "logistic"): 1e-1,
    ("fedfomo", "logistic"): 1e-1,
}
"""Gaps of methods whose steps shrink near their aim, or that the l2 term does not make faster."""


def rounds_of(method: str, problem: Problem, ranks: int = 1) -> Rounds:
    """Return a method on a problem, before its first round."""
    entry, problem = METHODS[method], taken(method, problem)
    options = {"name": method, **(entry.options or {})}
    if problem.name == "groups" and entry.clusters:
        options |= entry.clusters
    if entry.penalty:
        options[entry.penalty] = problem.l2
    local: dict[str, Any] = {"lr": problem.rate, "batch_size": 64}
    if not entry.alone:
        local |= {"epochs": problem.steps, "weight_decay": problem.l2, **(entry.local or {})}
    model: Any = {"name": "linear", "bias": False}
    if not problem.logistic:
        model["loss"] = "half_squared"
    clients = problem.clients
    if entry.surrogate:
        local, model = {}, "none"
        options["surrogate"] = {
            "name": "quadratic",
            "loss": "logistic" if problem.logistic else "least_squares",
            "rho": problem.rate,
            "regularisation": "ridge" if problem.l2 else "none",
            "strength": problem.l2,
        }
        if method == "sa_ssmm":  # has one client
            clients = [(np.concatenate(problem.x), np.concatenate(problem.y))]
    exchange: Any = "server"
    if method in GOSSIPING:
        exchange = {"name": "gossip", "topology": "complete", "weights": "metropolis_hastings"}
    return run_rounds(
        options, clients, rounds=0, ranks=ranks, model=model, local=local, exchange=exchange
    )


def taken(method: str, problem: Problem) -> Problem:
    """Return the problem as a method takes it."""
    entry = METHODS[method]
    return problem.bare if entry.bare or (entry.alone and not entry.penalty) else problem


def deployed(method: str, rounds: Rounds) -> Array:
    """Return the linear model that each client predicts with."""
    if METHODS[method].surrogate:
        state, kind = rounds.state, rounds.algorithm
        theta = kind.parameters(kind.surrogate_of(state), state.surrogate)
        return np.stack([theta.numpy()] * CLIENTS)
    models = rounds.deployed
    if models.mixture is None:
        return models.parameters[:, 0]
    return np.einsum("nm,nmp->np", models.mixture, models.parameters)


def aim(method: str, problem: Problem) -> Array:
    """Return what each client is to deploy."""
    entry = METHODS[method]
    if problem.name == "groups" and entry.clusters:
        return own(problem)
    return entry.aim(taken(method, problem))


def gap(method: str, problem: Problem, rounds: Rounds) -> float:
    """Return the largest distance of a coordinate from the aim."""
    return float(np.abs(deployed(method, rounds) - aim(method, problem)).max())


def tolerance(method: str, problem: Problem) -> float:
    """Return the largest gap that a method may leave."""
    return LOOSER.get((method, problem.name), TOLERANCE)


def final_gap(method: str, problem: Problem) -> float:
    """Return the gap after the last round of a run whose digest has been compared."""
    rounds = rounds_of(method, problem).advance(COMPARED)
    ranks = 1 if method == "sa_ssmm" else 4
    assert rounds_of(method, problem, ranks).advance(COMPARED).digest == rounds.digest
    return gap(method, problem, rounds.advance(METHODS[method].rounds - COMPARED))
