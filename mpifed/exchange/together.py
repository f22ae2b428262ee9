"""What gossip does not go with, and asynchronous gossip in particular."""

from __future__ import annotations

from typing import Any

from mpifed.exchange.corrections.fitting import refusal as correction_refusal
from mpifed.federation.participation import is_unbiased, shortens_rounds
from mpifed.federation.timing import ComputeOptions

STILL = (("drop_nodes", 0), ("drop_edges", 0), ("edge_failure", 0), ("local_rounds", 1))
"""Options of schedules with which every neighbour hears every message."""

FEW_HOLDERS = ("teleport", "random_walk")
"""Schedules that say who takes part in a round."""


def gossip_refusal(configuration: Any) -> str | None:
    """Return why options cannot be combined with gossip, or None."""
    if is_unbiased(configuration.participation):
        return (
            "participation.weights is 'unbiased', which is an average at a server; by gossip "
            "the weights of absent clients' edges return to both ends, and the mean over "
            "clients stays; allowed: renormalised"
        )
    reasons = (correction_refusal, _asynchrony_refusal, _moving_refusal)
    if reason := next(filter(None, (of(configuration) for of in reasons)), None):
        return reason
    if configuration.compression.name == "none":
        return None
    compressed = f"compression.name is '{configuration.compression.name}'"
    schedule = configuration.exchange.options["schedule"]
    if schedule.name != "static":
        return (
            f"{compressed} and exchange.schedule '{schedule.name}': neighbours keep "
            "replicas of each other's state, which a changing neighbourhood would not follow; "
            "allowed: static"
        )
    if moving := _moving(schedule):
        key, still = moving
        return (
            f"{compressed} and exchange.schedule.{key} {schedule.options[key]}: neighbours "
            "keep replicas of each other's state, which need every message of every "
            f"round; allowed: {still}"
        )
    if configuration.participation != 1.0 or configuration.on_divergence != "stop":
        return (
            f"{compressed} under gossip: who is absent would miss what its replicas need; "
            "participation must be 1.0 and on_divergence stop"
        )
    return None


def _moving(schedule: Any) -> tuple[str, float] | None:
    """Return an option with which not every neighbour hears every message, and its still value."""
    moving = (each for each in STILL if schedule.options.get(each[0], each[1]) != each[1])
    return next(moving, None)


def _moving_refusal(configuration: Any) -> str | None:
    """Return why models would be lost that few clients have, or None."""
    options = configuration.exchange.options
    schedule = options["schedule"]
    if schedule.name not in FEW_HOLDERS:
        return None
    said = f"exchange.schedule is '{schedule.name}', whose models few clients have"
    if configuration.participation != 1.0 or configuration.on_divergence != "stop":
        return f"{said}; participation must be 1.0 and on_divergence stop, or they are lost"
    if options.get("asynchrony", "none") != "none":
        return f"{said} from round to round; allowed: exchange.asynchrony=none"
    if moving := _moving(schedule):
        return f"{said}; exchange.schedule.{moving[0]} must be {moving[1]}, or they are lost"
    return None


def _asynchrony_refusal(configuration: Any) -> str | None:
    """Return why clients of this configuration cannot mix without waiting, or None."""
    options = configuration.exchange.options
    mixes = options.get("asynchrony", "none")
    if mixes == "none":
        return None
    said, compute = f"exchange.asynchrony is '{mixes}'", configuration.compute
    if options.get("correction") is not None:
        return (
            f"{said} and exchange.correction '{options['correction'].name}', whose sums are kept "
            "only where all that send in a round are heard in it; allowed: correction=none"
        )
    if configuration.compression.name != "none":
        return (
            f"{said} and compression.name '{configuration.compression.name}', whose replicas need "
            "every message of every round; allowed: compression=none"
        )
    if configuration.on_divergence != "stop":
        return f"{said}, where rounds cannot be run again without a client; allowed: stop"
    if shortens_rounds(configuration.participation):
        return (
            f"{said} and participation.late 'partial', but seconds of a computation are those of "
            "all its steps; allowed: miss"
        )
    if compute.name == "measured":
        return (
            f"{said}, whose events follow from the clock, and compute.name 'measured', which "
            "differs from run to run; allowed: constant, lognormal, trace"
        )
    if compute == ComputeOptions() and configuration.network.path is None:
        return f"{said}, whose events follow from the clock, but compute.seconds is 0"
    schedule = options["schedule"]
    if mixes == "pairwise" and (schedule.name != "static" or _moving(schedule)):
        return (
            f"{said}, which draws a neighbour for each computation itself; exchange.schedule must "
            "be static, without lost nodes or edges and without local rounds"
        )
    return None
