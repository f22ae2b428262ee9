"""What ``--list`` shows: every name that a configuration can use, with one line about it."""

from __future__ import annotations

from collections.abc import Sequence

from mpifed.components.registry import (
    ALGORITHMS,
    COMPRESSORS,
    DATASETS,
    EXCHANGES,
    MODELS,
    SURROGATES,
    find,
    find_algorithm,
    summary,
)
from mpifed.config.experiment_files import experiment_names, read_experiment


def listing(kind: str) -> str:
    """The listing of ``kind``, or of all kinds."""
    kinds = {
        "experiments": _experiments,
        "algorithms": _algorithms,
        "datasets": lambda: _components("data", DATASETS),
        "models": lambda: _components("model", MODELS),
        "topologies": _topologies,
        "weights": _weights,
        "compressors": lambda: _components("compression", COMPRESSORS),
        "surrogates": lambda: _components("surrogate", SURROGATES),
    }
    if kind != "all":
        return kinds[kind]()
    return "\n\n".join(f"{name}\n{make()}" for name, make in kinds.items())


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join("  " + line.rstrip() for line in lines)


def _experiments() -> str:
    rows = []
    for name in experiment_names():
        mapping = read_experiment(name)
        rows.append((name, f"{mapping['algorithm']['name']} on {mapping['data']['name']}"))
    return _table(rows)


def _components(kind: str, table: dict[str, str]) -> str:
    return _table([(name, summary(find(kind, name))) for name in table])


def _algorithms() -> str:
    rows: list[tuple[str, ...]] = [("name", *EXCHANGES, "compression", "unseen clients", "")]
    for name in ALGORITHMS:
        algorithm = find_algorithm(name)
        allowed = EXCHANGES if algorithm.exchanges is None else algorithm.exchanges
        yes = "yes" if algorithm.communicates else "nothing sent"
        exchanges = [yes if exchange in allowed else "no" for exchange in EXCHANGES]
        serves = "yes" if algorithm.serves_unseen_clients() else "no"
        rows.append((name, *exchanges, algorithm.compressors, serves, summary(algorithm)))
    return _table(rows)


def _topologies() -> str:
    from topologies import FAMILIES, SCHEDULES

    rows = [(name, family.summary) for name, family in FAMILIES.items()]
    schedules = [(name, schedule.summary) for name, schedule in SCHEDULES.items()]
    return f"{_table(rows)}\n  as exchange.schedule:\n{_table(schedules)}"


def _weights() -> str:
    from topologies import WEIGHTS

    return _table([(name, rule.summary) for name, rule in WEIGHTS.items()])
