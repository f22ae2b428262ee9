"""Configurations: checked and completed before anything else happens.

A configuration is a nested mapping (``experiment`` reads it). ``resolve`` turns it into a
``Configuration`` in which every choice is spelled out; ``to_mapping`` writes it back, and running
that repeats the run. Sections that name a component (data, model, algorithm, exchange, compression)
take the options of that component and no others.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import yaml

from mpifed.components import registry as components
from mpifed.components.registry import completed_options, find_algorithm, without_name
from mpifed.components.schema import (
    Above,
    AtLeast,
    AtMost,
    Below,
    check_options,
    check_value,
    options_of,
    shown,
)
from mpifed.config.experiment_files import (
    DATA_FILES,
    DEFAULTS,
    apply_overrides,
    experiment_names,
    parse_overrides,
    read_experiment,
)
from mpifed.errors import InputError, closest, in_words
from mpifed.federation import participation
from mpifed.federation.clients import count_unseen
from mpifed.local.options import LocalOptions
from mpifed.supervision.heartbeat import STALL_LIMIT

__all__ = [
    "ClientWeights",
    "Configuration",
    "apply_overrides",
    "completed",
    "decided",
    "differences",
    "experiment_names",
    "parse_overrides",
    "read_experiment",
    "resolve",
    "to_mapping",
    "to_yaml",
]

LARGEST = 2**63 - 1
"""The largest whole number that a checkpoint can hold."""

ClientWeights = Literal["scored", "train", "uniform"]
"""How averages over clients are weighted, see ``EvaluationOptions``."""

MOST_THREADS = 1024
"""Threads a rank at most; OpenMP ends the process where it cannot start as many as it is told."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The section ``evaluation``: every how many rounds, and what takes no part in training.

    ``unseen_fraction`` of the clients are unseen. ``validation_fraction`` of each client's training
    samples are held out and scored; ``validation_split`` scores those that the data have as their
    own validation samples. ``client_weights`` are those of averages over clients: ``scored`` the
    samples of the split that is scored, ``train`` the training samples n_t, as in Marfoq et al.
    2021, ``uniform`` one each.
    """

    every: Annotated[int, AtLeast(1), AtMost(LARGEST)] = 10
    unseen_fraction: Annotated[float, AtLeast(0), Below(1)] = 0.0
    validation_fraction: Annotated[float, AtLeast(0), Below(1)] = 0.0
    validation_split: bool = False
    client_weights: ClientWeights = "scored"


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The section ``checkpoint``: every how many rounds, and how many to keep."""

    every: Annotated[int, AtLeast(1), AtMost(LARGEST)] = 50
    keep: Annotated[int, AtLeast(1), AtMost(LARGEST)] = 2


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A complete, checked configuration; README.md says what each key means."""

    experiment: str = "custom"
    seed: Annotated[int, AtLeast(0), AtMost(LARGEST)] = 0
    clients: Annotated[int, AtLeast(1), AtMost(LARGEST)] = 100
    rounds: Annotated[int, AtLeast(1), AtMost(LARGEST)] = 200
    participation: Any = 1.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    threads: Annotated[int, AtLeast(1), AtMost(MOST_THREADS)] = 1
    placement: Literal["contiguous", "partitioned"] = "contiguous"
    on_divergence: Literal["stop", "drop"] = "stop"
    stall_limit: Annotated[float, Above(0)] | None = STALL_LIMIT
    data: Any = None
    model: Any = None
    algorithm: Any = None
    local: Any = None
    exchange: Any = None
    compression: Any = None
    evaluation: Any = None
    checkpoint: Any = None
    reschedule: bool = False

    @property
    def local_options(self) -> LocalOptions:
        return LocalOptions(**self.local)

    @property
    def validates(self) -> bool:
        """Whether validation samples are scored."""
        return bool(self.evaluation["validation_fraction"] or self.evaluation["validation_split"])

    def options(self, section: str) -> dict[str, Any]:
        """The options of a component section, without its name."""
        return without_name(getattr(self, section))


def resolve(mapping: Mapping[str, Any], ranks: int = 1) -> Configuration:
    """The checked, complete configuration; raises ``InputError``.

    ``clients: ranks`` becomes ``ranks``.
    """
    fields = {field.name for field in dataclasses.fields(Configuration)}
    for name in mapping:
        if name not in fields:
            raise InputError(
                f"{shown(name)} is no key of a configuration; {_closest_key(name, fields)}"
            )
    sections = ("participation", "local", "evaluation", "checkpoint", *DEFAULTS)
    given = {name: value for name, value in mapping.items() if name not in sections}
    if given.get("clients") == "ranks":
        given["clients"] = ranks
    values = check_options(Configuration, given, "")
    values["participation"] = _participation(mapping.get("participation", 1.0))
    values["evaluation"] = _section("evaluation", EvaluationOptions, mapping)
    if values["evaluation"]["validation_fraction"] and values["evaluation"]["validation_split"]:
        raise InputError(
            "evaluation.validation_split is true, but evaluation.validation_fraction is "
            f"{values['evaluation']['validation_fraction']:g}; one of them at most may be set"
        )
    fraction = values["evaluation"]["unseen_fraction"]
    n_training = values["clients"] - count_unseen(values["clients"], fraction)
    for section, default in DEFAULTS.items():
        values[section] = _component(section, mapping.get(section, default), n_training)
    if not find_algorithm(values["algorithm"]["name"]).uses_model:
        # Whatever the experiment names: this algorithm trains no predictor.
        values["model"] = {"name": "none"}
    if values["compression"]["name"] == "identity" and _mixes_plainly(values["exchange"]):
        # Neighbours need no replicas of what arrives whole.
        values["compression"] = {"name": "none"}
    values["local"] = _section("local", LocalOptions, mapping)
    values["checkpoint"] = _section("checkpoint", CheckpointOptions, mapping)
    configuration = Configuration(**values)
    _check_together(configuration)
    return configuration


def _mixes_plainly(exchange: Mapping[str, Any]) -> bool:
    """Whether rows are mixed with no step of CHOCO-Gossip asked for."""
    return exchange["name"] == "gossip" and exchange["consensus_step"] is None


def to_mapping(configuration: Configuration) -> dict[str, Any]:
    """The configuration as plain data, in the order of its keys."""
    return {
        field.name: copy.deepcopy(getattr(configuration, field.name))
        for field in dataclasses.fields(configuration)
    }


def to_yaml(configuration: Configuration) -> str:
    """The configuration as YAML text that ``read_experiment`` reads back."""
    return yaml.safe_dump(to_mapping(configuration), sort_keys=False, default_flow_style=None)


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with those keys of ``evaluation`` that came after it was stored."""
    section = stored.get("evaluation")
    given = section if isinstance(section, Mapping) else {}
    return {**stored, "evaluation": {**dataclasses.asdict(EvaluationOptions()), **given}}


def decided(mapping: Mapping[str, Any], configuration: Configuration) -> list[str]:
    """A line for each option that ``mapping`` leaves at ``auto`` and ``configuration`` settles, and
    for a model that it names for an algorithm without one.
    """
    lines = []
    model = mapping.get("model", "none")
    named = model.get("name", DEFAULTS["model"]) if isinstance(model, Mapping) else model
    if named != "none" and configuration.model["name"] == "none":
        name = configuration.algorithm["name"]
        lines.append(f"model={named} changes nothing: {name} trains no predictor")
    for section, default in DEFAULTS.items():
        given, found = mapping.get(section, default), getattr(configuration, section)
        asked = without_name(given) if isinstance(given, Mapping) else {}
        for key, option in options_of(_find(section, found["name"])).items():
            if asked.get(key, option.default) == "auto" and found.get(key) not in (None, "auto"):
                lines.append(f"{section}.{key} is auto, which is {found[key]} here")
    return lines


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    """Dotted keys in which two configurations differ, with both values."""
    found = []
    for key in sorted({*one, *other}):
        a, b, where = one.get(key), other.get(key), f"{path}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{where}.")
        elif a != b:
            found.append(f"{where}: {shown(a)} in the run, {shown(b)} now")
    return found


def _closest_key(name: str, fields: set[str]) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    return f"did you mean '{near[0]}'?" if near else "allowed: " + ", ".join(sorted(fields))


def _participation(value: Any) -> Any:
    kinds = participation.KINDS
    if isinstance(value, str) and value in kinds:
        value = {"name": value}
    if isinstance(value, Mapping):
        name = value.get("name", "uniform")
        if not isinstance(name, str) or name not in kinds:
            raise InputError(f"participation.name is {shown(name)}; {closest(str(name), kinds)}")
        checked = check_options(kinds[name], without_name(value), "participation")
        return participation.shortest_form({"name": name, **checked})
    try:
        return check_value(value, Annotated[float, Above(0), AtMost(1)], "participation")
    except InputError as error:
        raise InputError(f"{error}, or {{name: bernoulli, p: ...}}; {_allowed(kinds)}") from None


def _allowed(kinds: Mapping[str, type]) -> str:
    return "names are " + ", ".join(kinds)


def _section(name: str, options: type, mapping: Mapping[str, Any]) -> dict[str, Any]:
    given = mapping.get(name)
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"{name} is {shown(given)}; it must be a mapping of options")
    return check_options(options, given or {}, name)


def _component(section: str, given: Any, n_training: int) -> dict[str, Any]:
    if isinstance(given, str):
        is_file = section == "data" and given.endswith(DATA_FILES)
        given = {"name": "federated", "path": given} if is_file else {"name": given}
    if not isinstance(given, Mapping):
        raise InputError(
            f"{section} is {shown(given)}; it must be a name, or a mapping with a name"
        )
    name = given.get("name", DEFAULTS[section])
    component = _find(section, name)
    options = options_of(component)
    rest = {
        key: _named(value, options[key].default) if key in options else value
        for key, value in given.items()
        if key != "name"
    }
    checked = check_options(component, rest, section)
    return {"name": name, **completed_options(component, checked, n_training)}


def _find(section: str, name: Any) -> Callable[..., Any]:
    try:
        return components.find(section, name)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # A user's own module may fail to import in any way.
        raise InputError(
            f"{section}.name is {shown(name)}, which cannot be imported: {in_words(error)}"
        ) from error


def _named(value: Any, default: Any) -> Any:
    """``value`` with the name of the component inside a component that it leaves out."""
    if isinstance(value, Mapping) and "name" not in value and isinstance(default, str):
        return {"name": default, **value}
    return value


def _check_together(configuration: Configuration) -> None:
    reason = _refusal(configuration)
    if reason is None and configuration.on_divergence == "drop":
        # A client that is left out is one that takes no part in the round.
        some = dataclasses.replace(configuration, participation=0.5, on_divergence="stop")
        refused = _refusal(some)
        reason = refused and f"on_divergence is 'drop', which leaves clients out: {refused}"
    if reason is None and participation.shortens_rounds(configuration.participation):
        name = configuration.algorithm["name"]
        if not find_algorithm(name).steps_locally:
            reason = (
                f"participation.late is 'partial', but algorithm '{name}' does not cut local steps "
                "short; allowed: miss"
            )
    if reason is not None:
        raise InputError(reason)


def _refusal(configuration: Configuration) -> str | None:
    """Why components of this configuration do not go together; None if they do."""
    algorithm = find_algorithm(configuration.algorithm["name"])
    exchange = configuration.exchange["name"]
    reasons = [algorithm.refuse(configuration)]
    if algorithm.exchanges is None or exchange in algorithm.exchanges:
        # What else is wrong with an exchange that has to go is of no interest.
        reasons.append(components.refusal(_find("exchange", exchange), configuration))
    return "; besides, ".join(filter(None, reasons)) or None
