"""Components as a user would plug them in by ``package.module:object``; they fail on demand."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from typing import Literal

import torch

from mpifed.algorithms.fedavg import FedAvg
from mpifed.communicator import world
from mpifed.data.synthetic import Synthetic
from mpifed.errors import InputError

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

    def vanish(self, state):
        os._exit(0)

    def die(self, state):
        os.kill(os.getpid(), signal.SIGKILL)

    def stand_still(self, state):
        os.kill(os.getpid(), signal.SIGSTOP)
        return state

    def go_round(self, state):
        while True:
            pass

    def freeze(self, state):
        """Stops the guard too, as where a node is frozen."""
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def hear_usr1(self, state):
        os.kill(os.getpid(), signal.SIGUSR1)
        return state

    def hear_term(self, state):
        os.kill(os.getpid(), signal.SIGTERM)
        return state

    def hear_int(self, state):
        os.kill(os.getpid(), signal.SIGINT)
        return state

    def diverge(self, state):
        velocity = state.optimizer.momentum.clone()
        velocity[-1] = torch.inf
        optimizer = dataclasses.replace(state.optimizer, momentum=velocity)
        return dataclasses.replace(state, optimizer=optimizer)


class Stepless(FedAvg):
    """FedAvg that does not say that it takes local steps, as a component of a user may not."""

    steps_locally = False


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


def wrong_hint(*, extent: Missing = 3) -> None:  # noqa: F821
    """Its annotation names nothing."""
