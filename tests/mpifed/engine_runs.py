"""The engine of a small run, for tests of the machine itself."""

from __future__ import annotations

import torch
from small_runs import problem

from mpifed.config.configuration import resolve, to_mapping
from mpifed.mpi.communicator import Alone
from mpifed.training.build import make
from mpifed.training.engine import Clock, Engine


def engine_of(name, exchange, **more):
    configuration = resolve({**problem(name, exchange), **more})
    setup = make(configuration, Alone(), configuration.rounds)
    return Engine(setup, setup.hosted_shards(), Clock())


def prepared(name, exchange, **more):
    engine = engine_of(name, exchange, **more)
    with torch.no_grad():
        engine.prepare()
    return engine


def stored_of(engine):
    """The least of a configuration that a checkpoint of an engine may hold."""
    return {**to_mapping(resolve({})), "clients": engine.setup.federation.n_clients}
