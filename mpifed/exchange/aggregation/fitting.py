"""What aggregators and clipping ask of the rest of a configuration."""

from __future__ import annotations

from typing import Any

from mpifed.components.registry import complete, find_algorithm
from mpifed.exchange.aggregation.base import build
from mpifed.exchange.compression import build as compressor
from mpifed.federation.participation import count_participants, fixed_fraction, is_unbiased


def completed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a server, without ``aggregator`` and ``clip`` that ask for nothing.

    Runs that average do not mention them, as those of earlier versions.
    """
    asked = complete("aggregator", options["aggregator"], "exchange.aggregator", "mean")
    found = {**options, "aggregator": asked}
    idle = {"aggregator": asked.name == "mean", "clip": options["clip"] is None}
    return {key: value for key, value in found.items() if not idle.get(key)}


def refusal(configuration: Any) -> str | None:
    """Return why the options ``aggregator`` and ``clip`` do not go with the others, or None."""
    options = configuration.exchange.options
    asked, clip = options.get("aggregator"), options.get("clip")
    if asked is None and clip is None:
        return None
    said = (
        f"exchange.clip is {clip:g}" if asked is None else f"exchange.aggregator is '{asked.name}'"
    )
    name = configuration.algorithm.name
    algorithm = find_algorithm(name)
    if not algorithm.communicates:
        return f"{said}, but {name} sends nothing; allowed: exchange.aggregator=mean, without clip"
    if algorithm.aggregates == "sums":
        return (
            f"{said}, but the server of {name} adds messages with weights of its own, not the "
            "updates of a model alone; allowed: exchange.aggregator=mean, without clip"
        )
    if (reason := biased(configuration, said)) is not None or asked is None:
        return reason
    if options["average_over"] == "all" or is_unbiased(configuration.participation):
        return (
            f"{said}, which counts those who take part alike; allowed: "
            "exchange.average_over=participants and participation.weights=renormalised"
        )
    return _too_few(configuration, said, algorithm.aggregates == "means")


def biased(configuration: Any, said: str) -> str | None:
    """Return why a biased compressor does not go with a server that takes no plain mean, or None.

    Parameters
    ----------
    configuration : Configuration
        The complete configuration.
    said : str
        What the server does; the beginning of the message.
    """
    section = configuration.compression
    if section.name == "none":
        return None
    if compressor(section).unbiased:
        return None
    return (
        f"{said} and compression is '{section.name}', whose error feedback makes up for errors in "
        "a mean alone; allowed: compression=none, or an unbiased compressor"
    )


def _too_few(configuration: Any, said: str, in_groups: bool) -> str | None:
    """Why an aggregator has too few updates to choose from, or None."""
    aggregator = build(configuration.exchange.options["aggregator"])
    assert aggregator is not None
    fraction, n = fixed_fraction(configuration.participation), configuration.n_training
    if aggregator.needs_fixed_number and (fraction is None or in_groups):
        why = (
            f"{configuration.algorithm.name} averages within groups of clients"
            if in_groups
            else "participation leaves their number to chance"
        )
        return f"{said}, which needs a fixed number of updates, but {why}; allowed: " + (
            "median, trimmed_mean, geometric_median" if in_groups else "a fraction"
        )
    count = n if fraction is None else count_participants(fraction, n)
    if count < aggregator.least(count):
        return (
            f"{said}, but at most {count} client{'s' * (count != 1)} take part in a round, with "
            "which its options make it a plain mean or leave it nothing to choose; allowed: more "
            "clients or participants, or other options"
        )
    return None
