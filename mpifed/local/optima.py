"""Pure local models x_i = argmin f_i, which every client finds alone (Gasanov et al. 2021,
3.1).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import hessian, objective_of, smoothness
from mpifed.local.minibatches import batches
from mpifed.local.objective import Objective, Regulariser, row_norms, sampled_gradients
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.watchdog.heartbeat import raise_if_stop_requested

Solver = Literal["gd", "lbfgs", "newton", "published_code"]
Start = Literal["zeros", "shared", "independent"]

# Seconds between two lines of the log, at least.
EVERY = 10.0

# First and last L of a line search (published code of FLIX).
FIRST_SMOOTHNESS = 0.1
MOST_SMOOTHNESS = 2.0**40

# The published code's search: step size, share of a client's samples in a step, what counts as a
# small loss, and steps without a smaller validation loss.
STEP = 1e-2
PART = 0.7
SMALL_LOSS = 1e-4
PATIENCE = 200

log = logging.getLogger("mpifed")


class Search:
    """Reports in the log on the search for the optima of ``clients``, and stops it on request."""

    def __init__(self, clients: Clients) -> None:
        self._count = len(clients)
        ranks = clients.federation.communicator
        self._where = f" of rank {ranks.rank}" if ranks.size > 1 else ""
        self._reported = time.monotonic()

    def at(self, iteration: int, left: int) -> None:
        """Report an iteration; every iteration calls it."""
        raise_if_stop_requested()
        now = time.monotonic()
        if now - self._reported >= EVERY:
            self._reported = now
            log.info(
                f"local optima: {iteration} iterations, {left} of {self._count} "
                f"clients{self._where} not finished"
            )


def starting_point(model: Model, start: str | None, draws: Draws, dtype: torch.dtype) -> Tensor:
    """Return one model, (1, P): of ones, random, or by any other word of zeros."""
    if start == "random":
        return torch.from_numpy(model.init(draws.stream("model"))).to(dtype)[None]
    return torch.full((1, model.n_parameters), float(start == "ones"), dtype=dtype)


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
    most: int,
) -> tuple[Tensor, Tensor]:
    """Return the minimisers of the f_i, and norms of gradients; not collective."""
    if not len(clients):
        return start.clone(), torch.zeros(0, dtype=torch.float64)
    search = Search(clients)
    if solver == "gd":
        return _descend(model, clients, regulariser, start, tolerance, most, search)
    if solver == "published_code":
        optima = stochastic_optima(
            model, clients, regulariser, start, draws, tolerance, most, search
        )
    else:
        optima = start.clone()
        for i in range(len(clients)):
            alone = Clients(clients.federation, clients.shards, clients.rows[i : i + 1])
            objective = objective_of(model, alone, regulariser)
            at = partial(search.at, left=len(clients) - i)
            if solver == "lbfgs":
                optima[i] = _lbfgs(objective, start[i], tolerance, most, at)
            else:
                assert isinstance(model, Linear) and model.n_outputs == 1
                split, row = clients.shards.train, int(clients.rows[i])
                curvature = partial(hessian, model, split, row, regulariser=regulariser)
                optima[i] = _newton(objective, curvature, start[i], tolerance, most, at)
    return optima, row_norms(objective_of(model, clients, regulariser).gradients(optima))


def stochastic_optima(
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    start: Tensor,
    draws: Draws,
    tolerance: float,
    most: int,
    search: Search,
) -> Tensor:
    """Minimise the f_i by SGD on parts of the samples, as the published code of FLIX does."""
    x, optima, some = start.clone(), start.clone(), None
    least, since = np.full(len(clients), np.inf), np.zeros(len(clients), np.int64)
    left = computed = np.arange(len(clients))
    for step in range(most + 1):
        # Rebuilt as clients finish, so that finished ones are not computed any longer.
        if some is None or len(left) <= len(computed) // 2:
            computed, running = left, np.ones(len(left), bool)
            some = Clients(clients.federation, clients.shards, clients.rows[computed])
            training = objective_of(model, some, regulariser)
            validation = objective_of(model, some, Regulariser(), clients.shards.val)
            validates = clients.shards.val.counts[some.rows] > 0
        better = done = np.zeros(len(computed), bool)
        if validates.any():
            losses = validation.losses(x[computed]).cpu().numpy()
            better = losses < least[computed]
            least[computed] = np.where(better, losses, least[computed])
            since[computed] = np.where(better, 0, since[computed] + 1)
            done = validates & (since[computed] >= PATIENCE)
        if not validates.all():
            norms = row_norms(training.gradients(x[computed])).cpu().numpy()
            small = training.losses(x[computed]).cpu().numpy() < SMALL_LOSS
            done = done | (~validates & (norms < tolerance) & small)
        improved = better | ~validates
        optima[computed[improved]] = x[computed[improved]]
        running &= ~done
        left = computed[running]
        if not len(left) or step == most:
            break
        search.at(step, len(left))
        sizes = np.ceil(PART * some.n_train).astype(np.int64)
        rows = batches(some, draws, f"local step {step}", sizes)
        moved = x[computed] - STEP * sampled_gradients(model, some, regulariser, x[computed], rows)
        x[computed] = torch.where(
            torch.from_numpy(running)[:, None].to(x.device), moved, x[computed]
        )
    return optima


def _descend(
    model: Model,
    clients: Clients,
    regulariser: Regulariser,
    start: Tensor,
    tolerance: float,
    most: int,
    search: Search,
) -> tuple[Tensor, Tensor]:
    """Gradient descent with step 1 / L_i, or a line search where L_i is unknown."""
    x, norms = start.clone(), torch.full((len(start),), torch.inf, dtype=torch.float64)
    is_linear = isinstance(model, Linear)
    guess = torch.full_like(norms, 2 * FIRST_SMOOTHNESS)
    if is_linear:
        guess = smoothness(model, clients, regulariser)
    left, objective = np.arange(len(clients)), None
    for iteration in range(most + 1):
        # Rebuilt as clients finish, so that finished ones are not computed any longer.
        if objective is None or len(left) <= len(objective.clients) // 2:
            some = Clients(clients.federation, clients.shards, clients.rows[left])
            objective, computed = objective_of(model, some, regulariser), torch.from_numpy(left)
            running = torch.ones(len(left), dtype=torch.bool)
        gradients = objective.gradients(x[computed])
        reached = row_norms(gradients).cpu()
        norms[computed[running]] = reached[running]
        running &= reached >= tolerance
        left = computed[running].numpy()
        if not len(left) or iteration == most:
            break
        search.at(iteration, len(left))
        if is_linear:
            moved = x[computed] - gradients / guess[computed, None].to(x)
        else:
            moved, tried = _searched(objective, x[computed], gradients, guess[computed] / 2)
            guess[computed] = tried.cpu()
        x[computed] = torch.where(running[:, None].to(x.device), moved, x[computed])
    return x, norms


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
    objective: Objective, start: Tensor, tolerance: float, most: int, at: Callable[[int], None]
) -> Tensor:
    """L-BFGS of scipy for one client, from ``start`` (P,)."""
    from scipy.optimize import minimize  # here, since few methods need it and all would load it

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        row = torch.from_numpy(w).to(start)[None]
        return float(objective.losses(row)[0]), objective.gradients(row)[0].double().cpu().numpy()

    number = itertools.count(1)
    optimum = minimize(
        value,
        start.double().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        callback=lambda w: at(next(number)),
        # scipy stops by the largest entry; the tolerance is for the norm.
        options={
            "maxiter": most,
            "maxfun": 4 * most,
            "ftol": 0.0,
            "gtol": tolerance / np.sqrt(len(start)),
            "maxcor": 20,
        },
    )
    return torch.from_numpy(optimum.x).to(start)


def _newton(
    objective: Objective,
    curvature: Callable[[Tensor], Tensor],
    start: Tensor,
    tolerance: float,
    most: int,
    at: Callable[[int], None],
) -> Tensor:
    """Newton's method for one client, halving the step until f does not increase."""

    def loss(x: Tensor) -> float:
        return float(objective.losses(x[None].to(start))[0])

    def slope(x: Tensor) -> Tensor:
        return objective.gradients(x[None].to(start))[0].double().cpu()

    x = start.double().cpu()
    value, gradient = loss(x), slope(x)
    for iteration in range(most):
        if float(gradient.norm()) < tolerance:
            break
        at(iteration)
        # Without strong convexity the Hessian may be singular; this is then the least-norm step.
        step = torch.linalg.lstsq(curvature(x), gradient[:, None], driver="gelsd").solution[:, 0]
        points = (x - 2.0**-halving * step for halving in range(40))
        moved = next((point for point in points if loss(point) <= value), x)
        there = loss(moved), slope(moved)
        if there[0] >= value and float(there[1].norm()) >= float(gradient.norm()):
            break
        x, (value, gradient) = moved, there
    return x.to(start)
