"""FedMM's methods round by round, on data given sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mpifed.dataset import Dataset, Description, Shards, Split
from mpifed.method import Draws
from mpifed.testing import Rounds


class Samples(Dataset):
    """Clients with the samples ``parts``; the last ``targets`` columns are what is regressed on."""

    def __init__(self, parts, targets=0, tests=None):
        self.parts, self.width = parts, parts[0].shape[1] - targets
        self.tests = tests or [part[:0] for part in parts]
        counts, tested = (np.array([len(z) for z in each]) for each in (parts, self.tests))
        task = "regression" if targets else "unlabelled"
        self.description = Description(
            "test", (self.width,), targets, counts, 0 * counts, tested, task
        )

    def load(self, client_ids, dtype):
        train, test = (
            self.split([each[i] for i in client_ids], dtype) for each in (self.parts, self.tests)
        )
        return Shards(client_ids, train, self.split([p[:0] for p in self.parts], dtype), test)

    def split(self, parts, dtype):
        z = torch.from_numpy(np.concatenate(parts).astype(float)).to(dtype)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return Split(z[:, : self.width], z[:, self.width :], offsets)


@dataclass
class Problem:
    """A data set and who takes part in a round."""

    data: Dataset
    participation: Any = 1.0


def data_of(parts, participation=1.0, targets=0, tests=None):
    return Problem(Samples(parts, targets, tests), participation)


class Run(Rounds):
    """A method round by round; ``compressor`` is a name and its options."""

    def __init__(
        self, name, problem, surrogate=None, compressor=None, seed=0, keys=None, **options
    ):
        if surrogate is not None:
            options["surrogate"] = surrogate
        if compressor is not None:
            keys = {**(keys or {}), "compression": {"name": compressor[0], **compressor[1]}}
        super().__init__(
            {"name": name, **options},
            problem.data,
            participation=problem.participation,
            seed=seed,
            dtype="float64",
            rounds=1,
            **(keys or {}),
        )

    def go(self, rounds=1):
        self.advance(rounds)
        return self

    def begin(self, s, variates=None):
        """Begin at a statistic, with control variates of the clients."""
        if variates is None:
            variates = torch.zeros_like(self.state.variates)
        variate = self.algorithm.weights(self.clients) @ variates
        self.start_from(surrogate=s, previous=s, variates=variates, variate=variate)
        return self

    @property
    def s(self):
        return self.state.surrogate

    @property
    def theta(self):
        return self.algorithm.parameters(self.surrogate, self.s)

    @property
    def surrogate(self):
        return self.algorithm.surrogate_of(self.state)

    def measured(self):
        """What the method measures after this round."""
        draws = Draws(self.configuration.seed, self.round)
        return self.algorithm.measure(self.state, self.clients, self.exchange, draws)

    def objective(self):
        return self.measured()["objective"]

    def remarks(self):
        return self.algorithm.remarks(self.state, self.clients, self.exchange)


class Unequal(Samples):
    """Client i has SIZES[i] samples, of one number each, all i + 1; as ``fedmm_runs:Unequal``."""

    SIZES = np.array([1, 7, 2, 4, 6])

    def __init__(self, n_clients, run_seed, communicator):
        super().__init__([np.full((self.SIZES[i], 1), i + 1.0) for i in range(n_clients)])
