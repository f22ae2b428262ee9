"""The typed configuration of a run, which words become, and which is written back."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast

import yaml
from annotated_types import Ge, Gt, Le

from mpifed.components.registry import (
    Section,
    checked_section,
    find,
    find_algorithm,
    named,
    owners_of,
    plain,
)
from mpifed.components.tables import TABLES
from mpifed.config.experiments import DEFAULTS, as_data_file, with_overrides
from mpifed.config.experiments import experiment_names as experiment_names
from mpifed.config.experiments import parse_overrides as parse_overrides
from mpifed.config.experiments import read_experiment as read_experiment
from mpifed.config.options import CheckpointOptions, EvaluationOptions, StorageOptions
from mpifed.config.requirements import check_together
from mpifed.config.stored import ARITHMETIC, RETIRED, UNREAD, without_retired
from mpifed.errors import InputError, closest
from mpifed.federation import participation
from mpifed.federation.options import ComputeOptions, NetworkOptions, PrivacyOptions
from mpifed.federation.participation import Participation, count_unseen
from mpifed.io.yaml_files import Dumper
from mpifed.local.options import LocalOptions
from mpifed.watchdog.heartbeat import STALL_LIMIT
from topologies.errors import excerpt, nearest
from topologies.parameters import options_of
from topologies.schema import LARGEST, check_options, check_value

T = TypeVar("T")

# Most threads of a rank; OpenMP ends a process in which it cannot start as many as asked for.
MOST_THREADS = 1024

# With it the server takes the mean of updates as it is.
PLAIN_MEAN = Section(DEFAULTS["server_optimizer"], {"lr": 1.0})

# Sections that name no component. They may be left empty: their options have defaults.
SECTIONS: Mapping[str, type] = {
    "local": LocalOptions,
    "privacy": PrivacyOptions,
    "evaluation": EvaluationOptions,
    "network": NetworkOptions,
    "compute": ComputeOptions,
    "checkpoint": CheckpointOptions,
    "storage": StorageOptions,
}

# Words of other tools, and what they are here.
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "eta", "local_lr", "client_lr"), "local.lr"),
    **dict.fromkeys(("local_epochs", "n_epochs", "num_epochs"), "local.epochs"),
    **dict.fromkeys(("local_steps", "tau"), "local.steps"),
    **dict.fromkeys(("batch", "bs", "local_batch_size"), "local.batch_size"),
    **dict.fromkeys(("opt", "optim", "local_optimizer"), "local.optimizer"),
    **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds", "comm_rounds"), "rounds"),
    **dict.fromkeys(("num_clients", "n_clients", "num_users", "nodes"), "clients"),
    **dict.fromkeys(("fraction_fit", "client_fraction", "frac"), "participation"),
    **dict.fromkeys(("graph", "network_topology"), "topology"),
    **dict.fromkeys(("dataset", "data_path"), "data"),
    **dict.fromkeys(("strategy", "method", "algo"), "algorithm"),
    **dict.fromkeys(("net", "network_model"), "model"),
    **dict.fromkeys(("output", "output_dir", "out"), "--output DIR"),
    **dict.fromkeys(("ranks", "num_ranks", "world_size"), "--ranks N"),
}


# Sections that only jobs have, and where else to say what they say.
OF_JOBS = {
    "job": "type mpifed jobs submit in place of mpifed run; --ranks N starts ranks here",
    "sweep": "mpifed sweep takes such lists as words, local.lr=[0.1,0.3]",
}


def _where_given(default: T) -> T:
    """A section that a configuration spells out only where it says something."""
    return dataclasses.field(default=default, metadata={"spelled_out": False})


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A complete, checked configuration.

    Parameters
    ----------
    experiment : str
        Name of the experiment, in logs and in the default ``--output``.
    seed : int
        Seed of all random numbers of the run.
    clients : int
        Number of clients, whatever the number of ranks; ``clients=ranks`` has one for each rank,
        ``clients=data`` those that own data have, or 10 where they name none.
    rounds : int
        Communication rounds.
    participation : float or mapping
        Share of the clients that takes part in a round, or a kind: see ``--list participation``.
    device : {'auto', 'cpu', 'cuda'}
        Where models are trained. ``auto`` is a GPU where torch sees one.
    dtype : {'float32', 'float64'}
        Floating-point type of models and samples.
    threads : int
        Threads of each rank.
    hosts : {'ranks', 'cores'}
        Which ranks host clients: all, or of each node as many as it has cores.
    placement : {'contiguous', 'partitioned', 'balanced'}
        Which clients share a rank: consecutive, exchanging most, or of equal work.
    on_divergence : {'stop', 'drop'}
        What happens where a client's numbers are not finite: the run stops, or the round is
        repeated without it.
    stall_limit : float, optional
        Seconds without a step after which a rank counts as stalled, under a launcher; nothing
        watches a process that none has started. None is never.
    data : str or mapping
        The data set.
    model : str or mapping
        What is trained.
    algorithm : str or mapping
        The method.
    local : mapping
        How clients take their local steps.
    exchange : str or mapping
        How clients communicate.
    compression : str or mapping
        What messages go through.
    server_optimizer : str or mapping
        How a server moves along the mean of updates.
    attack : str or mapping
        What malicious clients do.
    privacy : mapping
        Clipping and noise for differential privacy.
    evaluation : mapping
        When clients are scored, and on what.
    network : mapping
        The links of the simulated federation.
    compute : mapping
        How long the simulated clients take for a local step.
    checkpoint : mapping
        When the state is stored.
    storage : mapping
        Where samples and states of clients are kept.
    reschedule : bool
        Whether a run that is resumed for more rounds stretches its learning-rate schedule to them.
    arithmetic : int or list of [round, version]
        The version of the arithmetic that this mpifed has; where others began the run, the first
        round of each. What is given is not read.
    """

    experiment: str = "custom"
    seed: Annotated[int, Ge(0), Le(LARGEST)] = 0
    clients: Annotated[int, Ge(1), Le(LARGEST)] = 100
    rounds: Annotated[int, Ge(1), Le(LARGEST)] = 200
    participation: Participation = 1.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    threads: Annotated[int, Ge(1), Le(MOST_THREADS)] = 1
    hosts: Literal["ranks", "cores"] = "ranks"
    placement: Literal["contiguous", "partitioned", "balanced"] = "contiguous"
    on_divergence: Literal["stop", "drop"] = "stop"
    stall_limit: Annotated[float, Gt(0)] | None = STALL_LIMIT
    data: Section = Section(DEFAULTS["data"])
    model: Section = Section(DEFAULTS["model"])
    algorithm: Section = Section(DEFAULTS["algorithm"])
    local: LocalOptions = LocalOptions()
    exchange: Section = Section(DEFAULTS["exchange"])
    compression: Section = Section(DEFAULTS["compression"])
    server_optimizer: Section = _where_given(PLAIN_MEAN)
    attack: Section = _where_given(Section(DEFAULTS["attack"]))
    privacy: PrivacyOptions = _where_given(PrivacyOptions())
    evaluation: EvaluationOptions = EvaluationOptions()
    network: NetworkOptions = _where_given(NetworkOptions())
    compute: ComputeOptions = _where_given(ComputeOptions())
    checkpoint: CheckpointOptions = CheckpointOptions()
    storage: StorageOptions = StorageOptions()
    reschedule: bool = False
    arithmetic: int | list[list[int]] = ARITHMETIC

    @property
    def n_training(self) -> int:
        """Number of clients that take part in training."""
        return self.clients - count_unseen(self.clients, self.evaluation.unseen_fraction)


def apply_overrides(mapping: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping in which overrides are set, with or without their sections."""
    return with_overrides(mapping, _with_sections(overrides, mapping))


def _with_sections(overrides: Mapping[str, Any], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides whose keys name their sections: where one section in use has the key."""
    graphs = dict.fromkeys(("topology", "weights", "schedule"))
    graphs |= {key: value for key, value in overrides.items() if key in graphs}
    values = {key: value for key, value in overrides.items() if key not in graphs}
    if any(value is not None for value in graphs.values()):
        from mpifed.exchange.mixing_options import mixing_overrides  # networkx

        values |= mixing_overrides(**graphs, overrides=values)
    keys = {*Configuration.__dataclass_fields__, *UNREAD, "experiment"}
    for key in [*values]:
        if key in keys:
            continue
        section, _, last = key.rpartition(".")
        strays = section in DEFAULTS and last != "name" and _strays(last, section, values, mapping)
        full_keys = keys_with_sections(last, values, mapping) if strays or not section else []
        if len(full_keys) == 1 and not section:
            values[full_keys[0]] = values.pop(key)
            continue
        synonym = SYNONYMS.get(last, "")
        if synonym and not full_keys and synonym.startswith(f"{section}." if section else ""):
            full_keys = [synonym]
        if not full_keys and not section:
            full_keys = _likely_keys(key, values, mapping)
        if full_keys:
            raise InputError(
                f"Unknown configuration key {excerpt(key)}; did you mean {' or '.join(full_keys)}?"
            )
    return values


def keys_with_sections(
    key: str, overrides: Mapping[str, Any], mapping: Mapping[str, Any]
) -> list[str]:
    """Return an option with each section in use that has it."""
    in_use = _options_in_use(overrides, mapping)
    return [f"{section}.{key}" for section, options in in_use.items() if key in options]


def _likely_keys(key: str, overrides: Mapping[str, Any], mapping: Mapping[str, Any]) -> list[str]:
    """Return what a key without a section was likely meant to be, with its section."""
    owned = [f"{kind}.{key}" for kind in DEFAULTS if owners_of(kind, key)]
    in_use = _options_in_use(overrides, mapping)
    full_keys = [f"{section}.{option}" for section, options in in_use.items() for option in options]
    near = nearest(key, [*options_of(Configuration), *full_keys])
    return owned or [each for each in full_keys if each == near]


def _options_in_use(
    overrides: Mapping[str, Any], mapping: Mapping[str, Any]
) -> dict[str, Collection[str]]:
    """Return the options of each section, of those with components where they are in use."""
    fields = {name: [*options_of(kind)] for name, kind in SECTIONS.items()}
    return {**fields, **{kind: _options(kind, overrides, mapping) for kind in DEFAULTS}}


def _strays(
    option: str, kind: str, overrides: Mapping[str, Any], mapping: Mapping[str, Any]
) -> bool:
    """Return whether a shipped component is in use, and none of its kind has an option."""
    options = _options(kind, overrides, mapping)
    return bool(options) and option not in options and not owners_of(kind, option)


def _options(
    kind: str, overrides: Mapping[str, Any], mapping: Mapping[str, Any]
) -> Collection[str]:
    """Return the options of the component in use."""
    section = overrides.get(f"{kind}.name", overrides.get(kind, mapping.get(kind)))
    section = as_data_file(section) if kind == "data" else section
    name = section.get("name") if isinstance(section, Mapping) else section
    name = name or DEFAULTS[kind]
    return options_of(find(kind, name)) if name in TABLES[kind] else ()


def resolve(mapping: Mapping[str, Any], ranks: int = 1) -> Configuration:
    """Return the complete configuration of a mapping, whose values go together."""
    configuration = with_all_options(mapping, ranks)
    check_together(configuration)
    return configuration


def with_all_options(mapping: Mapping[str, Any], ranks: int = 1) -> Configuration:
    """Return the complete configuration of a mapping, each value of which is checked by itself."""
    for section, instead in OF_JOBS.items():
        if section in mapping:
            raise InputError(f"{section} is for SLURM, to which mpifed jobs speaks; {instead}")
    values = {
        key: without_retired(key, value) if key in RETIRED else value
        for key, value in mapping.items()
        if key not in (*DEFAULTS, *UNREAD) and not (value is None and key in SECTIONS)
    }
    if values.get("clients") == "ranks":
        values["clients"] = ranks
    elif values.get("clients") == "data":
        values["clients"] = _count_clients(mapping)
    if "participation" in values:
        values["participation"] = _participation(values["participation"])
    configuration = Configuration(**check_options(Configuration, values, ""))
    sections: dict[str, Any] = {
        key: _component(key, mapping.get(key, default), configuration.n_training)
        for key, default in DEFAULTS.items()
    }
    return _without_idle_sections(dataclasses.replace(configuration, **sections))


def _count_clients(mapping: Mapping[str, Any]) -> int:
    """Return how many clients the data have, which may read them."""
    seed = check_value(mapping.get("seed", 0), int, "seed")
    data = _component("data", mapping.get("data", DEFAULTS["data"]), 0)
    dataset: Any = find("data", data.name)
    return cast(int, dataset.count_clients(data.options, seed))


def _without_idle_sections(configuration: Configuration) -> Configuration:
    """Replace a model and a compression that would change nothing by none."""
    algorithm, exchange = configuration.algorithm, configuration.exchange
    if not find_algorithm(algorithm.name).uses_model():
        # The experiment may name a model, but this algorithm trains something else.
        configuration = dataclasses.replace(configuration, model=Section("none"))
    mixes_plainly = exchange.name == "gossip" and exchange.options["consensus_step"] is None
    if configuration.compression.name == "identity" and mixes_plainly:
        # Neighbours need no replicas of what arrives whole.
        configuration = dataclasses.replace(configuration, compression=Section("none"))
    return configuration


def to_mapping(configuration: Configuration) -> dict[str, Any]:
    """Return the configuration as plain data, in the order of its keys."""
    fields = Configuration.__dataclass_fields__
    return {
        name: dataclasses.asdict(value) if name in SECTIONS else plain(value)
        for name, value in vars(configuration).items()
        if fields[name].metadata.get("spelled_out", True) or value != fields[name].default
    }


def to_yaml(configuration: Configuration) -> str:
    """Return the configuration as YAML text that ``read_experiment`` reads back."""
    text: str = yaml.dump(
        to_mapping(configuration), Dumper=Dumper, sort_keys=False, default_flow_style=None
    )
    return text


def decided(mapping: Mapping[str, Any], configuration: Configuration) -> list[str]:
    """Return log lines about a model that is named and not used, and about keys that have ended."""
    model, _ = named(mapping.get("model", "none"), "model", DEFAULTS["model"])
    lines = []
    if model != "none" and configuration.model.name == "none":
        name = configuration.algorithm.name
        lines.append(f"model={model} changes nothing: {name} trains no predictor")
    for section, ended in RETIRED.items():
        options = mapping.get(section)
        in_use = getattr(configuration, section)
        has = in_use.options if isinstance(in_use, Section) else vars(in_use)
        lines += [
            f"{section}.{option} has ended and changes nothing: {why}"
            for option, why in ended.items()
            if isinstance(options, Mapping) and options.get(option) is not None
            if option not in has
        ]
    return lines


def _participation(value: Any) -> Participation:
    kinds = participation.KINDS
    if isinstance(value, Mapping) or (isinstance(value, str) and (value in kinds or "{" in value)):
        name, options = named(value, "participation", "uniform")
        if name not in kinds:
            raise InputError(f"participation.name is {excerpt(name)}; {closest(name, kinds)}")
        checked = check_options(kinds[name], options, "participation")
        return participation.shortest_form(kinds[name](**checked))
    try:
        return float(check_value(value, Annotated[float, Gt(0), Le(1)], "participation"))
    except InputError as error:
        names = ", ".join(kinds)
        raise InputError(f"{error}, or {{name: bernoulli, p: ...}}; names are {names}") from None


def _component(section: str, component: Any, n_training: int) -> Section:
    named_component = _with_name(section, component)
    return checked_section(section, named_component, section, DEFAULTS[section], n_training)


def _with_name(section: str, component: Any) -> Any:
    """Return what is given for a component, with a data file as the data set that reads it."""
    if component is None:
        raise InputError(f"{section} is empty; it must be a name, or a mapping with a name")
    without_ended = without_retired(section, component)
    return as_data_file(without_ended) if section == "data" else without_ended
