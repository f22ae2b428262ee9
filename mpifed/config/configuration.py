"""Configurations: checked and completed before a run begins.

``resolve`` turns the mapping of a YAML file and overrides (``experiment_files``) into a complete
``Configuration``; ``to_mapping`` writes it back, and that mapping repeats the run. Sections that
name a component (data, model, algorithm, exchange, compression) take its options alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import yaml
from annotated_types import Ge, Gt, Le, Lt

from mpifed.components.registry import (
    Section,
    complete,
    find,
    find_algorithm,
    find_exchange,
    named,
    plain,
    with_defaults,
)
from mpifed.components.schema import check_options, check_value, options_of, shown
from mpifed.config.experiment_files import (
    DATA_FILES,
    DEFAULTS,
    apply_overrides,
    experiment_names,
    parse_overrides,
    read_experiment,
)
from mpifed.errors import InputError, closest
from mpifed.federation import participation
from mpifed.federation.clients import count_unseen
from mpifed.federation.participation import Participation
from mpifed.local.options import LocalOptions
from mpifed.local.options import refusal as local_refusal
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
"""Weights of averages over clients, see ``EvaluationOptions``."""

MOST_THREADS = 1024
"""Most threads of a rank; OpenMP ends a process in which it cannot start as many as asked for."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The section ``evaluation``: when clients are scored, and on what.

    Parameters
    ----------
    every : int
        Rounds between evaluations.
    unseen_fraction : float
        Share of the clients that take no part in training.
    validation_fraction : float
        Share of each client's training samples that is held out and scored.
    validation_split : bool
        Whether the validation samples that the data have are scored.
    client_weights : {'scored', 'train', 'uniform'}
        Weights of averages over clients: the samples of the split that is scored, the training
        samples n_t, as in Marfoq et al. 2021, or one each.
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 10
    unseen_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    validation_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    validation_split: bool = False
    client_weights: ClientWeights = "scored"

    def __post_init__(self) -> None:
        if self.validation_fraction and self.validation_split:
            raise InputError(
                "evaluation.validation_split is true, but evaluation.validation_fraction is "
                f"{self.validation_fraction:g}; at most one of them may be set"
            )

    @property
    def validates(self) -> bool:
        """Whether validation samples are scored."""
        return bool(self.validation_fraction) or self.validation_split


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The section ``checkpoint``.

    Parameters
    ----------
    every : int
        Rounds between checkpoints.
    keep : int
        Checkpoints that are kept.
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 50
    keep: Annotated[int, Ge(1), Le(LARGEST)] = 2


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A complete, checked configuration; README.md says what each key means."""

    experiment: str = "custom"
    seed: Annotated[int, Ge(0), Le(LARGEST)] = 0
    clients: Annotated[int, Ge(1), Le(LARGEST)] = 100
    rounds: Annotated[int, Ge(1), Le(LARGEST)] = 200
    participation: Participation = 1.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    threads: Annotated[int, Ge(1), Le(MOST_THREADS)] = 1
    placement: Literal["contiguous", "partitioned"] = "contiguous"
    on_divergence: Literal["stop", "drop"] = "stop"
    stall_limit: Annotated[float, Gt(0)] | None = STALL_LIMIT
    data: Section = Section(DEFAULTS["data"])
    model: Section = Section(DEFAULTS["model"])
    algorithm: Section = Section(DEFAULTS["algorithm"])
    local: LocalOptions = LocalOptions()
    exchange: Section = Section(DEFAULTS["exchange"])
    compression: Section = Section(DEFAULTS["compression"])
    evaluation: EvaluationOptions = EvaluationOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    reschedule: bool = False

    @property
    def n_training(self) -> int:
        """Number of clients that take part in training."""
        return self.clients - count_unseen(self.clients, self.evaluation.unseen_fraction)


OPTIONAL_SECTIONS = ("local", "evaluation", "checkpoint")
"""Sections that may be left empty: their options have defaults."""


def resolve(mapping: Mapping[str, Any], ranks: int = 1) -> Configuration:
    """Return the checked, complete configuration of a mapping.

    Parameters
    ----------
    mapping : mapping
        Keys and values as in a configuration file.
    ranks : int
        The value of ``clients: ranks``.

    Raises
    ------
    InputError
        For what is unknown, missing, out of range, or does not go together.
    """
    given = {
        key: value
        for key, value in mapping.items()
        if key not in DEFAULTS and not (value is None and key in OPTIONAL_SECTIONS)
    }
    if given.get("clients") == "ranks":
        given["clients"] = ranks
    if "participation" in given:
        given["participation"] = _participation(given["participation"])
    settled = Configuration(**check_options(Configuration, given, ""))
    sections: dict[str, Any] = {
        key: _component(key, mapping.get(key, default), settled.n_training)
        for key, default in DEFAULTS.items()
    }
    configuration = _without_idle_sections(dataclasses.replace(settled, **sections))
    _check_together(configuration)
    return configuration


def _without_idle_sections(configuration: Configuration) -> Configuration:
    """Replace a model and a compression that would change nothing by none."""
    algorithm, exchange = configuration.algorithm, configuration.exchange
    if not find_algorithm(algorithm.name).uses_model:
        # The experiment may name a model, but this algorithm trains something else.
        configuration = dataclasses.replace(configuration, model=Section("none"))
    mixes_plainly = exchange.name == "gossip" and exchange.options["consensus_step"] is None
    if configuration.compression.name == "identity" and mixes_plainly:
        # Neighbours need no replicas of what arrives whole.
        configuration = dataclasses.replace(configuration, compression=Section("none"))
    return configuration


def to_mapping(configuration: Configuration) -> dict[str, Any]:
    """Return the configuration as plain data, in the order of its keys."""
    return cast(dict[str, Any], plain(configuration))


def to_yaml(configuration: Configuration) -> str:
    """Return the configuration as YAML text that ``read_experiment`` reads back."""
    return yaml.safe_dump(to_mapping(configuration), sort_keys=False, default_flow_style=None)


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with defaults for keys of two sections that it may lack."""
    given = stored.get("evaluation")
    section = dataclasses.asdict(EvaluationOptions()) | (given if isinstance(given, dict) else {})
    return {**stored, "data": with_defaults("data", stored.get("data")), "evaluation": section}


def decided(mapping: Mapping[str, Any], configuration: Configuration) -> list[str]:
    """Return log lines about options left at ``auto`` and a model that is not used."""
    lines = []
    model, _ = named(mapping.get("model", "none"), "model", DEFAULTS["model"])
    if model != "none" and configuration.model.name == "none":
        name = configuration.algorithm.name
        lines.append(f"model={model} changes nothing: {name} trains no predictor")
    for section, default in DEFAULTS.items():
        found = getattr(configuration, section)
        _, asked = named(mapping.get(section, default), section, default)
        for key, option in options_of(find(section, found.name)).items():
            settled = found.options.get(key)
            if asked.get(key, option.default) == "auto" and settled not in (None, "auto"):
                lines.append(f"{section}.{key} is auto, which is {settled} here")
    return lines


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the dotted keys in which two configurations differ, with both values."""
    found = []
    for key in sorted({*one, *other}):
        a, b, where = one.get(key), other.get(key), f"{path}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{where}.")
        elif a != b:
            found.append(f"{where}: {shown(a)} in the run, {shown(b)} now")
    return found


def _participation(value: Any) -> Participation:
    kinds = participation.KINDS
    if isinstance(value, Mapping) or (isinstance(value, str) and value in kinds):
        name, options = named(value, "participation", "uniform")
        if name not in kinds:
            raise InputError(f"participation.name is {shown(name)}; {closest(name, kinds)}")
        checked = check_options(kinds[name], options, "participation")
        return participation.shortest_form(kinds[name](**checked))
    try:
        return float(check_value(value, Annotated[float, Gt(0), Le(1)], "participation"))
    except InputError as error:
        names = ", ".join(kinds)
        raise InputError(f"{error}, or {{name: bernoulli, p: ...}}; names are {names}") from None


def _component(section: str, given: Any, n_training: int) -> Section:
    if section == "data" and isinstance(given, str) and given.endswith(DATA_FILES):
        given = {"name": "federated", "path": given}
    if given is None:
        raise InputError(f"{section} is empty; it must be a name, or a mapping with a name")
    return complete(section, given, section, DEFAULTS[section], n_training)


def _check_together(configuration: Configuration) -> None:
    reason = _refusal(configuration)
    if reason is None and configuration.on_divergence == "drop":
        # A client that is left out is one that takes no part in the round.
        some = dataclasses.replace(configuration, participation=0.5, on_divergence="stop")
        refused = _refusal(some)
        reason = refused and f"on_divergence is 'drop', which leaves clients out: {refused}"
    if reason is None and participation.shortens_rounds(configuration.participation):
        name = configuration.algorithm.name
        if not find_algorithm(name).steps_locally:
            reason = (
                f"participation.late is 'partial', but algorithm '{name}' does not cut local steps "
                "short; allowed: miss"
            )
    if reason is not None:
        raise InputError(reason)


def _refusal(configuration: Configuration) -> str | None:
    """Return why components of this configuration do not go together; None if they do."""
    algorithm = find_algorithm(configuration.algorithm.name)
    exchange = configuration.exchange.name
    reasons = [local_refusal(configuration.local), algorithm.refuse(configuration)]
    if algorithm.exchanges is None or exchange in algorithm.exchanges:
        # Further reasons against an exchange that must be replaced anyway do not help.
        reasons.append(find_exchange(exchange).refuse(configuration))
    return "; besides, ".join(filter(None, reasons)) or None
