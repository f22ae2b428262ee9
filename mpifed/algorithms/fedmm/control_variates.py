"""The rate alpha of FedMM's control variates V_i: where it is allowed, and how large it may be."""

from __future__ import annotations

from typing import Any


def refuse_under_gossip(configuration: Any) -> str | None:
    """Return why control variates or averages in pairs are refused under gossip, or None."""
    if configuration.exchange.options.get("asynchrony") == "pairwise":
        return (
            "exchange.asynchrony is 'pairwise', which adds moves to values that have changed "
            f"meanwhile, but those of {configuration.algorithm.name} are projected; allowed: "
            "none, wait_free"
        )
    if not configuration.algorithm.options["control_variate_rate"]:
        return None
    return (
        "algorithm.control_variate_rate is above 0, but control variates belong to a server; "
        "allowed with gossip: 0"
    )


def largest_rate(rate: float, omega: float) -> list[str]:
    """Return lines for the log: the largest rate of Theorem 1 (Dieuleveut et al. 2025).

    Parameters
    ----------
    rate : float
        The option ``control_variate_rate``.
    omega : float
        omega_p, the variance of a message, participation included.

    Examples
    --------
    >>> largest_rate(0.1, omega=3.0)
    ['messages vary with omega_p 3; Theorem 1 asks for a control_variate_rate of at most 0.25']
    """
    largest = 1 / (1 + omega)
    line = (
        f"messages vary with omega_p {omega:.4g}; Theorem 1 asks for a control_variate_rate of at "
        f"most {largest:.4g}"
    )
    above = f"warning: algorithm.control_variate_rate is {rate:g}, above that"
    return [line, above] if rate > largest else [line]
