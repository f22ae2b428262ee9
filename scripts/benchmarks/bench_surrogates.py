"""Benchmarks of surrogates: lasso codes, and the arithmetic of a round of FedMM.

Each prints one JSON object a line: {"name", "value", "unit", "detail"}. Seconds are CPU seconds of
one process with one thread, median of ``detail.repeats``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from bench_figures import cpu_seconds, report, run

from mpifed.random import stream  # imports mpifed, which sets up MKL before torch starts

REPEATS = 9
PENALTY, ETA = 0.1, 0.2
CLIENTS = 10


def mixes(samples: int, dimension: int, atoms: int, density: float = 0.2) -> tuple[Any, Any]:
    """Return the atoms, standard normal, and sparse mixes of them (samples, dimension)."""
    import torch

    torch.set_num_threads(1)
    draws = stream(0, "bench/mixes")
    theta = draws.standard_normal((dimension, atoms))
    codes = draws.standard_normal((samples, atoms)) * (draws.random((samples, atoms)) < density)
    return torch.from_numpy(theta), torch.from_numpy(codes @ theta.T)


def ratings(samples: int, movies: int) -> Any:
    """Return made-up ratings 1 to 5 of rank 8 plus noise, a fifth of them present, else 0."""
    import torch

    torch.set_num_threads(1)
    draws = stream(0, "bench/ratings")
    tastes, kinds = draws.standard_normal((samples, 8)), draws.standard_normal((movies, 8))
    noise = 0.6 * draws.standard_normal((samples, movies))
    stars = np.clip(np.round(3.6 + 0.35 * tastes @ kinds.T + noise), 1, 5)
    chance = 2 * np.outer(draws.beta(2, 3, samples) + 0.1, draws.beta(1, 4, movies))
    return torch.from_numpy(stars * (draws.random((samples, movies)) < np.minimum(chance, 1)))


def problem(dimension: int, atoms: int) -> Any:
    """Return the dictionary problem with lasso codes and ridge atoms."""
    from mpifed.data.base import Description
    from mpifed.surrogates.dictionary import dictionary

    none = np.zeros(0, np.int64)
    data = Description("bench", (dimension,), 0, none, none, none, "unlabelled")
    return dictionary(data, n_atoms=atoms, code_penalty=PENALTY, atom_penalty=ETA)


def after(surrogate: Any, z: Any, rounds: int) -> Any:
    """Return theta after ``rounds`` steps of MM from its initial value."""
    import torch

    theta = torch.from_numpy(surrogate.init(stream(0, "bench/init")))
    for _ in range(rounds):
        s = surrogate.statistics(z, theta, np.array([0, len(z)]))[0]
        theta = surrogate.minimiser(s)
    return theta


def lasso_codes() -> None:
    """Time the codes of 1000 samples against scikit-learn's ``lasso_lars``, in turns."""
    from sklearn.decomposition import sparse_encode

    from mpifed.surrogates.lasso import codes

    true, z = mixes(1000, 500, 50)
    surrogate, stars = problem(500, 50), ratings(1000, 500)
    cases = {"true atoms": (true, z), "random atoms": (after(surrogate, z, 0).view(500, 50), z)}
    for rounds in (0, 3, 20):
        cases[f"ratings after {rounds} steps"] = (
            after(surrogate, stars, rounds).view(500, 50),
            stars,
        )
    detail: dict[str, Any] = {}
    for name, (atoms, samples) in cases.items():
        rows, columns = samples.numpy(), np.ascontiguousarray(atoms.T.numpy())

        def lars(rows: Any = rows, columns: Any = columns) -> Any:
            return sparse_encode(rows, columns, algorithm="lasso_lars", alpha=PENALTY)

        ours = median(cpu_seconds(lambda a=atoms, z=samples: codes(a, z, PENALTY), REPEATS))
        (theirs,) = cpu_seconds(lars, 1)
        values = [
            0.5 * ((rows - h @ columns) ** 2).sum(1) + PENALTY * np.abs(h).sum(1)
            for h in (codes(atoms, samples, PENALTY).numpy(), lars())
        ]
        detail[name] = {
            "mpifed_ms": round(1e3 * ours, 2),
            "lasso_lars_ms": round(1e3 * theirs, 1),
            "ratio": round(theirs / ours, 1),
            "largest_excess": float(((values[0] - values[1]) / (0.5 * (rows**2).sum(1))).max()),
        }
    worst = min(case["ratio"] for case in detail.values())
    report("lasso_codes", worst, "times faster, worst case", repeats=REPEATS, cases=detail)


def fedmm_round(name: str, dimension: int, atoms: int, z: Any, rounds: int) -> None:
    """Time what ten clients and the server compute in a round with 8-bit messages."""
    import torch

    from mpifed.exchange.compression import Quantise
    from mpifed.federation.clients import Draws

    surrogate, quantise, ids = problem(dimension, atoms), Quantise(), np.arange(CLIENTS)
    theta = after(surrogate, z, rounds)
    s = surrogate.surrogate_of(theta)
    offsets = np.linspace(0, len(z), CLIENTS + 1).astype(np.int64)
    means = surrogate.statistics(z, theta, offsets)
    matrix = theta.view(dimension, atoms)
    bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    h = surrogate.code(z, matrix)

    def products() -> None:
        for a, b in bounds:
            torch.mm(h[a:b].T, h[a:b])
            torch.mm(z[a:b].T, h[a:b])

    parts: dict[str, Callable[[], Any]] = {
        "statistics": lambda: surrogate.statistics(z, theta, offsets),
        "of these the codes": lambda: surrogate.code(z, matrix),
        "and the products": products,
        "quantisation": lambda: quantise(means - s, Draws(0, 1), ids),
        "projection": lambda: surrogate.project(means.mean(0)),
        "minimiser": lambda: surrogate.minimiser(means.mean(0)),
    }
    seconds = {part: median(cpu_seconds(action, REPEATS)) for part, action in parts.items()}
    total = sum(seconds[part] for part in ("statistics", "quantisation", "projection", "minimiser"))
    report(
        name,
        round(1e3 * total, 2),
        "CPU ms",
        clients=CLIENTS,
        samples=len(z),
        dimension=dimension,
        atoms=atoms,
        mm_steps_before=rounds,
        share_of_codes_and_products=round(
            (seconds["of these the codes"] + seconds["and the products"]) / total, 2
        ),
        repeats=REPEATS,
        ms={part: round(1e3 * value, 2) for part, value in seconds.items()},
    )


def unit_balls() -> None:
    """Time T with atoms in unit balls along online dictionary learning, against descent."""
    import torch

    from mpifed.data.base import Description
    from mpifed.surrogates.dictionary import dictionary

    none = np.zeros(0, np.int64)
    data = Description("bench", (20,), 0, none, none, none, "unlabelled")
    surrogate = dictionary(data, n_atoms=15, code_penalty=PENALTY, atoms="unit_ball")
    z = mixes(60, 20, 15)[1]
    detail: dict[str, Any] = {}
    for rule in ("inverse_kept", "inverse"):
        theta = torch.from_numpy(surrogate.init(stream(0, "bench/init")))
        s = surrogate.surrogate_of(theta)
        ours, theirs, excess = [], [], []
        for t, sample in enumerate(z, 1):
            gamma = 1 / (t + (rule == "inverse_kept"))
            seen = surrogate.statistics(sample[None], theta, np.array([0, 1]))[0]
            s = surrogate.project(s + gamma * (seen - s))
            ours += cpu_seconds(lambda s=s: surrogate.minimiser(s), 1)
            theta = surrogate.minimiser(s)
            if t % 6 == 0:
                first, second = s[:225].view(15, 15).numpy(), s[225:].view(20, 15).numpy()
                found: list[Any] = []
                theirs += cpu_seconds(
                    lambda a=first, b=second, to=found: to.append(descent(a, b)), 1
                )
                values = [
                    0.5 * np.sum(d @ first * d) - np.sum(d * second)
                    for d in (theta.view(20, 15).numpy(), found[0])
                ]
                excess.append((values[0] - values[1]) / abs(values[1]))
        detail[rule] = {
            "ms": round(1e3 * median(ours), 2),
            "worst_ms": round(1e3 * max(ours), 2),
            "descent_ms": round(1e3 * median(theirs), 1),
            "ratio": round(median(theirs) / median(ours), 1),
            "largest_excess": float(max(excess)),
        }
    worst = min(case["ratio"] for case in detail.values())
    report("unit_balls", worst, "times faster, worst case", repeats=len(z), cases=detail)


def descent(first: Any, second: Any) -> Any:
    """Return the atoms in unit balls by exact minimisation over one after the other, in numpy."""
    atoms, weights = np.zeros_like(second.T), first.diagonal()
    for _ in range(2000):
        before = atoms.copy()
        for k in np.flatnonzero(weights > 0):
            moved = atoms[k] + (second[:, k] - first[k] @ atoms) / weights[k]
            atoms[k] = moved / max(1.0, float(np.sqrt(moved @ moved)))
        if np.abs(atoms - before).max() <= 1e-12:
            break
    return atoms.T


BENCHMARKS: dict[str, Callable[[], None]] = {
    "lasso_codes": lasso_codes,
    "unit_balls": unit_balls,
    "fedmm_round_small": lambda: fedmm_round("fedmm_round_small", 20, 15, mixes(500, 20, 15)[1], 0),
    "fedmm_round_small_trained": lambda: fedmm_round(
        "fedmm_round_small_trained", 20, 15, mixes(500, 20, 15)[1], 30
    ),
    "fedmm_round_ratings": lambda: fedmm_round(
        "fedmm_round_ratings", 500, 50, ratings(500, 500), 0
    ),
    "fedmm_round_ratings_ill": lambda: fedmm_round(
        "fedmm_round_ratings_ill", 500, 50, ratings(500, 500), 3
    ),
    "fedmm_round_ratings_full": lambda: fedmm_round(
        "fedmm_round_ratings_full", 500, 50, ratings(2500, 500), 0
    ),
    "fedmm_round_ratings_full_ill": lambda: fedmm_round(
        "fedmm_round_ratings_full_ill", 500, 50, ratings(2500, 500), 3
    ),
}


if __name__ == "__main__":
    sys.exit(run(BENCHMARKS, sys.argv[1:]))
