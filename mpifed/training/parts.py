"""Makes the algorithm and the exchange of a run, which may be made again to be tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from mpifed.algorithms.base import Algorithm, algorithm_class
from mpifed.config.configuration import Configuration
from mpifed.data.base import Description
from mpifed.exchange.base import Exchange, exchange_class
from mpifed.exchange.compression import build
from mpifed.exchange.server import Silent
from mpifed.federation.clients import Federation
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model


def make_algorithm(
    configuration: Configuration,
    description: Description,
    model: Model,
    horizon: int,
    device: torch.device,
) -> Algorithm:
    """Return the algorithm of a run, with a solver of its own."""
    longest = int(description.n_train.max())
    solver = LocalSGD(model, configuration.local, horizon, longest, device)
    made: Callable[..., Algorithm] = algorithm_class(configuration.algorithm.name)
    return made(model, solver, **configuration.algorithm.options)


def exchanging_of(configuration: Configuration) -> tuple[type[Exchange], Mapping[str, Any]]:
    """Return the class of the exchange of a run, and its options; ``Silent`` if nothing is sent."""
    if not algorithm_class(configuration.algorithm.name).communicates:
        return Silent, {}
    return exchange_class(configuration.exchange.name), configuration.exchange.options


def make_exchange(
    configuration: Configuration,
    federation: Federation,
    stored: Mapping[str, np.ndarray],
    algorithm: Algorithm,
) -> Exchange:
    """Return the exchange of a run; collective."""
    compressor = None
    if configuration.compression.name != "none":
        compressor = build(configuration.compression)
        if algorithm.payload():
            # Refuses a k above the numbers in a message before anything is written.
            compressor.contraction(algorithm.payload())
    exchanging, options = exchanging_of(configuration)
    made: Callable[..., Exchange] = exchanging
    exchange = made(federation, configuration.seed, stored, compressor, **options)
    if configuration.privacy.is_asked_for:
        exchange.privacy = configuration.privacy
    return exchange
