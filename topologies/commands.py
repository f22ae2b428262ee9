"""The commands of ``python -m topologies``: one function each, on the parsed command line.

Each function checks its input first, then computes, then prints or writes. All raise
``TopologyError`` for bad input.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from topologies.cases import Plan, carry_out, plan
from topologies.messages import gossip, messages_received
from topologies.output import check_outputs, print_json, print_table, save_figure, shown
from topologies.parameters import TopologyError
from topologies.writing import check_empty, check_format, write_matrix, write_table

MOST_ROUNDS = 1_000_000
"""Largest number of rounds that are shown, drawn or written."""

COLUMNS = (
    "slem",
    "consensus_rate",
    "tau",
    "mixing_time",
    "effective_neighbours",
    "min_self_weight",
    "messages_per_round",
    "certified_gap",
    "seconds",
)


def show(options: argparse.Namespace) -> None:
    """Print the description of one graph with its weights and schedule.

    Parameters
    ----------
    options : argparse.Namespace
        ``graph``, ``weights``, ``schedule``, ``n``, ``seed``, ``accuracy``, ``message_bytes`` and
        ``json``.
    """
    what = _plan(options)
    record = carry_out(what, options.seed).record(**_measures(options))
    if options.json:
        print_json(record)
        return
    for key, value in record.items():
        print(f"{key:22s} {shown(value)}")


def compare(options: argparse.Namespace) -> None:
    """Print a table of several graphs, weights and schedules; write it and a picture if asked for.

    Parameters
    ----------
    options : argparse.Namespace
        As for :func:`show`, with lists ``graphs``, ``weights`` and ``schedules``, and the files
        ``csv`` and ``plot``.
    """
    plans = [
        plan(text, weights, schedule, options.n)
        for text in options.graphs
        for schedule in options.schedules
        for weights in options.weights
    ]
    # A schedule without weights is the same under every rule.
    plans = list({one.label: one for one in plans}.values())
    check_outputs(options.csv, options.plot)
    cases = [carry_out(one, options.seed) for one in plans]
    records = [{"label": case.plan.label, **case.record(**_measures(options))} for case in cases]
    if options.csv:
        write_table(records, options.csv)
    if options.plot:
        from topologies.plots import comparison

        save_figure(comparison(records, [case.plan.label for case in cases]), options.plot)
    if options.json:
        print_json(records)
    else:
        print_table(records, ("label", *COLUMNS))


def show_rounds(options: argparse.Namespace) -> None:
    """Print the rounds of a schedule.

    Parameters
    ----------
    options : argparse.Namespace
        As for :func:`show`, with ``rounds``, the number of rounds.
    """
    _check_rounds(options.rounds)
    case = carry_out(_plan(options), options.seed)
    count = options.rounds or case.schedule.period or 8
    rounds: list[dict[str, Any]] = []
    for k in range(1, count + 1):
        matrix = case.schedule.matrix(k)
        received = messages_received(matrix)
        rounds.append(
            {
                "round": k,
                "edges": len(matrix.edges),
                "messages": int(received.sum()),
                "most_messages": int(received.max()),
                "min_self_weight": float(matrix.self_weights.min()),
                "sha256": matrix.sha256,
            }
        )
    record = case.record(**_measures(options))
    if options.json:
        print_json({**record, "rounds": rounds})
        return
    for key in ("schedule", "n", "symmetric", "doubly_stochastic", "period", "tau"):
        print(f"{key:22s} {shown(record[key])}")
    for key in ("consensus_rate", "consensus_rate_error", "mixing_time", "messages_per_round"):
        print(f"{key:22s} {shown(record[key])}")
    print_table([{**row, "sha256": row["sha256"][:12]} for row in rounds], tuple(rounds[0]))


def export(options: argparse.Namespace) -> None:
    """Write a matrix to a file, or the rounds of a schedule to a directory of them.

    Parameters
    ----------
    options : argparse.Namespace
        The graph as for :func:`show`, ``output`` and ``rounds``.
    """
    _check_rounds(options.rounds)
    what = _plan(options)
    target = Path(options.output)
    if what.schedule == "static":
        check_format(target)
    else:
        check_empty(target)
    schedule = carry_out(what, options.seed).schedule
    if what.schedule == "static":
        write_matrix(schedule.matrix(1), target)
        return
    count = options.rounds or schedule.period
    if count is None:
        raise TopologyError(f"the schedule {what.schedule} does not repeat: say how many --rounds")
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise TopologyError(f"cannot make {str(target)!r}: {error.strerror}") from error
    for k in range(1, count + 1):
        write_matrix(schedule.matrix(k), target / f"round-{k:06d}.npz")


def plot(options: argparse.Namespace) -> None:
    """Draw a graph, its matrix, its spectrum, its consensus or its rounds.

    Parameters
    ----------
    options : argparse.Namespace
        The graph as for :func:`show`, ``kind``, ``output`` and ``rounds``.
    """
    _check_rounds(options.rounds)
    what = _plan(options)
    check_outputs(None, options.output)
    case = carry_out(what, options.seed)
    from topologies import plots

    schedule, title = case.schedule, what.label
    if options.kind == "graph":
        figure = plots.draw_graph(schedule.matrix(1), title=title)
    elif options.kind == "heatmap":
        figure = plots.heat_map(schedule.matrix(1), title=title)
    elif options.kind == "spectrum":
        figure = plots.spectrum_plot({title: schedule.matrix(1)})
    elif options.kind == "decay":
        run = gossip(schedule, options.rounds or 50, seed=options.seed)
        figure = plots.consensus_decay({title: run})
    else:
        count = options.rounds or min(schedule.period or 8, 16)
        figure = plots.round_panels(schedule, count, title=title)
    save_figure(figure, options.output)


def dry_run(options: argparse.Namespace) -> None:
    """Run gossip on random vectors; print the measured and the predicted contraction.

    Parameters
    ----------
    options : argparse.Namespace
        The graph as for :func:`show`, ``rounds``, ``width``, ``csv``, ``plot`` and ``json``.
    """
    what = _plan(options)
    check_outputs(options.csv, options.plot)
    run = gossip(
        carry_out(what, options.seed).schedule,
        options.rounds,
        width=options.width,
        seed=options.seed,
    )
    pairs = zip(run.distance.tolist(), run.predicted.tolist(), strict=True)
    rows = [
        {"round": k, "distance": distance, "predicted": predicted}
        for k, (distance, predicted) in enumerate(pairs)
    ]
    if options.csv:
        write_table(rows, options.csv)
    if options.plot:
        from topologies.plots import consensus_decay

        save_figure(consensus_decay({what.label: run}), options.plot)
    summary = {
        "label": what.label,
        "rounds": options.rounds,
        "measured_contraction": run.contraction,
        "predicted_contraction": run.rate.contraction,
        "consensus_rate": run.rate.p,
        "tau": run.rate.tau,
        "final_distance": float(run.distance[-1]),
        "mean_drift": run.drift,
    }
    if options.json:
        print_json({**summary, "distance": run.distance.tolist()})
        return
    for key, value in summary.items():
        print(f"{key:22s} {shown(value)}")


def _plan(options: argparse.Namespace) -> Plan:
    what = plan(options.graph, options.weights, options.schedule, options.n)
    if what.family is None and options.schedule != "static":
        raise TopologyError(
            f"{what.schedule} is a schedule itself, so --schedule {options.schedule} has no use; "
            f"its parameters go behind its name, as in {what.schedule}:n=8,drop_edges=0.1"
        )
    return what


def _check_rounds(rounds: int | None) -> None:
    if rounds is not None and rounds > MOST_ROUNDS:
        raise TopologyError(f"--rounds is {rounds}; at most {MOST_ROUNDS} are shown or written")


def _measures(options: argparse.Namespace) -> dict[str, float]:
    return {"accuracy": options.accuracy, "message_bytes": options.message_bytes}
