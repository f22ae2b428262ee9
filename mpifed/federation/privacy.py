"""The section ``privacy``, and what it goes with; ``mpifed.exchange.privacy`` does what it says."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt, Lt

from mpifed.components.registry import find_algorithm
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

    @property
    def is_asked_for(self) -> bool:
        """Whether there is noise at all."""
        return self.noise_multiplier is not None

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of a coordinate, z C."""
        return (self.noise_multiplier or 0.0) * (self.clip_norm or 0.0)


def refusal(configuration: Any) -> str | None:
    """Return why the section ``privacy`` does not go with the configuration, or None."""
    options = configuration.privacy
    if not options.is_asked_for:
        return None
    said = f"privacy.noise_multiplier is {options.noise_multiplier:g}"
    exchange, name = configuration.exchange, configuration.algorithm.name
    if exchange.name != "server":
        return f"{said} and exchange is '{exchange.name}'; allowed: server"
    algorithm = find_algorithm(name)
    if not algorithm.communicates:
        return f"{said}, but {name} sends nothing; allowed: no section privacy"
    if algorithm.aggregates != "mean":
        return (
            f"{said}, but clients of {name} send more than one update of a model in a round; "
            "allowed: a method whose server takes one mean, such as fedavg and fedem"
        )
    if configuration.algorithm.options.get("restarts", 1) != 1:
        return f"{said}, which does not cover rounds before round 1; allowed: algorithm.restarts=1"
    if configuration.on_divergence != "stop":
        return f"{said}, but on_divergence leaves clients out by their data; allowed: stop"
    if options.delta >= 1 / configuration.n_training:
        return (
            f"privacy.delta is {options.delta:g}, which allows to publish a client's data; it must "
            f"be below 1 / {configuration.n_training}, one over the training clients"
        )
    if (reason := _of_the_server(configuration, said)) is not None:
        return reason
    if importlib.util.find_spec(PACKAGE) is None:
        return (
            f"{said}, whose epsilon needs the package dp-accounting, which is not installed: "
            "python -m pip install 'mpifed[privacy]'"
        )
    return None


def _of_the_server(configuration: Any, said: str) -> str | None:
    """Why noise at the server does not go with its other options, or None."""
    if configuration.privacy.where == "local":
        return None
    options = configuration.exchange.options
    if "aggregator" in options or "clip" in options:
        return (
            f"{said} and privacy.where is 'central', whose noise is made for a mean of clipped "
            "updates; allowed: exchange.aggregator=mean without exchange.clip, or "
            "privacy.where=local"
        )
    if options["average_over"] == "all":
        return (
            f"{said} and exchange.average_over is 'all', but central noise divides by the expected "
            "number of participants; allowed: participants"
        )
    if configuration.compression.name != "none":
        return (
            f"{said} and compression is '{configuration.compression.name}', which makes updates "
            "longer than the clip norm; allowed: compression=none, or privacy.where=local"
        )
    return None
