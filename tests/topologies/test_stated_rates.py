"""Consensus rates that papers state are those that are measured; docs/topologies.md has a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topologies import (
    SCHEDULES,
    ConsensusRate,
    Schedule,
    Static,
    build_graph,
    build_schedule,
    consensus_rate,
    mixing_matrix,
    parse_graph,
    parse_schedule,
)

SAMPLES = 200

# Probability with which a bound on a drawn matrix may fail.
FAILURE = 0.01

# A measured factor is within a stated one if its square is larger by at most this.
ROUNDING = 1e-9

# The relative tolerance of ``fmmc``, within which its factors are those of closed forms.
SOLVED = 1e-3


@dataclass(frozen=True)
class Statement:
    """A stated factor on the distance from consensus over tau rounds."""

    spec: Callable[[int], str]
    paper: str
    formula: str
    factor: Callable[[int], float]
    kind: str = "equal"
    exchangeable: bool = False
    weights: str = "metropolis_hastings"
    holds: Callable[[int], bool] = lambda n: True
    period: Callable[[int], float] | None = None


def _named(name: str, options: str = "") -> Callable[[int], str]:
    return lambda n: f"{name}:n={n}" + (f",{options}" if options else "")


def _is_power(base: int) -> Callable[[int], bool]:
    return lambda n: base ** round(math.log(n, base)) == n


def _is_square(n: int) -> bool:
    return math.isqrt(n) ** 2 == n and n >= 9


def prime_factors(n: int) -> list[int]:
    factors, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors


def _torus(n: int) -> float:
    side = math.isqrt(n)
    least = 0.2 + 0.8 * math.cos(2 * math.pi * (side // 2) / side)
    return max(0.6 + 0.4 * math.cos(2 * math.pi / side), abs(least))


def _shifts(n: int) -> int:
    """Return the M for which Theorem 1 of EquiTopo gives rho = 1/2."""
    return math.ceil(8 * math.log(2 * n / FAILURE) / (3 * 0.25))


def _base_length(base: int) -> Callable[[int], float]:
    return lambda n: 2 * math.log(n, base) + 2


def _received(n: int, peers: int) -> float:
    """Return the factor of EL-Local on the expected squared distance."""
    return (1 - (1 - peers / (n - 1)) ** n) / peers - 1 / (n - 1)


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        _named("ring"),
        "closed form",
        "1/3 + 2/3 cos(2 pi / n)",
        lambda n: 1 / 3 + 2 / 3 * math.cos(2 * math.pi / n),
        holds=lambda n: n >= 4,
    ),
    Statement(
        _named("path"), "Boyd et al. 2004", "cos(pi / n)",
        lambda n: math.cos(math.pi / n), weights="fmmc",
    ),
    Statement(
        _named("torus"), "closed form", "3/5 + 2/5 cos(2 pi / side)", _torus, holds=_is_square
    ),
    Statement(
        _named("hypercube"), "closed form", "(d - 1) / (d + 1)",
        lambda n: (math.log2(n) - 1) / (math.log2(n) + 1), holds=_is_power(2),
    ),
    Statement(
        _named("star"), "Boyd et al. 2004", "1 - 1 / (n - 1)",
        lambda n: 1 - 1 / (n - 1), weights="fmmc", holds=lambda n: n >= 3,
    ),
    Statement(_named("complete"), "closed form", "0", lambda n: 0.0),
    Statement(
        _named("random_regular", "degree=4"), "Friedman 2008", "(1 + 2 sqrt(d - 1)) / (d + 1)",
        lambda n: (1 + 2 * math.sqrt(3)) / 5, kind="limit", holds=lambda n: n > 4,
    ),
    Statement(
        _named("static_exponential"), "Ying et al. 2021", "1 - 2 / (1 + ceil(log2 n))",
        lambda n: 1 - 2 / (1 + math.ceil(math.log2(n))), holds=lambda n: n % 2 == 0,
    ),
    Statement(
        _named("one_peer_exponential"), "Ying et al. 2021", "0 after log2 n rounds",
        lambda n: 0.0, holds=_is_power(2), period=math.log2,
    ),
    Statement(
        _named("k_peer_exponential", "peers=3"), "closed form", "0 after log4 n rounds",
        lambda n: 0.0, holds=_is_power(4), period=lambda n: math.log(n, 4),
    ),
    *(
        Statement(
            _named(name, f"peers={peers}"), "Takezawa et al. 2023",
            f"0 after 2 log{peers + 1} n + 2 rounds at most",
            lambda n: 0.0, period=_base_length(peers + 1),
        )
        for name in ("base_k", "simple_base_k")
        for peers in (1, 4)
    ),
    Statement(
        _named("hyper_hypercube"), "Takezawa et al. 2023", "0 after a round for each prime factor",
        lambda n: 0.0, period=lambda n: len(prime_factors(n)),
    ),
    Statement(
        _named("null_cascade"), "closed form", "0 after sum p // 2 over prime factors",
        lambda n: 0.0, period=lambda n: sum(p // 2 for p in prime_factors(n)),
    ),
    Statement(
        lambda n: f"d_equistatic:n={n},shifts={_shifts(n)}", "Song et al. 2022, Th. 1",
        "1/2 with M = 8 ln(2 n / p) / (3 rho^2)", lambda n: 0.5, kind="at most",
    ),
    Statement(
        lambda n: f"u_equistatic:n={n},shifts={_shifts(n)}", "Song et al. 2022, Th. 2",
        "1/2 with M = 8 ln(2 n / p) / (3 rho^2)", lambda n: 0.5, kind="at most",
    ),
    Statement(
        _named("equitopo"), "Song et al. 2022, Th. 3", "sqrt(1 - 2 eta (1 - eta))",
        lambda n: math.sqrt(0.5), kind="at most",
    ),
    Statement(
        lambda n: f"od_equidyn:n={n},shifts={_shifts(n)}", "Song et al. 2022, Th. 3",
        "sqrt(1 - 2 eta (1 - eta) (1 - rho))", lambda n: math.sqrt(0.75), kind="at most",
    ),
    Statement(
        _named("ou_equidyn"), "Song et al. 2022, Th. 4", "sqrt(1 - 4/3 eta (1 - eta))",
        lambda n: math.sqrt(2 / 3), kind="at most",
    ),
    Statement(
        _named("epidemic", "sends=2"), "de Vos et al. 2023",
        "sqrt((1 - (1 - s / (n - 1))^n) / s - 1 / (n - 1))",
        lambda n: math.sqrt(_received(n, 2)), kind="at most", exchangeable=True,
        holds=lambda n: n > 3,
    ),
    Statement(
        _named("epidemic", "sends=2,regular=true"), "de Vos et al. 2023",
        "sqrt((1 - s / (n - 1)) / (s + 1))",
        lambda n: math.sqrt((1 - 2 / (n - 1)) / 3), holds=lambda n: n > 3,
    ),
)  # fmt: skip


def rates(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return the stated and the measured factors for n nodes."""
    records = []
    for statement in STATEMENTS:
        if not statement.holds(n):
            continue
        label, schedule = _case(statement.spec(n), statement.weights, n, seed)
        rate = _measured(schedule) if statement.exchangeable else consensus_rate(schedule)
        measured, stated = math.sqrt(max(0.0, 1 - rate.p)), statement.factor(n)
        most = statement.period(n) if statement.period is not None else None
        within = measured**2 <= stated**2 + ROUNDING + 3 * rate.standard_error
        near = abs(measured - stated) <= SOLVED * stated + 1e-6
        holds = (near or statement.kind != "equal") and within
        records.append(
            {
                "label": label,
                "paper": statement.paper,
                "stated": statement.formula,
                "factor": stated,
                "measured": measured,
                "tau": rate.tau,
                "most_rounds": most,
                "holds": None
                if statement.kind == "limit"
                else holds and (most is None or rate.tau <= max(1.0, most) + ROUNDING),
            }
        )
    return records


def _case(spec: str, weights: str, n: int, seed: int) -> tuple[str, Schedule]:
    """Return a schedule, or a graph with weights, and its label in the table."""
    if spec.partition(":")[0] in SCHEDULES:
        name, options = parse_schedule(spec.replace(f":n={n},", ":").removesuffix(f":n={n}"))
        return spec, build_schedule(name, n, seed=seed, **options)
    family, arguments = parse_graph(spec)
    graph = build_graph(family, **{"seed": seed, **arguments})
    return f"{spec} · {weights}", Static(mixing_matrix(graph, weights))


def _measured(schedule: Schedule) -> ConsensusRate:
    """Return the rate of an exchangeable schedule, measured on a random vector in each round."""
    random = np.random.default_rng(0)
    left = []
    for k in range(1, SAMPLES + 1):
        x = random.standard_normal(schedule.n)
        moved = schedule.matrix(k).to_sparse() @ (x - x.mean())
        left.append(moved.var() / x.var())
    error = float(np.std(left, ddof=1) / math.sqrt(SAMPLES))
    return ConsensusRate(1 - float(np.mean(left)), 1, error)


@pytest.mark.parametrize("n", [16, 25, 30])
def test_measured_rates_are_what_papers_state(n):
    found = rates(n)
    assert {record["holds"] for record in found} <= {True, None}
    assert len(found) > 15


def test_the_table_in_the_documentation_holds():
    text = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
    table = text.partition("<!-- rates -->\n")[2].partition("\n<!-- /rates -->")[0]
    columns = ["label", "paper", "stated", "factor", "measured"]
    rows = [columns, ["---"] * len(columns)]
    inexact = [record for record in rates(64) if record["factor"]]
    rows += [[written(record[name]) for name in columns] for record in inexact]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    assert table == lines.replace(" · metropolis_hastings", "")


def written(cell):
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
