"""A warning where local steps are too large for the correction of gossip."""

from __future__ import annotations

import numpy as np

from mpifed.algorithms.base import StepScale
from mpifed.exchange.corrections.base import largest_step, least_eigenvalue
from mpifed.exchange.gossip import Gossip
from mpifed.federation.clients import Clients
from mpifed.local.linear_objective import smoothness
from mpifed.local.objective import Regulariser
from mpifed.models.linear import Linear
from mpifed.training.build import Setup

LINEAR = ("doubly_stochastic", "symmetric")


def step_warnings(setup: Setup, training: Clients) -> list[str]:
    """Return a line where steps exceed what the correction bears on quadratics. Collective."""
    exchange, local = setup.exchange, setup.configuration.local
    if not isinstance(exchange, Gossip) or exchange.correction is None:
        return []
    correction = exchange.correction
    if correction.needs not in LINEAR or not exchange.schedule.symmetric:
        return []
    if not (isinstance(setup.model, Linear) and setup.algorithm.steps_locally):
        return []
    found = smoothness(setup.model, training, Regulariser("l2", local.weight_decay)).numpy()
    communicator = setup.federation.communicator
    scaled = local.lr * found * _scales(setup, training)
    step = float(communicator.max(np.array([scaled.max(initial=0.0)]))[0])
    bound = None
    if communicator.rank == 0:
        bound = largest_step(correction, least_eigenvalue(exchange.schedule))
    bound = float(communicator.broadcast_object(bound))
    if step < bound:
        return []
    name = setup.configuration.exchange.options["correction"].name
    return [
        f"warning: a local step times the smoothness of a client's risk is up to {step:.3g}, but "
        f"exchange.correction '{name}' diverges on quadratics above {bound:.3g} with these mixing "
        "matrices; a smaller local.lr may be needed"
    ]


def _scales(setup: Setup, training: Clients) -> np.ndarray:
    """Factors of the learning rate, float64 (clients,); see ``algorithms.base.step_scale``."""
    rule: StepScale = getattr(setup.algorithm, "gossip_step_scale", "none")
    if rule == "none":
        return np.ones(len(training))
    count = len(setup.federation.training) if rule == "normalised" else 1
    return np.asarray(count * training.weights.numpy())
