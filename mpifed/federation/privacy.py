"""The section ``privacy``, and what it goes with; ``mpifed.exchange.privacy`` does what it says."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Lt

from mpifed.errors import InputError

# What finds epsilon.
PACKAGE = "dp_accounting"


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """The section ``privacy``: clipped updates and Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float, optional
        z, the standard deviation of the noise over the clip norm. None is no privacy.
    clip_norm : float, optional
        C, the largest Euclidean norm of an update; longer ones are scaled to it.
    where : {'central', 'local'}
        Whether the server adds noise to the sum of updates, or each client to its own.
    delta : float
        The delta for which epsilon is found; below one over the number of clients.
    """

    noise_multiplier: Annotated[float, Gt(0)] | None = None
    clip_norm: Annotated[float, Gt(0)] | None = None
    where: Literal["central", "local"] = "central"
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) != (self.clip_norm is None):
            given, missing = "noise_multiplier", "clip_norm"
            if self.noise_multiplier is None:
                given, missing = missing, given
            raise InputError(
                f"privacy.{given} is given, but privacy.{missing} is empty; noise is in units of "
                "the clip norm, so that both are needed"
            )
        if self.noise_multiplier is not None and importlib.util.find_spec(PACKAGE) is None:
            raise InputError(
                f"privacy.noise_multiplier is {self.noise_multiplier:g}, whose epsilon needs the "
                "package dp-accounting, which is not installed: python -m pip install "
                "'mpifed[privacy]'"
            )

    @property
    def is_asked_for(self) -> bool:
        """Whether there is noise at all."""
        return self.noise_multiplier is not None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of a coordinate, z C."""
        return (self.noise_multiplier or 0.0) * (self.clip_norm or 0.0)
