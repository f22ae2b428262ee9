"""The methods that the theorems of FLIX are about.

A run of FLIX in the terms of its theorems: coefficients, optima and curvatures of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.checkpoint.files import newest
from mpifed.components.schema import shown
from mpifed.errors import InputError
from mpifed.federation.clients import draw_unseen
from mpifed.io.hdf5 import disk_reason, opened, whole
from mpifed.results.run_directories import no_checkpoint
from mpifed.theory import flix

METHODS = ("flix", "dcgd", "diana")


def check_method(directory: Path, name: object) -> None:
    """Refuse a run of another method."""
    if name not in METHODS:
        raise InputError(
            f"RUN_DIR is '{directory}', a run of '{name}'; it must be one of: {', '.join(METHODS)}"
        )


OPTIONS = ("flix_alpha", "l2", "regulariser", "smoothness", "gradient")


@dataclass(frozen=True)
class Stored:
    """The training clients in the newest checkpoint of a run; n of them, models of P numbers."""

    path: Path
    alpha: np.ndarray
    optima: np.ndarray
    smoothness: np.ndarray
    x: np.ndarray
    strong: float
    configuration: Mapping[str, Any]

    def deployed(self) -> np.ndarray:
        """Return T_i(x) = alpha_i x + (1 - alpha_i) x_i, (n, P)."""
        alpha = self.alpha[:, None]
        return alpha * self.x + (1 - alpha) * self.optima

    def equal_alpha(self) -> float:
        """Return the alpha that all clients share; raise ``InputError`` if they differ."""
        if not (self.alpha == self.alpha[0]).all():
            raise InputError(
                f"{self.path}: algorithm.flix_alpha differs between clients; this is known for "
                "equal coefficients only"
            )
        return float(self.alpha[0])

    def constants(self) -> flix.Constants:
        """Return the constants without compression."""
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
        """Return the constants for Theorem 2."""
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
        """Return the options of the run that gradient descent does not have, as key=value."""
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
    """Read the newest intact checkpoint of a run directory."""
    found, _ = newest(directory)
    if found is None:
        raise no_checkpoint(directory)
    path, meta = found
    configuration = meta.configuration
    check_method(directory, configuration["algorithm"]["name"])
    return _read(path, configuration)


def _read(path: Path, configuration: dict[str, Any]) -> Stored:
    options = configuration["algorithm"]
    missing = [name for name in OPTIONS if name not in options]
    if missing or "unseen_fraction" not in configuration["evaluation"]:
        raise InputError(f"{path}: the configuration lacks {(*missing, 'unseen_fraction')[0]}")
    n, fraction = configuration["clients"], configuration["evaluation"]["unseen_fraction"]
    try:
        with opened(path) as file:
            clients = file["clients"]
            shared = "model" not in clients
            stored = whole(file["server/model"] if shared else clients["model"])
            optima, smooth = whole(clients["optima"]), whole(clients["smoothness"])
        if not len(optima) == len(smooth) == n or (len(stored) != n and not shared):
            raise ValueError(f"it does not hold the state of {n} clients")
        training = np.flatnonzero(~draw_unseen(n, fraction, configuration["seed"]))
        alpha = np.broadcast_to(np.asarray(options["flix_alpha"], float), n)[training]
        strong = float(options["l2"]) if options["regulariser"] == "l2" else 0.0
        x = (stored[0] if shared else stored[training, 0]).astype(float)
        optima, smooth = optima[training].astype(float), smooth[training].astype(float)
        if optima.ndim != 2 or optima.shape[-1:] != x.shape[-1:] or smooth.ndim != 1:
            raise ValueError("its models and optima have different shapes")
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a run of FLIX: {disk_reason(error)}") from None
    return Stored(path, alpha, optima, smooth, x, strong, configuration)
