"""The options of FLIX, DCGD and DIANA, grouped by what they decide, and which go together.

Users give them flat, as ``algorithm.step`` and its kin; ``descent.Descent`` documents them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from mpifed.algorithms.flix.earlier_run import refuse_other_problem
from mpifed.algorithms.flix.objective import as_linear
from mpifed.errors import InputError
from mpifed.local import optima
from mpifed.local.objective import Regulariser
from mpifed.models.base import Model
from mpifed.theory import flix as theory

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
        """Whether round 1 under a server is the one-shot average.

        Examples
        --------
        >>> StartingPoint(None, None).is_average, StartingPoint(None, "runs/a").is_average
        (True, False)
        """
        return self.point == "average" or (self.point is None and self.earlier_run is None)


@dataclass(frozen=True)
class StepSize:
    """gamma: a number, by ``line_search``, or None for the theorem.

    The theorem is that for ``setting``; ``smoothness`` says which constants enter it.
    """

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
    """Where the clients' x_i come from: a solver and its limits, or the run ``earlier_run``.

    The solver stops where ||grad f_i|| is below ``tolerance``, or after ``iterations``.
    """

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
    """Which theorems hold.

    Parameters
    ----------
    setting : {'auto', 'strongly_convex', 'convex', 'nonconvex'}
        ``auto`` decides by the model and the regulariser.
    model : Model
        Only risks of linear models are known to be convex.
    regulariser : Regulariser
        Added to every f_i.

    Returns
    -------
    {'strongly_convex', 'convex', 'nonconvex'}
    """
    if setting != "auto":
        return setting
    if regulariser.kind == "nonconvex" or as_linear(model) is None:
        return "nonconvex"
    return "strongly_convex" if regulariser.strength > 0 else "convex"


def refuse_flix(configuration: Any) -> str | None:
    """Why these options of ``flix`` do not go together; None if they do."""
    options, gossip = configuration.algorithm.options, configuration.exchange.name == "gossip"
    alpha = options["flix_alpha"]
    if isinstance(alpha, list) and len(alpha) != configuration.clients:
        return (
            f"algorithm.flix_alpha has {len(alpha)} entries, but there are "
            f"{configuration.clients} clients; it must be one number, or one for each"
        )
    strong = options["l2"] > 0 and options["regulariser"] == "l2"
    if options["setting"] == "strongly_convex" and not strong:
        return (
            "algorithm.setting is 'strongly_convex', but without regulariser=l2 and an l2 above 0 "
            "nothing makes the risks so; allowed: auto, convex, nonconvex"
        )
    if gossip and options["start"] == "average":
        return (
            "algorithm.start is 'average', which needs a server; allowed with gossip: zeros, "
            "ones, random"
        )
    if options["start"] == "average" and options["start_from"]:
        return (
            f"algorithm.start is 'average', a first round that forgets x, and algorithm.start_from "
            f"is '{options['start_from']}'; one of them must be empty"
        )
    if options["step"] == "line_search" or options["stop_at"] is not None:
        what = "step" if options["step"] == "line_search" else "stop_at"
        said = f"algorithm.{what} is {options[what]!r}, which "
        if gossip or configuration.algorithm.name != "flix":
            return said + "asks for algorithm=flix and exchange=server"
        if configuration.compression.name not in ("none", "identity"):
            return said + "asks for whole gradients; compression must be none"
    return refuse_other_problem(configuration) if options["optima_from"] else None


def check_model(model: Model, step: float | str | None, local_solver: str, reference: str) -> None:
    """Checks that enough is known of the model for these options.

    Parameters
    ----------
    model : Model
        What is trained.
    step, local_solver, reference
        The options of these names.

    Raises
    ------
    InputError
        Where ``step`` is None and the smoothness of the model is not known, or where ``newton`` is
        asked of a model that is not linear with one output.
    """
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
