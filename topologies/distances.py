"""Latencies of links from their lengths, and lengths from coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import networkx as nx

from topologies.parameters import TopologyError

EARTH = 6371.0
"""The mean radius of the earth in kilometres."""

SECONDS_PER_KM, SECONDS_PER_LINK = 0.0085e-3, 4e-3
"""Latency of a link by its length: 0.0085 ms a kilometre and 4 ms (Marfoq et al. 2020)."""


def latency_over(kilometres: float) -> float:
    """Return the latency of a link in seconds: 0.0085 ms a kilometre, and 4 ms.

    Marfoq et al. 2020, section 4, after Gueye et al. 2006.

    Parameters
    ----------
    kilometres : float
        The length of the link.

    Returns
    -------
    float
        Seconds.

    Examples
    --------
    >>> round(latency_over(1000), 6)
    0.0125
    """
    return SECONDS_PER_KM * kilometres + SECONDS_PER_LINK


def great_circle(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the distance of two places on the earth in kilometres, by the haversine formula.

    Parameters
    ----------
    one, other : tuple of float
        Latitude and longitude in degrees.

    Returns
    -------
    float
        Kilometres.

    Examples
    --------
    >>> round(great_circle((0, 0), (0, 90)))
    10008
    """
    (a, b), (c, d) = (map(math.radians, place) for place in (one, other))
    share = math.sin((c - a) / 2) ** 2 + math.cos(a) * math.cos(c) * math.sin((d - b) / 2) ** 2
    return 2 * EARTH * math.asin(math.sqrt(min(1.0, share)))


def with_latencies(underlay: nx.Graph) -> nx.Graph:
    """Return a copy of an underlay in which links that have a length have a latency too.

    Parameters
    ----------
    underlay : networkx.Graph
        A graph with attributes as in ``network.read_network``.

    Returns
    -------
    networkx.Graph
        The copy; a given ``latency`` is kept.

    Raises
    ------
    TopologyError
        If a distance or a coordinate is not a number in its range.
    """
    made = underlay.copy()
    places = {node: _place(node, attributes) for node, attributes in made.nodes(data=True)}
    for i, j, link in made.edges(data=True):
        if "latency" in link:
            continue
        one, other = places[i], places[j]
        if "distance" in link:
            link["latency"] = latency_over(_within(link["distance"], "distance", 0, math.inf))
        elif one is not None and other is not None:
            link["latency"] = latency_over(great_circle(one, other))
    return made


def _place(node: Any, attributes: Mapping[str, Any]) -> tuple[float, float] | None:
    low = {str(name).lower(): value for name, value in attributes.items()}
    if "latitude" not in low or "longitude" not in low:
        return None
    return (
        _within(low["latitude"], f"latitude of {node!r}", -90, 90),
        _within(low["longitude"], f"longitude of {node!r}", -180, 180),
    )


def _within(value: Any, what: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high or not math.isfinite(number):
        wanted = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise TopologyError(
            f"the network has the {what} {value!r}, which must be a number {wanted}"
        )
    return number
