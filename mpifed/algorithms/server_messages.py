"""Messages that a server adds up: their variance, buffers, and what methods refuse.

Every ``refuse_...`` function returns a sentence for the user that names what is allowed, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mpifed.components.registry import Section
from mpifed.exchange.compression import Compressor
from mpifed.federation.clients import Federation
from mpifed.local.options import unread


def message_variance(compressor: Compressor | None, federation: Federation, size: int) -> float:
    """Return omega of a client's message, participation included: (1 + omega) / p - 1."""
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1


def averaged_buffers(model: Tensor, average: Tensor, n_buffers: int) -> Tensor:
    """Return a server's new model, with running statistics that are averaged."""
    if not n_buffers:
        return model
    return torch.cat([model[..., :-n_buffers], average[..., -n_buffers:]], -1)


def refuse_others(configuration: Any, needed: Mapping[str, Any], why: str) -> str | None:
    """Return why a configuration is refused that differs from what the method needs."""
    unfit = []
    for key, wanted in needed.items():
        value = getattr(configuration, key)
        given = value.name if isinstance(value, Section) else value
        if key == "participation" and given != wanted:
            # A run that leaves out diverged clients has a participation that no user wrote.
            unfit.append((key, f"not {wanted}"))
        elif given != wanted:
            unfit.append((key, repr(given)))
    if not unfit:
        return None
    *first, last = (f"{key} is {given}" for key, given in unfit)
    words = f"{', '.join(first)} and {last}" if first else last
    allowed = " ".join(f"{key}={needed[key]}" for key, _ in unfit)
    return f"{words}, but {configuration.algorithm.name} {why}; allowed: {allowed}"


def refuse_local(configuration: Any, used: tuple[str, ...]) -> str | None:
    """Return why options of the section ``local`` are refused that are set, but not in ``used``."""
    unfit = unread(configuration.local, used)
    if not unfit:
        return None
    key, value = next(iter(unfit.items()))
    return (
        f"local.{key} is {value}, but {configuration.algorithm.name} has no use for it; "
        f"of local it reads {', '.join(used)}"
    )
