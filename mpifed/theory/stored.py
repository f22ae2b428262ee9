"""A run of FLIX as the theorems see it: coefficients, optima and curvatures of its clients."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifed.checkpoint.files import listed, read_meta
from mpifed.checkpoint.integrity import Damaged
from mpifed.components.schema import shown
from mpifed.errors import InputError
from mpifed.federation.clients import draw_unseen
from mpifed.theory import flix

METHODS = ("flix", "dcgd", "diana")


@dataclass(frozen=True)
class Stored:
    """What the newest checkpoint holds of the training clients.

    ``alpha`` and ``smoothness`` (L_i; zeros where unknown) are (n,), ``optima`` is (n, P), ``x``
    (P,), or (n, P) under gossip; ``strong`` is mu_i, the same for all. ``configuration`` is that
    of the run.
    """

    path: Path
    alpha: np.ndarray
    optima: np.ndarray
    smoothness: np.ndarray
    x: np.ndarray
    strong: float
    configuration: Mapping[str, Any]

    def deployed(self) -> np.ndarray:
        """T_i(x), (n, P)."""
        alpha = self.alpha[:, None]
        return alpha * self.x + (1 - alpha) * self.optima

    def equal_alpha(self) -> float:
        """alpha where all clients have the same; else ``InputError``."""
        if not (self.alpha == self.alpha[0]).all():
            raise InputError(
                f"{self.path}: algorithm.flix_alpha differs between clients; this is known for "
                "equal coefficients only"
            )
        return float(self.alpha[0])

    def constants(self) -> flix.Constants:
        """The constants without compression; ``InputError`` where L_i are unknown or wrong."""
        if self.configuration["algorithm"]["smoothness"] == "published_code":
            raise InputError(
                f"{self.path}: algorithm.smoothness is 'published_code', whose L_i are too small "
                "for the theorems; ask of a run with: paper, safe"
            )
        if not (self.smoothness > 0).all():
            raise InputError(
                f"{self.path}: the smoothness of this model is not known; theorems are for linear "
                "models"
            )
        return flix.constants(self.alpha, self.smoothness, self.strong)

    def of_gradient_descent(self) -> flix.Constants:
        """The same for Theorem 2, ``InputError`` where it does not speak of the run."""
        c, beyond = self.constants(), self._beyond_gradient_descent()
        if beyond:
            raise InputError(
                f"{self.path}: Theorem 2 is about gradient descent, where all clients send whole "
                f"gradients to a server in every round; this run has {' and '.join(beyond)}"
            )
        if self.strong <= 0:
            raise InputError(
                f"{self.path}: the risks are not strongly convex; Theorem 2 asks for algorithm.l2 "
                "above 0 and regulariser=l2"
            )
        return c

    def _beyond_gradient_descent(self) -> list[str]:
        """What of the run is not as in gradient descent, as key=value."""
        run = self.configuration
        options = run["algorithm"]
        plain = {
            "algorithm": (options["name"], ("flix",)),
            "compression": (run["compression"]["name"], ("none", "identity")),
            "exchange": (run["exchange"]["name"], ("server",)),
            "algorithm.gradient": (options["gradient"], ("exact",)),
            "participation": (run["participation"], (1.0,)),
        }
        return [
            f"{key}={shown(value)}" for key, (value, fine) in plain.items() if value not in fine
        ]


def read_run(directory: Path) -> Stored:
    """The newest intact checkpoint of ``directory``; raises ``InputError``."""
    for path in listed(directory / "checkpoints"):
        with contextlib.suppress(Damaged):
            meta = read_meta(path)
            break
    else:
        raise InputError(f"RUN_DIR is '{directory}', which holds no intact checkpoint of a run")
    configuration = meta.configuration
    options = configuration["algorithm"]
    if options["name"] not in METHODS:
        raise InputError(
            f"RUN_DIR is '{directory}', a run of '{options['name']}'; it must be one of: "
            f"{', '.join(METHODS)}"
        )
    return _read(path, configuration, options)


def _read(path: Path, configuration: dict[str, Any], options: dict[str, Any]) -> Stored:
    n, fraction = configuration["clients"], configuration["evaluation"]["unseen_fraction"]
    training = np.flatnonzero(~draw_unseen(n, fraction, configuration["seed"]))
    alpha = np.broadcast_to(np.asarray(options["flix_alpha"], float), n)[training]
    strong = options["l2"] if options["regulariser"] == "l2" else 0.0
    with h5py.File(path) as file:
        clients = file["clients"]
        rows = clients["model"][()][training, 0] if "model" in clients else file["server/model"][0]
        optima = clients["optima"][()][training].astype(float)
        smooth = clients["smoothness"][()][training]
    return Stored(path, alpha, optima, smooth, rows.astype(float), strong, configuration)
