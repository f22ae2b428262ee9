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
    """Return omega of a client's message, participation included: (1 + omega) / p - 1.

    A client that takes part with probability p sends U / p of its compressed message, U in {0, 1}.

    Parameters
    ----------
    compressor : Compressor or None
        An unbiased compressor; None sends messages whole.
    federation : Federation
        Its ``inclusion`` is p.
    size : int
        Numbers in a message.

    Returns
    -------
    float
    """
    omega = compressor.omega(size) if compressor is not None else 0.0
    return (1 + omega) / federation.inclusion - 1


def averaged_buffers(model: Tensor, average: Tensor, n_buffers: int) -> Tensor:
    """Return a server's new model, with running statistics that are averaged.

    A server whose step is longer than to the average could make a variance negative.

    Parameters
    ----------
    model : Tensor
        The new model, (1, P).
    average : Tensor
        The mean of the clients' models, (1, P).
    n_buffers : int
        How many of the last numbers of a row are running statistics.

    Examples
    --------
    >>> averaged_buffers(torch.tensor([[5.0, -1.0]]), torch.tensor([[2.0, 0.5]]), 1)
    tensor([[5.0000, 0.5000]])
    """
    if not n_buffers:
        return model
    return torch.cat([model[..., :-n_buffers], average[..., -n_buffers:]], -1)


def refuse_others(configuration: Any, needed: Mapping[str, Any], why: str) -> str | None:
    """Return why a configuration is refused that differs from what the method needs.

    Parameters
    ----------
    configuration : Configuration
        What the user asks for.
    needed : mapping
        The value of each key that the method needs; for sections the name of the component.
    why : str
        End of the sentence, after the name of the algorithm.

    Returns
    -------
    str or None
        One sentence with all keys that differ.
    """
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
