"""Checks of a user's own schedule: the object, and the matrix of each round."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from numbers import Integral
from typing import Any, cast

import numpy as np

from topologies.matrix import MixingMatrix
from topologies.own_functions import ROUNDS, kind_of
from topologies.own_rounds import as_matrix, is_matrix
from topologies.parameters import OwnPartError, TopologyError
from topologies.places import defined_at, raised_at
from topologies.sequences import Schedule, check_round

RETURNS = "matrix(k) returns W^k, a MixingMatrix"
"""What a schedule's method does, for messages."""


def _is_count(value: Any) -> bool:
    return not _is_flag(value) and isinstance(value, Integral) and int(value) >= 1


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


REQUIRED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "n": ("a whole number", _is_count),
    "period": ("a whole number, or None", lambda value: value is None or _is_count(value)),
    "tau": ("a whole number", _is_count),
    "symmetric": ("True or False", _is_flag),
    "doubly_stochastic": ("True or False", _is_flag),
    "matrix": ("a method", callable),
}
"""Attributes of a schedule, and what each must be. None has a default, so that a misspelt one is
noticed."""


class OwnSchedule:
    """A user's schedule, of which the matrix of each round is checked.

    Parameters
    ----------
    schedule : Schedule
        The user's object, whose other attributes this one has too.
    name : str
        What made it, ``package.module:object``.
    """

    def __init__(self, schedule: Schedule, name: str) -> None:
        self._schedule, self._name = schedule, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also before there is a schedule, as in a copy
            raise AttributeError(name)
        return getattr(self._schedule, name)

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1; raise ``OwnPartError`` where it is none."""
        where, place = f"{self._name} for round {check_round(k)}", self._place()
        try:
            found: Any = self._schedule.matrix(k)
        except TopologyError as error:
            raise OwnPartError(f"{where}: {error}{raised_at(error)}", "schedule") from error
        except Exception as error:
            said = f"{where} fails: {type(error).__name__}: {error}{raised_at(error)}; {RETURNS}"
            raise OwnPartError(said, "schedule") from error
        if not is_matrix(found):
            raise OwnPartError(
                f"{where}: {kind_of(found)} was returned; {RETURNS}{place}", "schedule"
            )
        try:
            made = as_matrix(found)
        except TopologyError as error:
            raise OwnPartError(f"{where}: {error}{place}", "schedule") from None
        if made.n != self._schedule.n:
            said = f"{where} has {made.n} nodes, not {self._schedule.n}{place}"
            raise OwnPartError(said, "schedule")
        return made

    def _place(self) -> str:
        place = defined_at(self._schedule.matrix) or defined_at(type(self._schedule))
        return f" (in {place})" if place else ""


def own_schedule(found: object, name: str, n: int, where: str = "") -> Schedule:
    """Return a user's object as a schedule of ``n`` nodes.

    Parameters
    ----------
    found : object
        What the object ``name`` has returned.
    name : str
        The object, ``package.module:object``.
    n : int
        The number of nodes asked for.
    where : str, default ''
        Where the object is defined, as the end of a sentence.

    Returns
    -------
    Schedule
        ``found``, with checks of its matrices where these are not made by this package.

    Raises
    ------
    OwnPartError
        If it lacks an attribute of a schedule, or has another number of nodes.
    """
    missing = [attribute for attribute in REQUIRED if not hasattr(found, attribute)]
    if missing:
        near = difflib.get_close_matches(missing[0], dir(found), n=1)
        misspelt = f" (it has {near[0]!r})" if near else ""
        raise OwnPartError(
            f"{name} returned {kind_of(found)}, which is not a schedule: it lacks "
            f"{', '.join(missing)}{misspelt}{ROUNDS}{where}",
            "schedule",
        )
    for attribute, (words, allows) in REQUIRED.items():
        value = getattr(found, attribute)
        if not allows(value):
            raise OwnPartError(
                f"{name} returned {kind_of(found)}, whose {attribute} is {value!r}; it must be "
                f"{words}{where}",
                "schedule",
            )
    schedule = cast(Schedule, found)
    if schedule.n != n:
        said = f"{name} returned a schedule of {schedule.n} nodes, not of {n}{where}"
        raise OwnPartError(said, "schedule")
    module = getattr(getattr(type(found), "matrix", None), "__module__", "")
    ours = module.partition(".")[0] == "topologies"
    return schedule if ours else OwnSchedule(schedule, name)
