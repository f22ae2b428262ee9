"""The sections ``network``, ``compute`` and ``privacy``, which describe the simulated clients."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from mpifed.errors import InputError

# What finds epsilon.
PACKAGE = "dp_accounting"

# How learning rates under gossip depend on clients' shares of the samples; see ``Exchange.rates``.
StepScale = Literal["paper", "normalised", "none"]


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The section ``network``: the links of the simulated federation.

    Parameters
    ----------
    latency : float
        Seconds from any client to any other, or to the server.
    bandwidth : float, optional
        Bits per second of a client's link, each way, which its messages of a round share: a hub
        pays for each neighbour. None is unlimited.
    link : {'shared', 'per_path'}
        ``per_path``: every path between two clients has the bandwidth for itself, however many
        paths a client has.
    upload : float, optional
        Bits per second of a client's link for what it sends in a round. None is the bandwidth, or
        that of the file.
    download : float, optional
        The same for what it receives.
    server_bandwidth : float, optional
        Bits per second of the server's link, each way, shared by the messages of all clients. None
        is unlimited, or that of its site in a file.
    path : str, optional
        A file of sites (.csv of latencies, .graphml or .gml) in place of latency and bandwidth.
    server : int or 'all_reduce', optional
        The site of the server, from 0, in a file of sites; or no server: clients add shares of the
        sum and send these to each other. None is the site from which the slowest client is nearest.
    """

    latency: Annotated[float, Ge(0)] = 0.0
    bandwidth: Annotated[float, Gt(0)] | None = None
    link: Literal["shared", "per_path"] = "shared"
    upload: Annotated[float, Gt(0)] | None = None
    download: Annotated[float, Gt(0)] | None = None
    server_bandwidth: Annotated[float, Gt(0)] | None = None
    path: str | None = None
    server: Annotated[int, Ge(0)] | Literal["all_reduce"] | None = None

    def __post_init__(self) -> None:
        if self.path is not None and (self.latency or self.bandwidth is not None):
            raise InputError(
                "network.path is given beside network.latency or network.bandwidth, which the file "
                "has; allowed: one of them"
            )
        if self.link == "per_path" and self.bandwidth is None:
            raise InputError(
                "network.link is per_path, which says what network.bandwidth belongs to, but "
                "network.bandwidth is empty"
            )
        if self.server_bandwidth is not None and self.server == "all_reduce":
            raise InputError(
                "network.server_bandwidth is given, but with network.server=all_reduce no node is "
                "the server; allowed: one of them"
            )
        if isinstance(self.server, int) and self.path is None:
            raise InputError(
                f"network.server is {self.server}, a site of a file, but network.path is empty"
            )


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """The section ``compute``: how long the simulated clients take for a local step.

    Parameters
    ----------
    name : {'constant', 'lognormal', 'trace', 'measured'}
        The same for all; around a median, by client and round; from a table; or what this computer
        takes on average in the first round.
    seconds : float
        Seconds of a local step; the median of 'lognormal'.
    client_sigma : float
        Standard deviation of the logarithm of the clients' speed, drawn once.
    round_sigma : float
        The same of a client's speed in a round, drawn anew in each.
    path : str, optional
        CSV file of 'trace': seconds of a step, a row for each round, a column for each client, or
        one for all. After the last row the first is next.
    """

    name: Literal["constant", "lognormal", "trace", "measured"] = "constant"
    seconds: Annotated[float, Ge(0)] = 0.0
    client_sigma: Annotated[float, Ge(0)] = 0.0
    round_sigma: Annotated[float, Ge(0)] = 0.0
    path: str | None = None

    def __post_init__(self) -> None:
        spread = self.client_sigma or self.round_sigma
        if self.name == "lognormal" and not (spread and self.seconds):
            raise InputError(
                "compute.name is 'lognormal', which needs compute.seconds above 0 and "
                "compute.client_sigma or compute.round_sigma above 0"
            )
        if (self.name == "trace") != (self.path is not None):
            raise InputError(
                f"compute.name is '{self.name}' and compute.path is "
                f"{'given' if self.path else 'empty'}; a trace needs a file, and nothing else does"
            )


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
    pairwise_multiplier : float
        p, the standard deviation over the clip norm of noise that clients who exchange models in a
        round add with opposite signs, so that it cancels in their sum (gossip).
    observers : {'none', 'messages', 'averages'}
        Whether to find what each client learns of each other in all rounds: from the models that
        its neighbours send, or from their weighted sums alone (gossip).
    """

    noise_multiplier: Annotated[float, Ge(1e-100)] | None = None
    clip_norm: Annotated[float, Gt(0)] | None = None
    where: Literal["central", "local"] = "central"
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    pairwise_multiplier: Annotated[float, Ge(0)] = 0.0
    observers: Literal["none", "messages", "averages"] = "none"

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) != (self.clip_norm is None):
            raise InputError(
                "privacy.noise_multiplier and privacy.clip_norm are needed together: noise is in "
                "units of the clip norm"
            )
        if self.noise_multiplier is None and (self.pairwise_multiplier or self.observers != "none"):
            raise InputError(
                "privacy.pairwise_multiplier and privacy.observers need privacy.noise_multiplier: "
                "without noise of its own a client is not private"
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
