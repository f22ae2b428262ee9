"""Messages that a server adds up: how far they vary, what methods ask of them, and the sentences
that refuse the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifed.components.registry import Section, find
from mpifed.exchange.compression import Compressor
from mpifed.federation.clients import Federation
from mpifed.local.options import unread

UNBIASED = "allowed: none, rand_k, quantise, natural, bernoulli, or a composition of these"


def message_variance(compressor: Compressor | None, federation: Federation, size: int) -> float:
    """omega of a client's message, participation included: (1 + omega) / p - 1.

    A client that takes part with probability p sends U / p of its compressed message, U in {0, 1}.
    """
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1


def refuse_gossip(configuration: Any, advice: str = "allowed: server") -> str | None:
    """Refuses an exchange without the server that the method needs; ends in ``advice``."""
    exchange, name = configuration.exchange.name, configuration.algorithm.name
    if exchange == "server":
        return None
    return f"exchange is '{exchange}', but {name} sends messages to a server; {advice}"


def refuse_others(configuration: Any, needed: Mapping[str, Any], why: str) -> str | None:
    """Refuses, all at once, whatever differs from what the method needs: by the name of a key, a
    number or the name of a component.
    """
    unfit = []
    for key, wanted in needed.items():
        value = getattr(configuration, key)
        given = value.name if isinstance(value, Section) else value
        if key == "participation" and given != wanted:
            # That of a run which leaves out who diverges is nothing that a user gave.
            unfit.append((key, f"not {wanted}"))
        elif given != wanted:
            unfit.append((key, repr(given)))
    if not unfit:
        return None
    *first, last = (f"{key} is {given}" for key, given in unfit)
    words = f"{', '.join(first)} and {last}" if first else last
    allowed = " ".join(f"{key}={needed[key]}" for key, _ in unfit)
    return f"{words}, but {configuration.algorithm.name} {why}; allowed: {allowed}"


def refuse_biased(configuration: Any, advice: str = UNBIASED) -> str | None:
    """Refuses compressors with E C(v) other than v, which do not cancel in a sum of messages.

    The sentence ends in ``advice``.
    """
    section = configuration.compression
    if section.name == "none":
        return None
    made: Any = find("compression", section.name)
    if made(**section.options).unbiased:
        return None
    inner = section.options.get("inner")
    key, name = ("inner", inner.name) if inner else ("name", section.name)
    return (
        f"compression.{key} is '{name}', which is biased, but "
        f"{configuration.algorithm.name} needs E C(v) = v; {advice}"
    )


def refuse_local(configuration: Any, used: tuple[str, ...]) -> str | None:
    """Refuses options of the section ``local`` that are set, but not among those ``used``."""
    unfit = unread(configuration.local, used)
    if not unfit:
        return None
    key, value = next(iter(unfit.items()))
    return (
        f"local.{key} is {value}, but {configuration.algorithm.name} has no use for it; "
        f"of local it reads {', '.join(used)}"
    )
