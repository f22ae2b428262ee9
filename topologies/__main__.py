"""``python -m topologies``: study graphs, mixing matrices and schedules."""

from __future__ import annotations

import argparse
import csv
import inspect
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import networkx as nx

from topologies.analysis.consensus import MESSAGE_BYTES, gossip, messages_received
from topologies.analysis.measures import Plan, carry_out, plan
from topologies.analysis.published import rates
from topologies.analysis.ranking import BUDGETS, candidates, rank, read_budget
from topologies.graphs.families import FAMILIES
from topologies.inputs import (
    TopologyError,
    check_replaceable,
    choice_in,
    closest,
    cpu_seconds,
    nearest,
    number,
    one_line,
    one_thread,
    replacing,
    sentence,
)
from topologies.links.network import at_sites, one_site, read_network
from topologies.links.overlays import OVERLAYS, check_overlay, cycle_time, design
from topologies.matrix import MixingMatrix
from topologies.schedules.table import SCHEDULES
from topologies.schema import Entry
from topologies.weights.rules import WEIGHTS


def main(arguments: list[str] | None = None) -> int:
    """Run one command of ``python -m topologies``."""
    try:
        options = parser().parse_args(arguments)
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        with one_thread():
            options.run(options)
        sys.stdout.flush()
    except TopologyError as error:
        if os.environ.get("MPIFED_DEBUG") == "1":
            raise
        print(one_line(f"topologies: {error}"), file=sys.stderr)
        return 2
    except MemoryError:
        print("topologies: there is not enough memory for this graph", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class _Parser(argparse.ArgumentParser):
    """argparse, except that a wrong argument raises ``TopologyError``."""

    def error(self, message: str) -> NoReturn:
        choice = choice_in(message)
        if choice is None:
            raise TopologyError(sentence(message, self._known_options()))
        place, given, names = choice
        graph = nearest(given.partition(":")[0], FAMILIES) if place == "COMMAND" else None
        if graph is not None and nearest(given, names) is None:
            raise TopologyError(
                f"{place} is {given!r}; did you mean 'show {graph}'? allowed: {', '.join(names)}"
            )
        raise TopologyError(f"{place} is {given!r}; {closest(given, names)}")

    def _known_options(self) -> set[str]:
        """Return the options of the command and, where none is chosen yet, of all"""
        options = set(self._option_string_actions)
        for action in self._actions:
            for inner in action.choices.values() if isinstance(action.choices, dict) else ():
                options |= set(inner._option_string_actions)
        return options


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    made = _Parser(
        prog=_program(),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_subparsers(required=True, metavar="COMMAND").add_parser

    names = add("list", help="the graph families, weight rules and schedules")
    names.add_argument("what", nargs="?", choices=["families", "weights", "schedules"])
    _finish(names, list_names)

    show = add("show", help="one graph and what gossips on it")
    _graph(show)
    _measure_options(show)
    _finish(show, describe_one)

    compare = add("compare", help="several graphs, weights and schedules: a table and a picture")
    compare.add_argument("graphs", metavar="GRAPH", nargs="+")
    compare.add_argument("--weights", nargs="+", default=["fmmc"], metavar="RULE")
    compare.add_argument("--schedules", nargs="+", default=["static"], metavar="SCHEDULE")
    _common(compare)
    _measure_options(compare)
    compare.add_argument("--csv", metavar="FILE", help="write the whole table")
    compare.add_argument("--plot", metavar="FILE", help="write the picture")
    _finish(compare, describe_several)

    rounds = add("schedule", help="the rounds of a schedule")
    _graph(rounds)
    _measure_options(rounds)
    rounds.add_argument("--rounds", type=_count, help="how many to show (default: a period, or 8)")
    _finish(rounds, show_rounds)

    export = add("export", help="write a matrix, or the rounds of a schedule")
    _graph(export)
    export.add_argument("--output", required=True, metavar="PATH", help="file, or directory")
    export.add_argument("--rounds", type=_count, help="how many (default: a period)")
    export.set_defaults(run=write_rounds)

    plot = add("plot", help="draw a graph, its matrix, spectrum, consensus or rounds")
    _graph(plot)
    kinds = ["graph", "heatmap", "spectrum", "decay", "rounds"]
    plot.add_argument("--kind", choices=kinds, default="graph")
    plot.add_argument("--output", required=True, metavar="FILE", help="ends in .png, .pdf or .svg")
    plot.add_argument("--rounds", type=_count, help="of decay and rounds")
    plot.set_defaults(run=write_picture)

    gossip = add("gossip", help="average random vectors: measured against promised contraction")
    _graph(gossip)
    gossip.add_argument("--rounds", type=_count, default=100)
    gossip.add_argument("--width", type=_count, default=16, help="entries of a vector")
    gossip.add_argument("--csv", metavar="FILE", help="write the distance in each round")
    gossip.add_argument("--plot", metavar="FILE", help="write a picture of it")
    _finish(gossip, dry_run)

    stated = add("rates", help="consensus rates that papers state, beside measured ones")
    stated.add_argument("--n", type=_several, default=64, help="number of nodes (default 64)")
    stated.add_argument("--seed", type=_natural, default=0, help="of all that is drawn (default 0)")
    stated.add_argument("--csv", metavar="FILE", help="write the table")
    stated.add_argument("--markdown", action="store_true", help="print it as Markdown")
    _finish(stated, stated_rates)

    rank = add("rank", help="which topology and schedule for n nodes and a budget")
    rank.add_argument("graphs", metavar="GRAPH", nargs="*", help="candidates (default: the usual)")
    rank.add_argument("--n", type=_several, required=True, help="number of nodes")
    rank.add_argument(
        "--budget", nargs="+", default=[], metavar="KEY=LIMIT", help=", ".join(BUDGETS)
    )
    rank.add_argument("--by", choices=[key for key in BUDGETS if key != "degree"], default="rounds")
    rank.add_argument("--weights", default="fmmc", metavar="RULE", help="of the candidates given")
    rank.add_argument("--accuracy", type=_fraction, default=1e-3, help="of consensus (0.001)")
    rank.add_argument("--message-bytes", type=_positive, default=MESSAGE_BYTES)
    rank.add_argument("--latency", type=_seconds, default=0.0, help="seconds of a link (0)")
    rank.add_argument("--bandwidth", type=_positive, default=math.inf, help="bits per second")
    rank.add_argument("--compute", type=_seconds, default=0.0, help="seconds of work a round (0)")
    rank.add_argument("--network", metavar="FILE", help="links, in place of --latency and so on")
    rank.add_argument("--seed", type=_natural, default=0, help="of all that is drawn (default 0)")
    rank.add_argument("--most", type=_count, default=12, help="rows to print (default 12)")
    rank.add_argument("--csv", metavar="FILE", help="write the table")
    _finish(rank, ranked)

    throughput = add("throughput", help="cycle time of overlays on given links")
    throughput.add_argument("network", metavar="NETWORK", help=".csv of delays, .graphml or .gml")
    throughput.add_argument("--overlays", nargs="+", default=list(OVERLAYS))
    throughput.add_argument("--message-bytes", type=_positive, default=MESSAGE_BYTES)
    throughput.add_argument("--local-steps", type=_count, default=1)
    throughput.add_argument("--csv", metavar="FILE")
    _finish(throughput, cycle_times)
    return made


def _program() -> str:
    started = Path(sys.argv[0]).name
    return "python -m topologies" if started.endswith(".py") else f"{started} topologies"


def _graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="GRAPH", help="family:key=value,...")
    parser.add_argument("--weights", default="fmmc", metavar="RULE", help="default: fmmc")
    parser.add_argument("--schedule", default="static", metavar="SCHEDULE", help="default: static")
    _common(parser)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_natural, default=0, help="of all that is drawn (default 0)")
    parser.add_argument("--n", type=_count, help="number of nodes where the graph does not say")


def _measure_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accuracy", type=_fraction, default=1e-2, help="of mixing_time (0.01)")
    parser.add_argument("--message-bytes", type=_positive, default=MESSAGE_BYTES)


def _finish(parser: argparse.ArgumentParser, run: object) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


_count = number(int, "an integer from 1 to 2**63 - 1", lambda value: 1 <= value < 2**63)
_several = number(int, "an integer from 2 to 2000", lambda value: 2 <= value <= 2000)
_natural = number(int, "an integer of at least 0", lambda value: value >= 0)
_positive = number(float, "a number above 0 and below 1e300", lambda value: 0 < value < 1e300)
_seconds = number(float, "a number of at least 0", lambda value: 0 <= value < 1e300)
_fraction = number(float, "a number in (0, 1)", lambda value: 0 < value < 1)


def write_matrix(matrix: MixingMatrix, path: str | Path) -> None:
    """Write the matrix in the format of the path's suffix, one of ``FORMATS``."""
    path = Path(path)
    check_format(path)
    if not matrix.symmetric and path.suffix in (".edges", ".graphml"):
        raise TopologyError(f"a directed matrix cannot be written to {path.name}: use .npz or .csv")
    try:
        FORMATS[path.suffix](matrix, path)
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from error


def check_format(path: Path) -> None:
    """Check that a path has the suffix of a format and may be written."""
    if path.suffix not in FORMATS:
        raise TopologyError(
            f"{str(path)!r} ends in {path.suffix!r}, but must end in one of {', '.join(FORMATS)}"
        )
    check_writable(path)


def check_writable(path: Path) -> None:
    """Check that a path is that of a regular file or of none, in a directory that may be
    written.
    """
    try:
        check_replaceable(path)
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from error


def check_empty(directory: Path) -> None:
    """Check that a directory is empty, or may be made."""
    try:
        if directory.is_symlink() or not directory.is_dir():
            check_replaceable(directory)
            free = not directory.exists()
        else:
            free = not any(directory.iterdir())
    except OSError as error:
        raise TopologyError(f"cannot write {str(directory)!r}: {error.strerror}") from error
    if not free:
        raise TopologyError(f"{str(directory)!r} exists, but must be a new or empty directory")


def _write_edges(matrix: MixingMatrix, path: Path) -> None:
    pairs = zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True)
    lines = [f"{i} {j} {weight!r}" for (i, j), weight in pairs]
    _write_lines([str(matrix.n), *lines], path)


def _write_csv(matrix: MixingMatrix, path: Path) -> None:
    rows = (",".join(map(repr, row)) for row in matrix.to_dense().tolist())
    _write_lines(rows, path)


def _write_lines(lines: Iterable[str], path: Path) -> None:
    with replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def _write_graphml(matrix: MixingMatrix, path: Path) -> None:
    graph = nx.empty_graph(matrix.n)
    for (i, j), weight in zip(matrix.edges.tolist(), matrix.weights.tolist(), strict=True):
        graph.add_edge(i, j, weight=weight)
    graph.graph["info"] = json.dumps(dict(matrix.info))
    with replacing(path) as file:
        nx.write_graphml(graph, file)


FORMATS: dict[str, Callable[[MixingMatrix, Path], None]] = {
    ".npz": MixingMatrix.save,
    ".csv": _write_csv,
    ".edges": _write_edges,
    ".graphml": _write_graphml,
}


def write_table(records: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Write records of equal keys as CSV; None becomes an empty cell, a mapping JSON."""
    try:
        with replacing(path) as raw:
            file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            for record in records:
                writer.writerow({key: _cell(value) for key, value in record.items()})
            file.detach()
    except OSError as error:
        raise TopologyError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


PICTURES = (".png", ".pdf", ".svg")


def check_outputs(table: str | None, picture: str | None) -> None:
    """Check output files, before anything is computed."""
    if table:
        check_writable(Path(table))
    if picture:
        if Path(picture).suffix not in PICTURES:
            raise TopologyError(f"{picture!r} must end in one of {', '.join(PICTURES)}")
        check_writable(Path(picture))


def save_figure(figure: Any, path: str) -> None:
    """Save a figure."""
    try:
        with replacing(path) as file:
            figure.savefig(file, format=Path(path).suffix[1:], dpi=150)
    except OSError as error:
        raise TopologyError(f"cannot write {path!r}: {error.strerror}") from error


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    json.dump(value, sys.stdout)
    print()


def print_table(records: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Print records as a table with aligned columns."""
    names = tuple(columns)
    cells = [names, *([shown(record[name]) for name in names] for record in records)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(names))]
    for row in cells:
        first, *rest = (f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:]))
        print("  ".join([first, *rest]).rstrip())


def shown(value: Any) -> str:
    """Return a value as text: six digits of a float, a dash for None."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# Largest number of rounds that are shown, drawn or written.
MOST_ROUNDS = 1_000_000

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


def describe_one(options: argparse.Namespace) -> None:
    """Print the description of one graph with its weights and schedule."""
    what = _plan(options)
    record = carry_out(what, options.seed).record(**_measures(options))
    if options.json:
        print_json(record)
        return
    for key, value in record.items():
        print(f"{key:22s} {shown(value)}")


def describe_several(options: argparse.Namespace) -> None:
    """Print a table of several graphs, weights and schedules; write it and a picture if
    asked for.
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
        from topologies.analysis.plots import comparison

        save_figure(comparison(records, [case.plan.label for case in cases]), options.plot)
    if options.json:
        print_json(records)
    else:
        print_table(records, ("label", *COLUMNS))


def show_rounds(options: argparse.Namespace) -> None:
    """Print the rounds of a schedule."""
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


def write_rounds(options: argparse.Namespace) -> None:
    """Write a matrix to a file, or the rounds of a schedule to a directory of them."""
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


def write_picture(options: argparse.Namespace) -> None:
    """Draw a graph, its matrix, its spectrum, its consensus or its rounds."""
    _check_rounds(options.rounds)
    what = _plan(options)
    check_outputs(None, options.output)
    case = carry_out(what, options.seed)
    from topologies.analysis import plots

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
    """Run gossip on random vectors; print the measured and the predicted contraction."""
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
        from topologies.analysis.plots import consensus_decay

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


def ranked(options: argparse.Namespace) -> None:
    """Print the topologies and schedules that keep a budget, the best first."""
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
    """Print the consensus rates that papers state beside the measured ones."""
    check_outputs(options.csv, None)
    records = rates(options.n, options.seed)
    if options.markdown:
        print(markdown(records))
    else:
        _show(records, options)


def cycle_times(options: argparse.Namespace) -> None:
    """Print the overlays for a network, with the seconds per round of each."""
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
    """Return records of equal keys as a Markdown table, numbers with four digits."""
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


# Defaults that are not shown: none, and those of required options.
NONE = (None, inspect.Parameter.empty)


def list_names(options: argparse.Namespace) -> None:
    """Print the graph families, weight rules and schedules, with their parameters."""
    tables: dict[str, Mapping[str, Entry]] = {
        "families": FAMILIES,
        "weights": WEIGHTS,
        "schedules": SCHEDULES,
    }
    if options.what:
        tables = {options.what: tables[options.what]}
    if options.json:
        print_json({title: {k: _entry(e) for k, e in t.items()} for title, t in tables.items()})
        return
    for title, table in tables.items():
        print(title)
        for name, entry in table.items():
            print(f"  {name:22s} {entry.summary}")
            for key, parameter in entry.parameters.items():
                default = "" if parameter.default in NONE else f" (default {parameter.default})"
                print(f"  {'':24s} {key}: {parameter.summary}, {parameter.allowed}{default}")


def _entry(entry: Entry) -> dict[str, Any]:
    parameters = {
        key: {
            "summary": parameter.summary,
            "allowed": parameter.allowed,
            "default": None if parameter.required else parameter.default,
            "required": parameter.required,
        }
        for key, parameter in entry.parameters.items()
    }
    return {"summary": entry.summary, "parameters": parameters}


if __name__ == "__main__":
    sys.exit(main())
