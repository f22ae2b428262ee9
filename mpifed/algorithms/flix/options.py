"""The options of FLIX, DCGD and DIANA, grouped by what they decide, and which go together.

Users give them flat, as ``algorithm.step`` and its kin; ``descent.Descent`` documents them all.
Also the state of a run, and what it takes from an earlier one: its x, or its clients' optima.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from mpifed import state
from mpifed.algorithms.flix.objective import as_linear
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint.integrity import Damaged
from mpifed.components.registry import plain
from mpifed.components.schema import shown
from mpifed.errors import InputError
from mpifed.local import optima
from mpifed.local.objective import Regulariser
from mpifed.models.base import Model
from mpifed.results.configurations import read_stored
from mpifed.theory import flix as theory

# Parts of a configuration that change a client's optimum.
PROBLEM = ("clients", "seed", "dtype", "data", "model")

# Options of the algorithm that change it.
OPTIMUM = (
    "l2",
    "regulariser",
    "local_solver",
    "local_start",
    "local_tolerance",
    "local_iterations",
)


@dataclass(frozen=True)
class StoredModel:
    """The x of a run under a server, (1, P)."""

    model: Tensor = state.server()


@dataclass(frozen=True)
class StoredOptima:
    """x_i (clients, P) and ||grad f_i(x_i)|| (clients,)."""

    optima: Tensor = state.client()
    gradient_norm: Tensor = state.client()


def check_together(configuration: Any) -> None:
    """Check ``flix_alpha`` against the clients, and ``optima_from`` against its run's files."""
    own = configuration.algorithm.options
    alpha = own["flix_alpha"]
    if isinstance(alpha, list) and len(alpha) != configuration.clients:
        raise InputError(
            f"algorithm.flix_alpha has {len(alpha)} entries, but there are "
            f"{configuration.clients} clients; it must be one number, or one for each"
        )
    place = own["optima_from"]
    if not place or not (Path(place) / "config.yaml").is_file():
        return
    other = read_stored(Path(place) / "config.yaml")
    pairs = [(key, other.get(key), plain(getattr(configuration, key))) for key in PROBLEM]
    options = other["algorithm"]
    held_out = other["evaluation"].get("validation_fraction", 0.0)
    here = configuration.evaluation.validation_fraction
    pairs.append(("evaluation.validation_fraction", held_out, here))
    pairs += [(f"algorithm.{k}", options.get(k), own[k]) for k in OPTIMUM]
    for key, a, b in pairs:
        if a != b:
            raise InputError(
                f"algorithm.optima_from is '{place}', a run of another problem: {key} is "
                f"{shown(a)} there, {shown(b)} here"
            )


def stored_model(place: str, like: Tensor) -> Tensor:
    """The x of the newest intact checkpoint of a run."""
    return _read(place, "start_from", StoredModel(torch.zeros_like(like)), np.arange(0)).model


def stored_optima(place: str, like: Tensor, ids: np.ndarray) -> tuple[Tensor, Tensor]:
    """The clients' optima in the newest intact checkpoint of a run."""
    wanted = StoredOptima(like, torch.zeros(len(ids), dtype=torch.float64))
    found = _read(place, "optima_from", wanted, ids)
    return found.optima, found.gradient_norm


def _read(place: str, option: str, wanted: Any, hosted: np.ndarray) -> Any:
    """``wanted`` from the newest intact checkpoint of ``place``, rows of the clients ``hosted``."""
    newest, _ = checkpoint.newest(Path(place))
    if newest is None:
        raise InputError(
            f"algorithm.{option} is '{place}', which holds no intact checkpoint; it must be the "
            "directory of a run"
        )
    path, meta = newest
    if option == "start_from" and meta.configuration["exchange"]["name"] == "gossip":
        raise InputError(
            f"algorithm.start_from is '{place}', a run under gossip, each of whose clients has an "
            "x of its own; it must be a run under a server"
        )
    try:
        return checkpoint.read_state(path, wanted, False, hosted)
    except Damaged as error:
        raise InputError(f"algorithm.{option} is '{place}', but {error}") from None


Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Step = Positive | Literal["line_search"] | None
Setting = Literal["auto", "strongly_convex", "convex", "nonconvex"]
Smoothness = Literal["paper", "safe", "published_code"]
FirstPoint = Literal["average", "zeros", "ones", "random"] | None
StopRule = Literal["objective", "paper", "published_code"]
Stuck = Literal["stay", "redraw"]
Method = Literal["auto", "newton", "lbfgs", "none"]


@dataclass(frozen=True)
class StartingPoint:
    """x^0: a ``point`` by name, or the newest x of the run directory ``earlier_run``."""

    point: FirstPoint
    earlier_run: str | None

    @property
    def is_average(self) -> bool:
        """Whether round 1 under a server is the one-shot average."""
        return self.point == "average" or (self.point is None and self.earlier_run is None)


@dataclass(frozen=True)
class StepSize:
    """gamma: a number, by ``line_search``, or None for the theorem."""

    given: float | Literal["line_search"] | None
    setting: theory.Setting
    smoothness: Smoothness

    @property
    def is_searched(self) -> bool:
        """Whether every round looks for gamma."""
        return self.given == "line_search"


@dataclass(frozen=True)
class Stopping:
    """When x stays where it is, and what happens where a line search fails."""

    below: float | None
    rule: StopRule
    stuck: Stuck


@dataclass(frozen=True)
class LocalOptima:
    """Where the clients' x_i come from: a solver and its limits, or the run ``earlier_run``."""

    solver: optima.Solver
    start: optima.Start
    tolerance: float
    iterations: int
    earlier_run: str | None


@dataclass(frozen=True)
class Reference:
    """How the minimiser of f~ is found, and the ``accuracy`` of the rounds that are predicted."""

    method: Method
    accuracy: float


def proven_setting(setting: Setting, model: Model, regulariser: Regulariser) -> theory.Setting:
    """Which theorems hold."""
    if setting != "auto":
        return setting
    if regulariser.kind == "nonconvex" or as_linear(model) is None:
        return "nonconvex"
    return "strongly_convex" if regulariser.strength > 0 else "convex"


def check_model(model: Model, step: float | str | None, local_solver: str, reference: str) -> None:
    """Checks that enough is known of the model for these options."""
    linear = as_linear(model)
    if step is None and linear is None:
        raise InputError(
            "algorithm.step is missing: the smoothness of this model is not known, so no "
            "theorem gives it; set a number, or line_search"
        )
    if linear is not None and linear.n_outputs == 1:
        return
    for option, value, others in (
        ("local_solver", local_solver, "gd, lbfgs, published_code"),
        ("reference", reference, "auto, lbfgs, none"),
    ):
        if value == "newton":
            raise InputError(
                f"algorithm.{option} is 'newton', which is for linear models with one output; "
                f"allowed here: {others}"
            )


# What may be known of the minimum of f~.
MINIMISER, LEAST_VALUE = 1, 2


@dataclass(frozen=True)
class FlixState:
    """The state of ``flix`` and ``dcgd``; that of ``diana`` adds its memories."""

    model: Tensor = state.shared()
    optima: Tensor = state.client()
    gradient_norm: Tensor = state.client()
    smoothness: Tensor = state.client()
    step: Tensor = state.server()
    reference: Tensor = state.server()
    least: Tensor = state.server()
    known: Tensor = state.server()
    stopped: Tensor = state.server()


@dataclass(frozen=True)
class DianaState(FlixState):
    """The state of ``diana``."""

    memories: Tensor = state.client()
    memory: Tensor = state.server()
