"""The commands rates, rank and throughput: tables that need no graph on the command line.

All raise ``TopologyError`` for bad input.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from topologies.cases import plan
from topologies.clock import cpu_seconds
from topologies.network import read_network
from topologies.output import check_outputs, print_json, print_table, shown
from topologies.overlays import check_overlay, design
from topologies.parameters import TopologyError
from topologies.published import rates
from topologies.ranking import candidates, rank, read_budget
from topologies.throughput import cycle_time
from topologies.timing import at_sites, one_site
from topologies.writing import write_table


def ranked(options: argparse.Namespace) -> None:
    """Print the topologies and schedules that keep a budget, the best first.

    Parameters
    ----------
    options : argparse.Namespace
        ``graphs`` (candidates, or none for the usual ones), ``n``, ``budget``, ``by``, ``weights``,
        ``accuracy``, ``message_bytes``, ``network``, ``latency``, ``bandwidth``, ``compute``,
        ``seed``, ``most``, ``csv`` and ``json``.
    """
    check_outputs(options.csv, None)
    n, budget = options.n, read_budget(options.budget)
    if options.network is None:
        links = one_site(n, options.latency, options.bandwidth)
    elif options.latency or options.bandwidth < math.inf:
        raise TopologyError("--network has its own latencies and rates; leave the others out")
    else:
        links = at_sites(read_network(options.network), n)
    plans = [plan(text, options.weights, "static", n) for text in options.graphs]
    plans = plans or candidates(n, budget.get("degree", math.inf))
    records = rank(
        plans,
        links,
        budget,
        by=options.by,
        work=options.compute,
        message_bytes=options.message_bytes,
        accuracy=options.accuracy,
        seed=options.seed,
    )
    _show(records, options, options.most)


def stated_rates(options: argparse.Namespace) -> None:
    """Print the consensus rates that papers state beside the measured ones.

    Parameters
    ----------
    options : argparse.Namespace
        ``n``, ``seed``, ``csv``, ``json`` and ``markdown``.
    """
    check_outputs(options.csv, None)
    records = rates(options.n, options.seed)
    if options.markdown:
        print(markdown(records))
    else:
        _show(records, options)


def cycle_times(options: argparse.Namespace) -> None:
    """Print the overlays for a network, with the seconds per round of each.

    Parameters
    ----------
    options : argparse.Namespace
        ``network``, ``overlays``, ``message_bytes``, ``local_steps``, ``csv`` and ``json``.
    """
    for name in options.overlays:
        check_overlay(name)
    check_outputs(options.csv, None)
    network = read_network(options.network)
    cost = {"message_bits": options.message_bytes * 8, "local_steps": options.local_steps}
    rows: list[dict[str, Any]] = []
    for name in options.overlays:
        start = cpu_seconds()
        overlay = design(name, network, **cost)
        seconds = cycle_time(overlay, network, **cost)
        degree = max((degree for _, degree in overlay.out_degree), default=0)
        rows.append(
            {
                "overlay": name,
                "cycle_time": seconds,
                "rounds_per_second": 1 / seconds if seconds > 0 else None,
                "arcs": overlay.number_of_edges(),
                "most_links": degree,
                "seconds": cpu_seconds() - start,
            }
        )
    _show(rows, options)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return records of equal keys as a Markdown table, numbers with four digits.

    Parameters
    ----------
    rows : list of dict
        The records.

    Returns
    -------
    str
        The table.

    Examples
    --------
    >>> print(markdown([{"a": 0.123456, "b": None}]))
    | a | b |
    | --- | --- |
    | 0.1235 | - |
    """
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    for row in rows:
        lines.append(
            [f"{cell:.4g}" if isinstance(cell, float) else shown(cell) for cell in row.values()]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _show(rows: list[dict[str, Any]], options: argparse.Namespace, most: int | None = None) -> None:
    """Write and print a table, of which a terminal gets the first ``most`` rows."""
    if options.csv:
        write_table(rows, options.csv)
    if options.json:
        print_json(rows)
    else:
        print_table(rows[:most], tuple(rows[0]))
