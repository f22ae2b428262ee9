"""Which values of a configuration go together.

What a component needs, its class declares: ``requires``, of ``components.requirement``. The table
has what options of the machine need. ``check_together`` checks both.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from annotated_types import Gt, Lt

from mpifed.components.registry import (
    Section,
    code_of,
    find,
    find_algorithm,
    make,
    plain,
    with_options,
)
from mpifed.components.requirement import Not, Only, Requirement
from mpifed.components.tables import TABLES
from mpifed.errors import InputError
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.federation import participation
from mpifed.federation.options import ComputeOptions
from mpifed.io.yaml_files import as_text
from topologies import FAMILIES, WEIGHTS
from topologies.errors import excerpt
from topologies.names import Entry
from topologies.parameters import options_of
from topologies.schedules.sequences import ScheduleEntry, thinned
from topologies.schedules.table import SCHEDULES

# Options of schedules with which every neighbour receives every message.
STILL = {
    "exchange.schedule.drop_nodes": 0,
    "exchange.schedule.drop_edges": 0,
    "exchange.schedule.edge_failure": 0,
    "exchange.schedule.local_rounds": 1,
}
STATIC = {"exchange.schedule": "static", **STILL}
ONCE = {"exchange.when": "every", "exchange.gossip_steps": 1}
EVERYBODY = {"participation": 1.0}
RENORMALISED = {"participation.weights": "renormalised"}
PARTICIPANTS = {"exchange.average_over": "participants", **RENORMALISED}
SGD = {"local.optimizer": "sgd"}
GOSSIP = {"exchange": "gossip"}
WHOLE = {"compression": "none"}
PUNCTUAL = {"participation.late": "miss"}
SENDS = {"algorithm:exchanges": Not(())}
UPDATES = {**SENDS, "algorithm:aggregates": ("mean", "means")}
MEAN = {**UPDATES, "compression:unbiased": True}
ASYNCHRONOUS = {"exchange.asynchrony": ("wait_free", "pairwise")}

# Tables of the components of a graph, and keys whose values ``_value`` computes.
GRAPHS: Mapping[str, Mapping[str, Any]] = {
    "topology": FAMILIES,
    "weights": WEIGHTS,
    "schedule": SCHEDULES,
}
COMPUTED = ("participation:fraction", "participation:inclusion")

# Clients times rounds up to which it is computed what each client learns of each other.
MOST_CLIENT_ROUNDS = 10_000


# Rows of (when, needs, why): where all of ``when`` holds, all of ``needs`` must hold, as in
# ``Requirement``.
ROWS: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    # Evaluation and local steps.
    (
        {"evaluation.unseen_shares": Not(None)},
        {"evaluation.unseen_fraction": Gt(0)},
        "which is of unseen clients",
    ),
    (
        {"evaluation.validation_split": True},
        {"evaluation.validation_fraction": 0.0},
        "which takes the validation samples of the data",
    ),
    (
        SGD,
        {"local.beta1": 0.9, "local.beta2": 0.999, "local.epsilon": 1e-8},
        "which reads none",
    ),
    ({"local.optimizer": Not("sgd")}, {"local.momentum": 0.0}, "which does not read it"),
    ({"local.autocast": Not(None)}, {"dtype": "float32"}, "which torch applies to no other"),
    # What a method declares.
    (
        {},
        {"exchange": lambda run: find_algorithm(run.algorithm.name).exchanges or Not(None)},
        "which does not support it",
    ),
    (
        {},
        {"evaluation.unseen_fraction": lambda run: _unseen_fraction(run)},
        "which cannot serve unseen clients",
    ),
    ({**SENDS, "algorithm:compressors": "none"}, WHOLE, "which sends its messages whole"),
    (
        {**SENDS, "algorithm:compressors": "unbiased", "exchange": Not("gossip")},
        {"compression:unbiased": True},
        "which needs E C(v) = v of messages C(v): see --list compressors",
    ),
    # A server.
    ({"exchange.average_over": "all"}, RENORMALISED, "which weighs participants itself"),
    ({"exchange.clip": Not(None)}, MEAN, "which clips what enters a mean of updates"),
    (
        {"exchange.aggregator": Not(None)},
        {**MEAN, **PARTICIPANTS},
        "which counts updates alike",
    ),
    (
        {"exchange.aggregator:needs_fixed_number": True},
        {"participation:fraction": Not(None), "algorithm:aggregates": Not("means")},
        "so that it needs a fixed number of updates",
    ),
    (
        {"exchange.aggregator:centred": True},
        {"algorithm:aggregates": Not("means")},
        "which remembers the aggregate of one update",
    ),
    *(
        (
            when,
            {"exchange": "server", **SENDS, "algorithm:aggregates": ("mean", "mean_and_sums")},
            "which is for servers that move a model along a mean of updates",
        )
        for when in (
            {"server_optimizer": Not("sgd")},
            {"server_optimizer.lr": Not(1.0), "server_optimizer": "sgd"},
        )
    ),
    # Differential privacy.
    (
        {"privacy.noise_multiplier": Not(None)},
        {
            "exchange": ("server", "gossip"),
            **SENDS,
            "algorithm:aggregates": "mean",
            "on_divergence": "stop",
            "privacy.delta": lambda run: Lt(1 / run.n_training),
        },
        "which is for one mean of updates in a round, without "
        "clients that their data leave out, and with a delta that does not publish a client",
    ),
    (
        {"privacy.noise_multiplier": Not(None), **GOSSIP},
        {
            "privacy.where": "local",
            "exchange.correction": None,
            "exchange.asynchrony": "none",
            "exchange.chebyshev": False,
            **WHOLE,
        },
        "where clients send models with noise of their own, whole and as they are",
    ),
    (
        {"privacy.pairwise_multiplier": Not(0.0)},
        GOSSIP,
        "which is for clients that exchange models",
    ),
    (
        {"privacy.observers": Not("none")},
        {
            **GOSSIP,
            "rounds": lambda run: Lt(MOST_CLIENT_ROUNDS // run.n_training + 1),
        },
        "which is for models that are averages of each round, and takes long for many rounds "
        "of many clients",
    ),
    (
        {"privacy.noise_multiplier": Not(None), "privacy.where": "central"},
        {
            "exchange.aggregator": "mean",
            "exchange.clip": None,
            "exchange.average_over": "participants",
            **WHOLE,
        },
        "whose noise is made for the plain mean of clipped updates of participants",
    ),
    # Attacks.
    ({"attack:changes_updates": True}, SENDS, "which changes what clients send"),
    (
        {"attack:changes_updates": True, **GOSSIP},
        UPDATES,
        "which changes the update of a model",
    ),
    (
        {"attack:colludes": True},
        {"exchange": "server", **UPDATES},
        "which sends one update to all",
    ),
    # Gossip.
    (GOSSIP, RENORMALISED, "where the weights of absent clients' edges return to both ends"),
    (
        {"exchange.correction": Not(None), "exchange.correction:compresses": Not(True)},
        WHOLE,
        "whose messages are sent whole",
    ),
    (
        {"exchange.correction:within_steps": True},
        {
            **SENDS,
            "algorithm:aggregates": "mean",
            **SGD,
            "local.momentum": 0.0,
            **PUNCTUAL,
        },
        "a part of which belongs to each step of plain SGD",
    ),
    ({"exchange.correction:needs": ("static", "tree")}, EVERYBODY, "which needs every message"),
    (
        ASYNCHRONOUS,
        {
            "exchange.correction": None,
            "on_divergence": "stop",
            **WHOLE,
            **PUNCTUAL,
            "compute.name": Not("measured"),
            "compute.seconds": lambda run: _seconds(run),
        },
        "where computations of all their steps and whole messages follow from the clock, alike "
        "in every run",
    ),
    (
        {"exchange.weights": "by_size"},
        {"algorithm.gossip_step_scale": "none"},
        "which weighs clients by their samples, as the learning rate would once more",
    ),
    ({"exchange.asynchrony": "pairwise"}, STATIC, "which draws neighbours itself"),
    (
        {"exchange.schedule:has_few": True},
        {**EVERYBODY, "exchange.asynchrony": "none", **STILL, **ONCE},
        "whose models few clients have, and would be lost",
    ),
    (
        {**GOSSIP, "compression": Not("none")},
        {**STATIC, **EVERYBODY, **ONCE},
        "which needs every message",
    ),
    (ASYNCHRONOUS, ONCE, "which knows no rounds"),
    (
        {"exchange.correction": Not(None)},
        {"exchange.gossip_steps": 1},
        "which corrects one step of gossip",
    ),
    (
        {"exchange.correction:chooses": True},
        {
            **STATIC,
            **EVERYBODY,
            **ONCE,
            "exchange.asynchrony": "none",
            **SENDS,
            "algorithm:aggregates": "mean",
        },
        "whose clients choose among models that the same others send in every round",
    ),
    (
        {"algorithm:channel_type": GossipChannel},
        {**ONCE, "exchange.asynchrony": "none", "exchange.correction": None},
        "whose clients choose whom they mix with",
    ),
    ({"exchange.chebyshev": True}, {**STATIC, **EVERYBODY}, "whose weights are those of one W"),
    # Methods.
    (
        {"exchange": "server"},
        {"algorithm.model_init": "shared", "algorithm.component_init": "shared"},
        "where there is one shared copy",
    ),
)
REQUIREMENTS = tuple(Requirement(needs, why, when) for when, needs, why in ROWS)


def _seconds(configuration: Any) -> Any:
    """Return what ``compute.seconds`` may be where nothing else makes the clock advance."""
    idle = configuration.compute == ComputeOptions() and configuration.network.path is None
    return Gt(0) if idle else Not(None)


def _unseen_fraction(configuration: Any) -> Any:
    """Return what ``evaluation.unseen_fraction`` may be with the algorithm."""
    fraction = configuration.evaluation.unseen_fraction
    serves = find_algorithm(configuration.algorithm.name).serves_unseen_clients()
    unseen = participation.count_unseen(configuration.clients, fraction)
    return 0.0 if unseen and not serves else Not(None)


def chooses_neighbours(configuration: Any) -> bool:
    """Return whether whom clients mix with depends on their models."""
    by_method = _fits(configuration, "algorithm:channel_type", GossipChannel)
    return by_method or _fits(configuration, "exchange.correction:chooses", True)


def fits_gpu(configuration: Any) -> bool:
    """Return whether nothing that the configuration names computes on the CPU alone."""
    try:
        check_together(dataclasses.replace(configuration, device="cuda"))
    except InputError:
        return False
    return True


def check_together(configuration: Any) -> None:
    """Refuse values that do not go together."""
    for name in configuration.evaluation.metric_names:
        find("metric", with_options(name, "evaluation.metrics")[0], "evaluation.metrics")
    _check(configuration, "")
    if configuration.on_divergence == "drop":
        # A client that is left out is one that takes no part in the round.
        some = dataclasses.replace(configuration, participation=0.5)
        _check(some, "on_divergence is 'drop', which leaves clients out: ")


def _check(configuration: Any, prefix: str) -> None:
    for requirement in REQUIREMENTS:
        _check_one(configuration, requirement, list(requirement.when) or ["algorithm"], prefix)
    components = [
        (path, section, find(path.rpartition(".")[2], section.name, f"{path}.name"))
        for path, section in _components(configuration)
    ]
    for path, section, component in components:
        if ":" in section.name:  # keys of shipped classes are known
            check_keys(section.name, getattr(component, "requires", ()), configuration)
        for requirement in getattr(component, "requires", ()):
            with code_of(path, section.name):
                _check_one(configuration, requirement, [path, *requirement.when], prefix)
    for path, section, component in components:
        if hasattr(component, "validate"):
            _, *names = inspect.signature(component.validate).parameters
            needed = map(partial(getattr, configuration), names)
            with code_of(path, section.name):
                component.validate(section.options, *needed)


def check_keys(name: str, requires: Iterable[Requirement], configuration: Any) -> None:
    """Raise ``ValueError`` where the component ``name`` requires a key that nothing declares."""
    for requirement in requires:
        for key, value in (*requirement.needs.items(), *requirement.when.items()):
            options = value.options if isinstance(value, Only) else ()
            for each in (key, *(f"{key}.{option}" for option in options)):
                if not _is_declared(configuration, each):
                    raise ValueError(
                        f"{name}: requires has the key {each!r}, which no section, no option and "
                        "no class of such a component declares"
                    )


def _is_declared(configuration: Any, key: str) -> bool:
    """Return whether a configuration, or one with other shipped components, can have a key."""
    path, _, attribute = key.partition(":")
    owners: list[Any] = [type(configuration)]
    value = configuration
    for kind in path.split("."):
        options = value.options if isinstance(value, Section) else {}
        if kind not in options and not any(kind in _parameters(owner) for owner in owners):
            return False
        value = options.get(kind, getattr(value, kind, None))
        if kind in TABLES:
            names = [*TABLES[kind], *([value.name] if isinstance(value, Section) else [])]
            owners = [find(kind, name) for name in names]
        elif kind in GRAPHS:
            owners = list(GRAPHS[kind].values())
        elif kind == "participation":
            owners = list(participation.KINDS.values())
        else:
            owners = [type(value)] if dataclasses.is_dataclass(value) else []
    return not attribute or key in COMPUTED or any(hasattr(owner, attribute) for owner in owners)


def _parameters(owner: Any) -> Mapping[str, Any]:
    """Return the options of a component, or of an entry of a table of graphs or schedules."""
    if isinstance(owner, ScheduleEntry):
        return {**owner.parameters, **options_of(thinned)}
    if isinstance(owner, Entry):
        return owner.parameters
    return options_of(owner)


def _components(configuration: Any) -> Iterator[tuple[str, Section]]:
    """Return the components that a configuration names, those in options of others too."""

    def within(path: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Section]]:
        for key, value in options.items():
            if isinstance(value, Section) and key in TABLES:
                yield f"{path}{key}", value
                yield from within(f"{path}{key}.", value.options)

    return within("", vars(configuration))


def _check_one(
    configuration: Any, requirement: Requirement, causes: list[str], prefix: str
) -> None:
    """Refuse a configuration that a requirement is for and that does not meet it."""
    if not all(_fits(configuration, key, value) for key, value in requirement.when.items()):
        return
    for key, needed in _spelt_out(configuration, requirement.needs):
        allowed = needed(configuration) if inspect.isfunction(needed) else needed
        is_open = _value(configuration, key) is None and ":" not in key
        if not is_open and not _fits(configuration, key, allowed):
            reasons = dict.fromkeys(_phrase(configuration, cause, False) for cause in causes)
            raise InputError(
                f"{prefix}{_phrase(configuration, key, True)}, but {' and '.join(reasons)}, "
                f"{requirement.why}; allowed: {_words(_components_with(key, allowed) or allowed)}"
            )


def _spelt_out(configuration: Any, needs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return what is needed, with the defaults of a section's options for ``Only``."""
    for key, needed in needs.items():
        if not isinstance(needed, Only):
            yield key, needed
            continue
        for field in dataclasses.fields(getattr(configuration, key)):
            # A run that is continued sets this one by itself.
            if field.name not in (*needed.options, "lr_horizon"):
                yield f"{key}.{field.name}", field.default


def _value(configuration: Any, key: str) -> Any:
    """Return the value of a key: an option, a component's name, or what its class declares."""
    path, _, attribute = key.partition(":")
    if key == "participation:fraction":
        return participation.fixed_fraction(configuration.participation)
    if key == "participation:inclusion":
        return participation.inclusion(configuration.participation, configuration.n_training)
    if key == "compression:unbiased":
        return make("compression", configuration.compression, "compression").unbiased
    value: Any = configuration
    for part in path.split("."):
        options = value.options if isinstance(value, Section) else getattr(value, "__dict__", {})
        value = options.get(part)
    if attribute and value is not None:
        kind = path.rpartition(".")[2]
        owner: Any = SCHEDULES.get(value.name) if kind == "schedule" else find(kind, value.name)
        return getattr(owner, attribute, None)
    return value.name if isinstance(value, Section) else value


def _fits(configuration: Any, key: str, allowed: Any) -> bool:
    return _is(_value(configuration, key), allowed)


def _is(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, Not):
        return bool(value != allowed.value)
    if isinstance(allowed, Gt):
        return bool(value is not None and value > allowed.gt)
    if isinstance(allowed, Lt):
        return bool(value is not None and value < allowed.lt)
    return value in (allowed if isinstance(allowed, tuple) else (allowed,))


def _components_with(key: str, allowed: Any) -> tuple[str, ...]:
    """Return the shipped components that have an attribute; none where the key is of no such."""
    path, _, attribute = key.partition(":")
    kind = path.rpartition(".")[2]
    if not attribute or kind not in TABLES:
        return ()
    return tuple(
        name for name in TABLES[kind] if _is(getattr(find(kind, name), attribute, None), allowed)
    )


def _phrase(configuration: Any, key: str, with_attribute: bool) -> str:
    path, _, attribute = key.partition(":")
    phrase = f"{path} is {excerpt(plain(_value(configuration, path)))}"
    if attribute and with_attribute and path != "algorithm":
        phrase += f", whose {attribute} is {_words(_value(configuration, key))}"
    return phrase


def _words(allowed: Any) -> str:
    """Return values that are allowed in the words of a message."""
    if isinstance(allowed, tuple):
        return ", ".join(map(_words, allowed))
    if isinstance(allowed, Not):
        return "a value" if allowed.value is None else f"all but {allowed.value}"
    if isinstance(allowed, (Gt, Lt)):
        return f"above {allowed.gt}" if isinstance(allowed, Gt) else f"below {allowed.lt:g}"
    return str(as_text(allowed))
