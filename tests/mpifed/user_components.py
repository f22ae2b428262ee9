"""Components as a user would plug them in by ``package.module:object``; they fail on demand."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from typing import Any, Literal

import numpy as np
import torch

from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.algorithms.flix.flix import Flix
from mpifed.data.sources.synthetic import Synthetic
from mpifed.errors import InputError
from mpifed.local import optima
from mpifed.method import Requirement
from mpifed.testing import world

NOT_CALLABLE = 3


class Fails(FedAvg):
    """FedAvg that fails as ``FAIL=how:rank:round`` in the environment says, if it says so."""

    def __init__(
        self, model, local, *, model_init: Literal["shared", "per_client"] = "shared"
    ) -> None:
        super().__init__(model, local, model_init=model_init)

    def round(self, state, clients, channel, draws):
        how, rank, number = os.environ.get("FAIL", "not:0:0").split(":")
        if (world().rank, draws.round) == (int(rank), int(number)):
            state = getattr(self, how)(state)
        return super().round(state, clients, channel, draws)

    def mistake(self, state):
        raise ValueError("the user's mistake")

    def leave(self, state):
        sys.exit(0)

    def die(self, state):
        os.kill(os.getpid(), signal.SIGKILL)

    def stand_still(self, state):
        os.kill(os.getpid(), signal.SIGSTOP)
        return state

    def go_round(self, state):
        while True:
            pass

    def receive_usr1(self, state):
        os.kill(os.getpid(), signal.SIGUSR1)
        return state

    def receive_term(self, state):
        os.kill(os.getpid(), signal.SIGTERM)
        return state

    def diverge(self, state):
        velocity = state.optimizer.momentum.clone()
        velocity[-1] = torch.inf
        optimizer = dataclasses.replace(state.optimizer, momentum=velocity)
        return dataclasses.replace(state, optimizer=optimizer)


class Diverges(FedAvg):
    """FedAvg in which ``DIVERGE=what:clients:round`` of the environment is no longer finite."""

    def round(self, state, clients, channel, draws):
        what, listed, number = os.environ.get("DIVERGE", "nothing::0").split(":")
        bad = np.isin(clients.ids, [int(client) for client in listed.split(",") if client])
        rows = torch.from_numpy(np.flatnonzero(bad & (draws.round == int(number))))
        start = channel.broadcast(state.model)
        trained, optimizer = self.local(start, state.optimizer, clients, draws)
        if what == "update":
            trained[rows] = torch.nan
        model = channel.average(trained, clients.weights, before=state.model)
        if what == "own":
            velocity = optimizer.momentum.clone()
            velocity[rows] = torch.inf
            optimizer = dataclasses.replace(optimizer, momentum=velocity)
        if what == "server" and draws.round == int(number):
            model = model * torch.nan
        return FedAvgState(model, optimizer)


class TakesItsTime(FedAvg):
    """FedAvg that goes on, slowly, on rank 1."""

    def round(self, state, clients, channel, draws):
        for _ in range(12 if world().rank == 1 else 0):
            time.sleep(0.5)
            start = state.model.expand(len(clients), *state.model.shape)
            self.local(start, state.optimizer, clients, draws)
        return super().round(state, clients, channel, draws)


class NeedsAll(FedAvg):
    """FedAvg that refuses partial participation."""

    @staticmethod
    def validate(options, participation):
        if participation != 1.0:
            raise InputError("all are needed")


class Talks(Flix):
    """FLIX that tells of its search for local optima twice a second."""

    def __init__(self, model, local, **options: Any) -> None:
        super().__init__(model, local, **options)
        optima.EVERY = 0.5


class Stepless(FedAvg):
    """FedAvg whose clients cannot be cut short."""

    requires = (Requirement({"participation.late": "miss"}, "whose clients take all steps"),)


class FailingData(Synthetic):
    """Synthetic data that rank 1 cannot make."""

    def load(self, client_ids, dtype):
        if world().rank == 1:
            raise InputError("data.path is 'here', which rank 1 cannot see")
        return super().load(client_ids, dtype)


class LonelyRefusal(Synthetic):
    """Synthetic data that rank 1 refuses, while the others go on to talk to it."""

    def __init__(self, n_clients, run_seed, communicator, *, n_test: int = 20) -> None:
        if communicator.rank == 1:
            raise InputError("data.n_test is not to the taste of rank 1")
        super().__init__(n_clients, run_seed, communicator, n_test=n_test)
        communicator.barrier()


class HangsEarly(FedAvg):
    """FedAvg of which rank 1 never has scored its clients."""

    def deploy(self, state, clients, draws):
        if world().rank == 1:
            time.sleep(600)
        return super().deploy(state, clients, draws)
