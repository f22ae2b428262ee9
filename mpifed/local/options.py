"""The section ``local`` of a configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from mpifed.components.schema import Above, AtLeast, Below

Sampling = Literal["shuffled", "uniform"]


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """The section ``local`` of a configuration.

    ``lr_horizon`` is the R of the schedules (null: ``rounds`` when the run began). ``sampling:
    uniform`` draws every minibatch of ``batch_size`` samples anew, with replacement, and an epoch
    is as many of them as a shuffled one has. ``lr_clock``, ``reset_momentum`` and ``sampling`` name
    points where the published FedEM code and its text differ or leave a choice; see
    docs/deviations.md.
    """

    optimizer: Literal["sgd"] = "sgd"
    lr: Annotated[float, Above(0)] = 0.1
    lr_schedule: Literal["constant", "multi_step", "sqrt", "linear", "cosine"] = "constant"
    lr_clock: Literal["round", "local_epoch"] = "round"
    lr_horizon: Annotated[int, AtLeast(1)] | None = None
    momentum: Annotated[float, AtLeast(0), Below(1)] = 0.0
    reset_momentum: bool = False
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    batch_size: Annotated[int, AtLeast(1)] = 128
    epochs: Annotated[int, AtLeast(1)] = 1
    steps: Annotated[int, AtLeast(1)] | None = None
    sampling: Sampling = "shuffled"


def unread(given: Mapping[str, Any], read: Collection[str]) -> dict[str, Any]:
    """What the section ``given`` sets although it is not among ``read``.

    Not ``lr_horizon``, which a run that goes on to more rounds sets by itself.
    """
    plain = LocalOptions()
    return {
        key: value
        for key, value in given.items()
        if key not in (*read, "lr_horizon") and value != getattr(plain, key)
    }
