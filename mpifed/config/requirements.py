"""Which components of a configuration go together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mpifed.components.base import Component, DeclaredAlgorithm
from mpifed.components.registry import find_algorithm, find_attack, find_exchange
from mpifed.components.schema import shown
from mpifed.errors import InputError
from mpifed.federation import participation
from mpifed.federation.options import refusal as of_privacy
from mpifed.local.options import refusal

UNBIASED = "none, rand_k, quantise, natural, bernoulli, or a composition of these"


def check_together(configuration: Any) -> None:
    """Refuse components that do not go together."""
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


def _refusal(configuration: Any) -> str | None:
    """Return why components of this configuration do not go together; None if they do."""
    algorithm = find_algorithm(configuration.algorithm.name)
    reasons = [refusal(configuration.local), *_undeclared(configuration, algorithm)]
    exchange = configuration.exchange.name
    if algorithm.exchanges is None or exchange in algorithm.exchanges:
        # A method is asked about the exchanges that it supports, and no further reason against an
        # exchange helps that must be replaced anyway.
        asked = (algorithm, find_exchange(exchange), find_attack(configuration.attack.name))
        reasons += [_refused(component, configuration) for component in asked]
        reasons.append(of_privacy(configuration))
    return "; besides, ".join(filter(None, reasons)) or None


def _refused(component: type[Component], configuration: Any) -> str | None:
    """Return what a component's ``refuse`` says; raise ``InputError`` unless it is a text."""
    reason: object = component.refuse(configuration)
    if reason is not None and not isinstance(reason, str):
        raise InputError(
            f"{component._kind} '{component.__name__}': refuse(configuration) returned "
            f"{shown(reason)}; it must return a sentence, or None"
        )
    return reason


def _undeclared(configuration: Any, algorithm: type[DeclaredAlgorithm]) -> Iterator[str]:
    """Yield why a device, an exchange or a compressor is not among those a method declares."""
    name, exchange = configuration.algorithm.name, configuration.exchange.name
    if configuration.device not in ("auto", *algorithm.devices):
        device = configuration.device
        yield f"device is '{device}', but {name} computes on the CPU; allowed: auto, cpu"
    if not algorithm.communicates:
        return
    if algorithm.exchanges is not None and exchange not in algorithm.exchanges:
        allowed = ", ".join(algorithm.exchanges)
        yield f"exchange is '{exchange}', which {name} does not support; allowed: {allowed}"
    section = configuration.compression
    if section.name == "none" or algorithm.compressors == "any":
        return
    if algorithm.compressors == "none":
        yield (
            f"compression is '{section.name}', but {name} sends its messages whole; allowed: "
            "compression=none"
        )
    elif exchange != "gossip" and not _is_unbiased(section):
        # Neighbours keep replicas of what was sent, which make up for the errors of compression.
        inner = section.options.get("inner")
        key, biased = ("inner", inner.name) if inner else ("name", section.name)
        yield (
            f"compression.{key} is '{biased}', which is biased, but {name} needs E C(v) = v; "
            f"allowed: {UNBIASED}"
        )


def _is_unbiased(section: Any) -> bool:
    from mpifed.exchange.compression import build  # it needs torch, which most refusals do not

    return build(section).unbiased
