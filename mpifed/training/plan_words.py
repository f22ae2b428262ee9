"""The words after ``--plan``: on what a round is to be forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mpifed.components.schema import plain_value
from mpifed.config.experiments import PLAN
from mpifed.errors import InputError, closest
from mpifed.training.network import Network


@dataclass(frozen=True)
class Plan:
    """What ``--plan`` asks for."""

    ranks: tuple[int, ...]
    ranks_per_node: int | None = None
    cores: int | None = None
    network: Network | None = None


def read_plan(given: Mapping[str, Any]) -> Plan:
    """Return what the words after ``--plan`` ask for."""
    values = dict(given)
    if "site" in values:
        values = {**_site(values.pop("site")), **values}
    for key in values:
        if key not in PLAN:
            raise InputError(f"--plan has the key {key}; {closest(key, PLAN)}")
    ranks = values.get("ranks")
    ranks = ranks if isinstance(ranks, list) else [ranks]
    if not ranks or not all(type(count) is int and 1 <= count <= 10**7 for count in ranks):
        said = "missing" if values.get("ranks") is None else values["ranks"]
        raise InputError(
            f"--plan: ranks is {said}; allowed: an integer from 1 to 10000000, or a list of such"
        )
    for key in ("ranks_per_node", "cores"):
        if key in values and (type(values[key]) is not int or values[key] < 1):
            raise InputError(f"--plan: {key} is {values[key]}; allowed: an integer from 1")
    parts = [field.name for field in fields(Network)]
    named = [key for key in parts if key in values]
    if named and len(named) < len(parts):
        missing = ", ".join(key for key in parts if key not in values)
        raise InputError(f"--plan gives {', '.join(named)} but not {missing}; give all or none")
    network = Network(**{key: _number(key, values[key]) for key in named}) if named else None
    return Plan(
        tuple(dict.fromkeys(ranks)), values.get("ranks_per_node"), values.get("cores"), network
    )


def refuse_unmeasured(plan: Plan) -> None:
    """Refuse a plan whose network would have to be measured, where one rank is alone."""
    if plan.network is None:
        raise InputError(
            "--plan needs latency, overhead and bandwidth (or site) where one rank is alone; "
            "mpirun -n 2 measures them"
        )


def _number(key: str, value: Any) -> float:
    """Return a number of the network."""
    bound = "above" if key == "bandwidth" else "from"
    try:
        number: float = plain_value(value, float)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= 1e18 or (number == 0 and bound == "above"):
        raise InputError(f"--plan: {key} is {value}; allowed: a number {bound} 0")
    return number


def _site(path: Any) -> dict[str, Any]:
    from mpifed.io.yaml_files import read_yaml

    try:
        found = read_yaml(Path(str(path)))
    except InputError as error:
        raise InputError(f"--plan: site is '{path}': {error}") from None
    if not isinstance(found, dict):
        raise InputError(
            f"--plan: site is '{path}', which holds no mapping; allowed keys: {', '.join(PLAN)}"
        )
    return found
