"""Prints the tables of docs/evidence/tables/collaborators.md.

    python scripts/studies/collaborators_page.py DIRECTORY

DIRECTORY has the runs of ``mpifed reproduce collaborators``.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pandas as pd
import yaml

import topologies
from topologies.analysis.consensus import effective_neighbours, slem
from topologies.weights.table import mixing_matrix

SETTING = ["clients", "α", "distributions"]
METHODS = {
    ("fedem", "none"): "D-FedEM",
    ("fedem", "tracking"): "D-FedEM, tracking",
    ("fedavg", "none"): "D-SGD",
    ("fedavg", "tracking"): "D-SGD, tracking",
    ("local", "none"): "Local",
}


@functools.cache
def describe(n: int, name: str, degree: int | None, seed: int) -> tuple[float, float]:
    """Return the effective neighbours and the spectral gap of a graph of the study."""
    options = {} if degree is None else {"degree": degree}
    matrix = mixing_matrix(topologies.build_graph(name, n, seed, **options))
    return float(effective_neighbours(matrix)), 1 - slem(matrix)


def read(place: Path) -> dict[str, object]:
    """Return what is compared of a run."""
    settings = yaml.safe_load((place / "config.yaml").read_text(encoding="utf-8"))
    last = pd.read_csv(place / "metrics.csv").iloc[-1]
    n, exchange, name = settings["clients"], settings["exchange"], settings["algorithm"]["name"]
    neighbours, gap, degree = 1.0, 0.0, 0
    if name != "local":
        topology = exchange["topology"]
        degree = topology.get("degree") or {"ring": 2, "complete": n - 1}[topology["name"]]
        neighbours, gap = describe(n, topology["name"], topology.get("degree"), settings["seed"])
    return {
        "clients": n,
        "α": settings["data"]["dirichlet_alpha"],
        "distributions": settings["data"]["n_components"],
        "method": METHODS[name, exchange.get("correction", {"name": "none"})["name"]],
        "degree": degree,
        "effective neighbours": neighbours,
        "spectral gap": gap,
        "seed": settings["seed"],
        "accuracy": 100 * last["test_accuracy"],
        "Mbit": last["up_bits"] / 1e6,
        "seconds": last.get("simulated_seconds", float("nan")),
    }


def markdown(table: pd.DataFrame, digits: int = 1) -> str:
    """Return a table with its index as first columns."""
    flat = table.reset_index()
    shown = flat.map(
        lambda cell: (
            ("" if cell != cell else f"{cell:.{digits}f}")
            if isinstance(cell, float) and not float(cell).is_integer()
            else f"{cell:g}"
            if isinstance(cell, (int, float))
            else str(cell)
        )
    )
    head = f"| {' | '.join(map(str, flat.columns))} |\n|{' ---: |' * len(flat.columns)}\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in shown.to_numpy())


def main(directory: str) -> None:
    """Print the tables."""
    done = sorted(place.parent for place in Path(directory).rglob("DONE"))
    runs = pd.DataFrame([read(place) for place in done])
    alone = runs[runs.degree == 0].groupby(SETTING).accuracy.mean()
    for method in list(METHODS.values())[:4]:
        some = runs[runs.method == method]
        cells = some.pivot_table("accuracy", SETTING, "degree")
        cells.insert(0, "Local", alone)
        print(f"**{method}**\n\n{markdown(cells)}")
    some = runs[(runs.clients == 64) & (runs.distributions == 3) & (runs.method == "D-FedEM")]
    kept = ["effective neighbours", "spectral gap", "Mbit", "seconds"]
    print(markdown(some.groupby("degree")[kept].mean(), 2))
    whole = runs[runs.degree == runs.clients - 1].groupby([*SETTING, "method", "seed"]).accuracy
    gossip = runs[runs.degree > 0].copy()
    keys = pd.MultiIndex.from_frame(gossip[[*SETTING, "method", "seed"]])
    gossip["behind"] = whole.mean().reindex(keys).to_numpy() - gossip["accuracy"]
    gossip = gossip[gossip.degree < gossip.clients - 1]
    ranks = gossip.groupby("method")[["behind", "effective neighbours", "spectral gap", "degree"]]
    print(markdown(ranks.apply(lambda f: f.corr("spearman")["behind"].drop("behind")), 2))
    most = gossip.groupby(["method", "degree"]).behind.agg(["mean", "max"])
    print(markdown(most, 2))


if __name__ == "__main__":
    main(*sys.argv[1:])
