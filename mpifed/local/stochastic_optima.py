"""Pure local models as in the published code of FLIX: SGD on random parts of the samples.

Each step takes 70 % of a client's samples. A client with validation samples stops after 200 steps
without a smaller validation loss, and keeps its best point. A client without stops where both its
gradient and its loss on all samples are small. The paper has gradient descent instead (``optima``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import objective_of
from mpifed.local.objective import Objective, Regulariser, row_norms, sampled_gradients
from mpifed.local.sampling import batches
from mpifed.local.search import Search
from mpifed.models.base import Model

STEP = 1e-2
"""Step size."""
PART = 0.7
"""Share of a client's samples in a step."""
SMALL_LOSS = 1e-4
"""A loss below it is small."""
PATIENCE = 200
"""Steps without a smaller validation loss."""


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
    """Minimise the f_i by SGD on parts of the samples; not collective.

    The samples of a client's step depend on the seed, the step and the client alone.

    Parameters
    ----------
    model : Model
        The model of all clients.
    clients : Clients
        The clients hosted here.
    regulariser : Regulariser
        Added to every f_i.
    start : Tensor
        First points, (clients, P).
    draws : Draws
        Random numbers of the parts.
    tolerance : float
        Norm of the gradient below which it is small.
    most_steps : int
        Largest number of steps of a client.
    search : Search
        Reports progress.

    Returns
    -------
    Tensor
        x_i, (clients, P).

    Raises
    ------
    StopRequested
        Where this rank has been asked to stop.
    """
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
    """Validation losses during the search; both arrays are updated in place.

    Attributes
    ----------
    least : numpy.ndarray
        Least validation loss of each client, float64 (clients,).
    since : numpy.ndarray
        Steps since then, int64 (clients,).
    """

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
