"""Two families of sine curves (Gasanov et al. 2022, sec. 6.2, after Finn et al. 2017)."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from annotated_types import Ge

from mpifed.data.generated import GeneratedDataset, alike
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

SMALLEST_AMPLITUDE = 0.1
# x is uniform in [-REACH, REACH].
REACH = 5.0

FAMILIES = 2


class Sine(GeneratedDataset):
    """Sine regression: clients of two families, y = a sin(x + b) (Gasanov et al. 2022).

    Parameters
    ----------
    split : int, optional
        Clients of the first family; the rest belong to the second. None is 30, or three tenths of
        at most 30 clients.
    amplitude_max : float
        Largest amplitude: 5 in the published code and in Finn et al. 2017, 0.5 in the paper's text.
    n_train : int
        Training samples of each client.
    n_val : int
        Validation samples of each client.
    n_test : int
        Test samples of each client.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        split: Annotated[int, Ge(0)] | None = None,
        amplitude_max: Annotated[float, Ge(SMALLEST_AMPLITUDE)] = 5.0,
        n_train: Annotated[int, Ge(1)] = 50,
        n_val: Annotated[int, Ge(0)] = 0,
        n_test: Annotated[int, Ge(0)] = 2000,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        if split is None:
            split = 30 if n_clients > 30 else 3 * n_clients // 10
        if split > n_clients:
            raise InputError(
                f"data.split is {split}, the clients of the first family; it must be at most "
                f"clients, {n_clients}"
            )
        self.seed: int = run_seed if seed is None else seed
        self.split = split
        self.families = families(self.seed, amplitude_max)
        counts = (n_train, n_val, n_test)
        self.description = alike("sine", (1,), 1, n_clients, counts, "regression")

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        amplitude, phase = self.families[int(client >= self.split)]
        x = stream(self.seed, f"sine/{split}", client=client).uniform(-REACH, REACH, (n, 1))
        return x, amplitude * np.sin(x + phase)


def families(seed: int, amplitude_max: float) -> np.ndarray:
    """Return amplitude and phase (columns) of the two families (rows), float64 (2, 2)."""
    rng = stream(seed, "sine/families")
    amplitudes = rng.uniform(SMALLEST_AMPLITUDE, amplitude_max, FAMILIES)
    return np.column_stack([amplitudes, rng.uniform(0, 2 * math.pi, FAMILIES)])
