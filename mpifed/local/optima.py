"""Pure local models x_i = argmin f_i, which every client finds alone (Gasanov et al. 2021,
3.1).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import hessian, objective_of, smoothness
from mpifed.local.minibatches import batches
from mpifed.local.objective import Objective, Regulariser, row_norms, sampled_gradients
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.watchdog.heartbeat import raise_if_stop_requested

# Seconds between two lines of the log, at least.
EVERY = 10.0

log = logging.getLogger("mpifed")


class Search:
    """Reports in the log on the search for the optima of ``clients``, and stops it on request."""

    def __init__(self, clients: Clients) -> None:
        self._count = len(clients)
        ranks = clients.federation.communicator
        self._where = f" of rank {ranks.numbers[ranks.rank]}" if ranks.size > 1 else ""
        self._reported = time.monotonic()

    def at(self, iteration: int, left: int, norm: Callable[[], Any]) -> None:
        """Report an iteration; every iteration calls it."""
        raise_if_stop_requested()
        now = time.monotonic()
        if now - self._reported < EVERY:
            return
        self._reported = now
        log.info(
            f"local optima: {iteration} iterations, {left} of {self._count} clients{self._where} "
            f"not finished, largest gradient norm {float(norm()):.2e}"
        )


# Step size.
STEP = 1e-2
# Share of a client's samples in a step.
PART = 0.7
# A loss below it is small.
SMALL_LOSS = 1e-4
# Steps without a smaller validation loss.
PATIENCE = 200


def stochastic_optima(
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    start: Tensor,
    draws: Draws,
    tolerance: float,
    most_steps: int,
    search: Search,
) -> Tensor:
    """Minimise the f_i by SGD on parts of the samples; not collective."""
    x, found, watch = start.clone(), start.clone(), Watch.begun(len(clients))
    here = left = np.arange(len(clients))
    some, objectives = clients, _objectives(model, clients, regulariser)
    running = np.ones(len(here), bool)
    for step in range(most_steps + 1):
        # Rebuilt as clients finish, so that finished ones are not computed any longer.
        if len(left) <= len(here) // 2:
            some = Clients(clients.federation, clients.shards, clients.rows[left])
            objectives = _objectives(model, some, regulariser)
            here, running = left, np.ones(len(left), bool)
        done = _judged(objectives, some, x, here, found, watch, tolerance)
        running &= ~done
        left = here[running]
        if not len(left) or step == most_steps:
            break
        search.at(step, len(left), partial(_largest_norm, objectives[0], x, here, running))
        sizes = np.ceil(PART * some.n_train).astype(np.int64)
        rows = batches(some, draws, f"local step {step}", sizes)
        gradients = sampled_gradients(model, some, regulariser, x[here], rows)
        moved = x[here] - STEP * gradients
        x[here] = torch.where(torch.from_numpy(running)[:, None].to(x.device), moved, x[here])
    return found


@dataclass(frozen=True)
class Watch:
    """Validation losses during the search; both arrays are updated in place."""

    least: np.ndarray
    since: np.ndarray

    @classmethod
    def begun(cls, count: int) -> Watch:
        """Return the state before the first step of ``count`` clients."""
        return cls(np.full(count, np.inf), np.zeros(count, np.int64))


def _objectives(
    model: Model, clients: Clients, regulariser: Regulariser
) -> tuple[Objective, Objective]:
    """f_i on the training samples, and the loss alone on the validation samples."""
    validation = objective_of(model, clients, Regulariser(), clients.shards.val)
    return objective_of(model, clients, regulariser), validation


def _largest_norm(objective: Objective, x: Tensor, here: np.ndarray, running: np.ndarray) -> Tensor:
    """The largest gradient norm of the clients that still run."""
    return row_norms(objective.gradients(x[here]))[torch.from_numpy(running)].max()


def _judged(
    objectives: tuple[Objective, Objective],
    clients: Clients,
    x: Tensor,
    here: np.ndarray,
    found: Tensor,
    watch: Watch,
    tolerance: float,
) -> np.ndarray:
    """Which clients have finished, bool (len(here),); ``found`` gets their best points so far."""
    training, validation = objectives
    validates = clients.shards.val.counts[clients.rows] > 0
    done = np.zeros(len(here), bool)
    kept = ~validates
    if validates.any():
        losses = validation.losses(x[here]).cpu().numpy()
        better = losses < watch.least[here]
        watch.least[here] = np.where(better, losses, watch.least[here])
        watch.since[here] = np.where(better, 0, watch.since[here] + 1)
        done |= validates & (watch.since[here] >= PATIENCE)
        kept |= better
    if not validates.all():
        norms = row_norms(training.gradients(x[here])).cpu().numpy()
        small = (norms < tolerance) & (training.losses(x[here]).cpu().numpy() < SMALL_LOSS)
        done |= ~validates & small
    found[here[kept]] = x[here[kept]]
    return done


Solver = Literal["gd", "lbfgs", "newton", "published_code"]
Start = Literal["zeros", "shared", "independent"]
# First L of a line search (published code of FLIX).
FIRST_SMOOTHNESS = 0.1
# Last L of a line search.
MOST_SMOOTHNESS = 2.0**40


def local_starts(
    model: Model, clients: Clients, draws: Draws, start: Start, dtype: torch.dtype
) -> Tensor:
    """Return the points where the clients' solvers start."""
    if start == "zeros" or not len(clients):
        size = len(clients), model.n_parameters
        return torch.zeros(size, dtype=dtype, device=clients.device)
    drawn = [
        model.init(draws.stream("local model", int(client) if start == "independent" else -1))
        for client in clients.ids
    ]
    return torch.from_numpy(np.stack(drawn)).to(clients.device, dtype)


def usual_tolerance(l2: float) -> float:
    """Return the gradient norm at which solvers stop by default. It is 1e-6 with a regulariser
    (Gasanov et al. 2021) and 1e-3 without, as in the published code.
    """
    return 1e-6 if l2 > 0 else 1e-3


def local_optima(
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    start: Tensor,
    draws: Draws,
    solver: Solver,
    tolerance: float,
    most_iterations: int,
) -> tuple[Tensor, Tensor]:
    """Minimise the f_i; not collective. The log reports progress now and then."""
    if not len(clients):
        return start.clone(), torch.zeros(0, dtype=torch.float64)
    search = Search(clients)
    if solver == "gd":
        return _descend(model, clients, regulariser, start, tolerance, most_iterations, search)
    whole = objective_of(model, clients, regulariser)
    if solver == "published_code":
        limits = tolerance, most_iterations
        found = stochastic_optima(model, clients, regulariser, start, draws, *limits, search)
        return found, row_norms(whole.gradients(found))
    found = start.clone()
    for i in range(len(clients)):
        alone = Clients(clients.federation, clients.shards, clients.rows[i : i + 1])
        objective = objective_of(model, alone, regulariser)
        report = partial(search.at, left=len(clients) - i)
        if solver == "lbfgs":
            found[i] = _lbfgs(objective, start[i], tolerance, most_iterations, report)
        else:
            assert isinstance(model, Linear) and model.n_outputs == 1
            found[i] = _newton(
                model, alone, regulariser, objective, start[i], tolerance, most_iterations, report
            )
    return found, row_norms(whole.gradients(found))


def _descend(
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    start: Tensor,
    tolerance: float,
    most_iterations: int,
    search: Search,
) -> tuple[Tensor, Tensor]:
    """Gradient descent with step 1 / L_i, or a line search where L_i is unknown."""
    x, norms = start.clone(), torch.full((len(start),), torch.inf, dtype=torch.float64)
    known = isinstance(model, Linear)
    guess = smoothness(model, clients, regulariser) if known else _first_guess(len(start))
    left, objective = np.arange(len(clients)), None
    for iteration in range(most_iterations + 1):
        # Rebuilt as clients finish, so that finished ones are not computed any longer.
        if objective is None or len(left) <= len(objective.clients) // 2:
            some = Clients(clients.federation, clients.shards, clients.rows[left])
            objective, here = objective_of(model, some, regulariser), torch.from_numpy(left)
            running = torch.ones(len(left), dtype=torch.bool)
        gradients = objective.gradients(x[here])
        reached = row_norms(gradients).cpu()
        norms[here[running]] = reached[running]
        running &= reached >= tolerance
        left = here[running].numpy()
        if not len(left) or iteration == most_iterations:
            break
        search.at(iteration, len(left), norms[left].max)
        if known:
            moved = x[here] - gradients / guess[here, None].to(x)
        else:
            moved, tried = _searched(objective, x[here], gradients, guess[here] / 2)
            guess[here] = tried.cpu()
        x[here] = torch.where(running[:, None].to(x.device), moved, x[here])
    return x, norms


def _first_guess(count: int) -> Tensor:
    """Where the line search of every client begins, float64 (count,): L before it is halved."""
    return torch.full((count,), 2 * FIRST_SMOOTHNESS, dtype=torch.float64)


def _searched(
    objective: Objective, x: Tensor, gradients: Tensor, guess: Tensor
) -> tuple[Tensor, Tensor]:
    """x - g / L with L doubled from ``guess`` until f decreases; and that L, for every client."""
    before = objective.losses(x)
    guess = guess.to(x.device).clamp(min=FIRST_SMOOTHNESS)
    while True:
        moved = x - gradients / guess[:, None].to(x)
        short = (objective.losses(moved) >= before) & (guess < MOST_SMOOTHNESS)
        if not short.any():
            # Where even the shortest step does not decrease f, the client keeps its point.
            stuck = guess >= MOST_SMOOTHNESS
            return torch.where(stuck[:, None], x, moved), guess
        guess = torch.where(short, 2 * guess, guess)


def _lbfgs(
    objective: Objective, start: Tensor, tolerance: float, most: int, report: Callable[..., None]
) -> Tensor:
    """L-BFGS of scipy for one client, from ``start`` (P,)."""

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        row = torch.from_numpy(w).to(start)[None]
        return float(objective.losses(row)[0]), objective.gradients(row)[0].double().cpu().numpy()

    options = {"maxiter": most, "maxfun": 4 * most, "ftol": 0.0, "gtol": 0.0, "maxcor": 20}
    # scipy stops by the largest entry; the tolerance is for the norm.
    options["gtol"] = tolerance / np.sqrt(len(start))
    number = itertools.count(1)

    def iterated(w: np.ndarray) -> None:
        report(next(number), norm=lambda: np.linalg.norm(value(w)[1]))

    found = scipy.optimize.minimize(
        value,
        start.double().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        callback=iterated,
        options=options,
    )
    return torch.from_numpy(found.x).to(start)


def _newton(
    model: Linear,
    alone: Clients,
    regulariser: Regulariser,
    objective: Objective,
    start: Tensor,
    tolerance: float,
    most: int,
    report: Callable[..., None],
) -> Tensor:
    """Newton's method, halving the step until f decreases."""
    split, row = alone.shards.train, int(alone.rows[0])

    def at(x: Tensor) -> tuple[float, Tensor, float]:
        found = objective.gradients(x[None].to(start))[0].double().cpu()
        value = float(objective.losses(x[None].to(start))[0])
        return value, found, float(found.norm())

    x = start.double().cpu()
    value, gradient, norm = at(x)
    for iteration in range(most):
        if norm < tolerance:
            break
        report(iteration, norm=partial(float, norm))
        curvature = hessian(model, split, row, x, regulariser)
        # Without strong convexity the Hessian may be singular; this is then the least-norm step.
        step = torch.linalg.lstsq(curvature, gradient[:, None], driver="gelsd").solution[:, 0]
        moved = _halved(objective, x, step, start, value)
        there = at(moved)
        if there[0] >= value and there[2] >= norm:
            break
        x, (value, gradient, norm) = moved, there
    return x.to(start)


def _halved(objective: Objective, x: Tensor, step: Tensor, like: Tensor, before: float) -> Tensor:
    """x less the longest of ``step`` / 2^k that does not increase f; x where there is none."""
    scale = 1.0
    while scale > 2.0**-40:
        moved = x - scale * step
        if float(objective.losses(moved[None].to(like))[0]) <= before:
            return moved
        scale /= 2
    return x
