"""Which values of a configuration go together: one table of requirements."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

from annotated_types import Gt, Lt

from mpifed.components.base import Component
from mpifed.components.registry import Section, find, find_algorithm, make, plain
from mpifed.components.tables import ALGORITHMS
from mpifed.errors import InputError
from mpifed.federation import participation
from mpifed.federation.options import ComputeOptions
from mpifed.io.yaml_files import as_text
from mpifed.local.options import LocalOptions
from topologies.errors import excerpt

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
UNCOMPRESSED = {"compression": "none"}
PUNCTUAL = {"participation.late": "miss"}
SENDS = {"algorithm:communicates": True}
UPDATES = {**SENDS, "algorithm:aggregates": ("mean", "means")}
MEAN = {**UPDATES, "compression:unbiased": True}
ASYNCHRONOUS = {"exchange.asynchrony": ("wait_free", "pairwise")}
NEWTON = {"algorithm.local_solver": "newton"}
FLIX = {"algorithm": ("flix", "dcgd", "diana")}

# Clients times rounds up to which it is found what each client learns of each other.
MOST_LOOKS = 10_000


@dataclasses.dataclass(frozen=True)
class Not:
    """All values but one; ``Not(None)`` is all that is given."""

    value: Any


def _unread(*read: str) -> dict[str, Any]:
    """Return the defaults of the options of the section ``local`` that are not ``read``."""
    return {
        f"local.{field.name}": field.default
        for field in dataclasses.fields(LocalOptions)
        if field.name not in (*read, "lr_horizon")
    }


def _seconds(configuration: Any) -> Any:
    """Return what ``compute.seconds`` may be where nothing else makes the clock advance."""
    idle = configuration.compute == ComputeOptions() and configuration.network.path is None
    return Gt(0) if idle else Not(None)


# Rows of (when, needs, why): where all of ``when`` holds, all of ``needs`` must hold.
#
# Keys are dotted, as on the command line; ``algorithm:communicates`` is an attribute that the
# component's class declares. A value is one value, a tuple of them, ``Not``, a bound such as
# ``Gt(0)``, or a function of the configuration that returns one of these. A key that the
# configuration does not have, or leaves empty, is never in the way.
REQUIREMENTS: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
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
    (SGD, {"local.beta1": 0.9, "local.beta2": 0.999, "local.epsilon": 1e-8}, "which reads none"),
    ({"local.optimizer": Not("sgd")}, {"local.momentum": 0.0}, "which does not read it"),
    # What a method declares.
    (
        {},
        {"device": lambda config: ("auto", *find_algorithm(config.algorithm.name).devices)},
        "which computes on the CPU",
    ),
    (
        SENDS,
        {"exchange": lambda config: find_algorithm(config.algorithm.name).exchanges or Not(None)},
        "which does not support it",
    ),
    ({**SENDS, "algorithm:compressors": "none"}, UNCOMPRESSED, "which sends its messages whole"),
    (
        {**SENDS, "algorithm:compressors": "unbiased", "exchange": Not("gossip")},
        {"compression:unbiased": True},
        "which needs E C(v) = v of messages C(v): see --list compressors",
    ),
    ({"participation.late": "partial"}, {"algorithm:steps_locally": True}, "which cuts the steps"),
    # A server.
    ({"exchange.average_over": "all"}, RENORMALISED, "which weighs participants itself"),
    ({"exchange.clip": Not(None)}, MEAN, "which clips what enters a mean of updates"),
    ({"exchange.aggregator": Not(None)}, {**MEAN, **PARTICIPANTS}, "which counts updates alike"),
    (
        {"exchange.aggregator:needs_fixed_number": True},
        {"participation:fraction": Not(None), "algorithm:aggregates": Not("means")},
        "so that it needs a fixed number of updates",
    ),
    (
        {"exchange.aggregator:centred": True},
        {"algorithm:aggregates": Not("means"), "algorithm.restarts": 1},
        "which remembers the aggregate of one update",
    ),
    *(
        (
            setting,
            {"exchange": "server", "algorithm:server_steps": True},
            "which is for servers that move a model along a mean of updates",
        )
        for setting in (
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
            "algorithm.restarts": 1,
            "on_divergence": "stop",
            "privacy.delta": lambda config: Lt(1 / config.n_training),
        },
        "which is for one mean of updates in a round, without rounds before round 1, without "
        "clients that their data leave out, and with a delta that does not publish a client",
    ),
    (
        {"privacy.noise_multiplier": Not(None), **GOSSIP},
        {
            "privacy.where": "local",
            "exchange.correction": None,
            "exchange.asynchrony": "none",
            "exchange.chebyshev": False,
            **UNCOMPRESSED,
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
            "algorithm": Not("scaffnew"),
            "algorithm.beta": 1.0,
            "rounds": lambda config: Lt(MOST_LOOKS // config.n_training + 1),
        },
        "which is for models that are averages of each round, and takes long for many rounds of "
        "many clients",
    ),
    (
        {"privacy.noise_multiplier": Not(None), "privacy.where": "central"},
        {
            "exchange.aggregator": "mean",
            "exchange.clip": None,
            "exchange.average_over": "participants",
            **UNCOMPRESSED,
        },
        "whose noise is made for the plain mean of clipped updates of participants",
    ),
    # Attacks.
    ({"attack:changes_updates": True}, SENDS, "which changes what clients send"),
    ({"attack:changes_updates": True, **GOSSIP}, UPDATES, "which changes the update of a model"),
    ({"attack:colludes": True}, {"exchange": "server", **UPDATES}, "which sends one update to all"),
    # Gossip.
    (GOSSIP, RENORMALISED, "where the weights of absent clients' edges return to both ends"),
    (
        {"algorithm": ("l2gd", "apfl", "pfedme"), **GOSSIP},
        {"algorithm.client_weights": "uniform"},
        "where the mixing matrix has the weights",
    ),
    (
        {"exchange.correction": Not(None), "exchange.correction:compresses": Not(True)},
        UNCOMPRESSED,
        "whose messages are sent whole",
    ),
    (
        {"exchange.correction:within_steps": True},
        {
            "algorithm:takes_duals": True,
            "algorithm.local_solver": "steps",
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
            **UNCOMPRESSED,
            **PUNCTUAL,
            "compute.name": Not("measured"),
            "compute.seconds": _seconds,
        },
        "where computations of all their steps and whole messages follow from the clock, alike in "
        "every run",
    ),
    (
        {"exchange.weights": "by_size"},
        {"algorithm.gossip_step_scale": "none"},
        "which weighs clients by their samples, as the learning rate would once more",
    ),
    ({"exchange.asynchrony": "pairwise"}, STATIC, "which draws neighbours itself"),
    (
        {"exchange.schedule": ("teleport", "random_walk")},
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
            "algorithm:averages_models": Not(None),
        },
        "whose clients choose among models that the same others send in every round",
    ),
    (
        {"exchange.correction:looks_at_losses": True},
        {"algorithm:averages_models": "one"},
        "whose clients compare losses of one model each",
    ),
    (
        {"algorithm": "fedspd", "local.momentum": Gt(0)},
        {"local.reset_momentum": True},
        "whose clients train another model in every round",
    ),
    ({"algorithm": "fedspd"}, SGD, "whose clients train another model in every round"),
    (
        {"algorithm:neighbours": "chosen"},
        {**ONCE, "exchange.asynchrony": "none", "exchange.correction": None},
        "whose clients choose whom they mix with",
    ),
    ({"exchange.chebyshev": True}, {**STATIC, **EVERYBODY}, "whose weights are those of one W"),
    # Methods.
    (
        {"algorithm": ("scaffold", "kgt", "scaffnew")},
        {**SGD, "local.momentum": 0.0},
        "which corrects steps of plain SGD",
    ),
    (
        {"algorithm": ("moon", "fedproto", "fedpac", "fedspd", "pfeddst")},
        {"local.buffers": "average"},
        "whose models take their statistics along",
    ),
    (
        {"algorithm": "fednova"},
        SGD,
        "which divides moves by the learning rates of their steps",
    ),
    (
        {"algorithm": "fednova", "local.momentum": Gt(0)},
        {"local.reset_momentum": True, "local.lr_clock": "round"},
        "which divides moves by what momentum makes of steps from rest at one rate",
    ),
    (
        {"algorithm:neighbours": "corrected"},
        {"exchange.asynchrony": "none", "exchange.correction": None},
        "which corrects gossip itself, in rounds",
    ),
    ({"algorithm": ("scaffnew", "ifca", "clustered")}, PARTICIPANTS, "which averages participants"),
    ({"algorithm": "clustered"}, {"participation:inclusion": 1.0}, "which needs all clients"),
    ({"algorithm": "fedgmm"}, RENORMALISED, "which takes covariances from averages of moments"),
    (
        {"exchange": "server"},
        {"algorithm.model_init": "shared", "algorithm.component_init": "shared"},
        "where there is one shared copy",
    ),
    (
        {"algorithm.restarts": Gt(1)},
        {
            "compression": ("none", "identity"),
            "exchange.correction": None,
            "server_optimizer": "sgd",
            "server_optimizer.lr": 1.0,
        },
        "whose trials send whole messages and remember none",
    ),
    ({**NEWTON, **GOSSIP}, {"algorithm.gossip_step_scale": "none"}, "which has no rate to scale"),
    ({**NEWTON, "algorithm": "fedem"}, PUNCTUAL, "which takes no steps that could be cut"),
    (
        {"algorithm": ("fedmm", "fedmm_theta"), **SENDS, **GOSSIP},
        {"exchange.asynchrony": ("none", "wait_free"), "algorithm.control_variate_rate": 0},
        "where values are projected and no server has control variates",
    ),
    (
        {"algorithm": ("fedpd", "streaming_diloco")},
        EVERYBODY,
        "whose clients all move in every round",
    ),
    ({"algorithm": "fedmgs"}, EVERYBODY, "where algorithm.senders of all clients send"),
    ({"algorithm": "sa_ssmm"}, {"clients": 1, **EVERYBODY, **UNCOMPRESSED}, "which sends nothing"),
    (
        {"algorithm": "fedmm_ot"},
        {"data": "transport", "model": "icnn", **_unread("lr", "batch_size", "steps")},
        "which reads lr, batch_size and steps of local",
    ),
    ({"algorithm": "fedadam", "model": "icnn"}, {"data": "transport"}, "a transport map"),
    (
        {"algorithm": "fedadam", "data": "transport"},
        {"model": "icnn", **_unread("batch_size"), **PUNCTUAL},
        "where clients take one gradient step on batch_size samples",
    ),
    (
        {**FLIX, "algorithm.setting": "strongly_convex"},
        {"algorithm.regulariser": "l2", "algorithm.l2": Gt(0)},
        "which nothing else makes the risks",
    ),
    ({**FLIX, **GOSSIP}, {"algorithm.start": ("zeros", "ones", "random")}, "without a server"),
    ({**FLIX, "algorithm.start": "average"}, {"algorithm.start_from": None}, "which forgets x"),
    *(
        (
            {**FLIX, **setting},
            {"algorithm": "flix", "exchange": "server", "compression": ("none", "identity")},
            "which asks for whole gradients at a server",
        )
        for setting in ({"algorithm.step": "line_search"}, {"algorithm.stop_at": Not(None)})
    ),
)


def chooses_neighbours(configuration: Any) -> bool:
    """Return whether whom clients mix with depends on their models."""
    return _fits(configuration, "exchange.correction:chooses", True)


def check_together(configuration: Any) -> None:
    """Refuse values that do not go together."""
    _check(configuration, "")
    if configuration.on_divergence == "drop":
        # A client that is left out is one that takes no part in the round.
        some = dataclasses.replace(configuration, participation=0.5)
        _check(some, "on_divergence is 'drop', which leaves clients out: ")


def _check(configuration: Any, prefix: str) -> None:
    for when, needs, why in REQUIREMENTS:
        if not all(_fits(configuration, key, value) for key, value in when.items()):
            continue
        for key, needed in needs.items():
            allowed = needed(configuration) if inspect.isfunction(needed) else needed
            is_open = _value(configuration, key) is None and ":" not in key
            if not is_open and not _fits(configuration, key, allowed):
                causes = [_described(configuration, each, False) for each in when or ("algorithm",)]
                raise InputError(
                    f"{prefix}{_described(configuration, key, True)}, but "
                    f"{' and '.join(dict.fromkeys(causes))}, {why}; allowed: "
                    f"{_words(_algorithms(key, allowed) or allowed)}"
                )
    for kind in ("algorithm", "exchange", "attack"):
        component = find(kind, getattr(configuration, kind).name)
        if inspect.isclass(component) and issubclass(component, Component):
            component.validate(configuration)


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
    if attribute:
        kind = path.rpartition(".")[2]
        return getattr(find(kind, value.name), attribute, None) if value is not None else None
    return value.name if isinstance(value, Section) else value


def _fits(configuration: Any, key: str, allowed: Any) -> bool:
    value = _value(configuration, key)
    return any(_is(each, allowed) for each in (_names(value) if key == "algorithm" else [value]))


def _is(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, Not):
        return bool(value != allowed.value)
    if isinstance(allowed, Gt):
        return bool(value is not None and value > allowed.gt)
    if isinstance(allowed, Lt):
        return bool(value is not None and value < allowed.lt)
    return value in (allowed if isinstance(allowed, tuple) else (allowed,))


@functools.cache
def _names(algorithm: str) -> frozenset[str]:
    """Return the names of an algorithm: its own, and those of shipped ones it derives from."""
    bases = inspect.getmro(find_algorithm(algorithm))
    targets = {f"{base.__module__}:{base.__qualname__}" for base in bases}
    return frozenset({algorithm, *(name for name, at in ALGORITHMS.items() if at in targets)})


def _algorithms(key: str, allowed: Any) -> tuple[str, ...]:
    """Return the shipped algorithms that have an attribute; none where the key is of no such."""
    path, _, attribute = key.partition(":")
    if path != "algorithm" or not attribute:
        return ()
    return tuple(n for n in ALGORITHMS if _is(getattr(find_algorithm(n), attribute), allowed))


def _described(configuration: Any, key: str, with_attribute: bool) -> str:
    path, _, attribute = key.partition(":")
    text = f"{path} is {excerpt(plain(_value(configuration, path)))}"
    if attribute and with_attribute and path != "algorithm":
        text += f", whose {attribute} is {_words(_value(configuration, key))}"
    return text


def _words(allowed: Any) -> str:
    """Return values that are allowed in the words of a message."""
    if isinstance(allowed, tuple):
        return ", ".join(map(_words, allowed))
    if isinstance(allowed, Not):
        return "a value" if allowed.value is None else f"all but {allowed.value}"
    if isinstance(allowed, (Gt, Lt)):
        return f"above {allowed.gt}" if isinstance(allowed, Gt) else f"below {allowed.lt:g}"
    return str(as_text(allowed))
