"""``python -m topologies``: study graphs, mixing matrices and schedules."""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from topologies.analysis.cases import CaseSpec, build_case, parse_case
from topologies.analysis.consensus import MESSAGE_BYTES, gossip, messages_received
from topologies.analysis.description import LEFT_OUT
from topologies.analysis.ranking import BUDGETS, candidates, rank, read_budget
from topologies.command_line import Parser, escape_unshown, number, say
from topologies.cpu_time import cpu_seconds
from topologies.errors import RunError, TopologyError
from topologies.graphs import formats
from topologies.graphs.build import FAMILIES
from topologies.job_environment import is_silent
from topologies.links.network import at_sites, one_site, read_network
from topologies.links.overlays import OVERLAYS, cycle_time, design
from topologies.matrix import MixingMatrix
from topologies.names import Entry
from topologies.schedules.table import SCHEDULES
from topologies.weights.table import WEIGHTS

# What a command has found: a value for ``--json``, and lines of text.
Found = tuple[Any, list[str]]

# How a matrix is written, by the suffix of the file.
FORMATS: dict[str, Callable[[MixingMatrix, Path], None]] = {
    ".npz": MixingMatrix.save,
    ".npy": formats.write_npy,
    ".csv": formats.write_csv,
    ".edges": formats.write_edges,
    ".graphml": formats.write_graphml,
}

COLUMNS = (
    "label",
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


def main(arguments: list[str] | None = None) -> int:
    """Run one command of ``python -m topologies``."""
    if is_silent():
        return 0
    escape_unshown()
    try:
        options = parser().parse_args(arguments)
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        with threadpool_limits(1, user_api="blas"):
            output = options.run(options)
        if output is not None:
            value, lines = output
            say(json.dumps(value) if options.json else "\n".join(lines))
    except (TopologyError, MemoryError, OSError, RunError) as error:
        if os.environ.get("MPIFED_DEBUG") == "1":
            raise
        message = " ".join(str(error).split()) or "there is not enough memory for this graph"
        print(f"topologies: {message}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    return 0


def _file(*endings: str) -> Callable[[str], Path]:
    """Return the ``type`` of an argument that is a file to be written."""

    def check(text: str) -> Path:
        path = Path(text)
        if endings and path.suffix not in endings:
            raise argparse.ArgumentTypeError(f"is {text!r}; it must end in {', '.join(endings)}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"is {text!r}; there is no directory {path.parent}")
        return path

    return check


_count = number(int, "an integer of at least 1", lambda value: value >= 1)
_several = number(int, "an integer from 2 to 2000", lambda value: 2 <= value <= 2000)
_natural = number(int, "an integer of at least 0", lambda value: value >= 0)
_positive = number(float, "a number above 0 and below 1e300", lambda value: 0 < value < 1e300)
_seconds = number(float, "a number of at least 0", lambda value: 0 <= value < 1e300)
_fraction = number(float, "a number in (0, 1)", lambda value: 0 < value < 1)
_picture = _file(".png", ".pdf", ".svg")
_moving = _file(".png", ".pdf", ".svg", ".gif")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    started = Path(sys.argv[0]).name
    command_line = Parser(
        prog="python -m topologies" if started.endswith(".py") else f"{started} topologies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = command_line.add_subparsers(required=True, metavar="COMMAND")
    as_json, seeded, one, measured = (Parser(add_help=False) for _ in range(4))
    as_json.add_argument("--json", action="store_true", help="print JSON")
    seeded.add_argument("--seed", type=_natural, default=0, help="of all that is drawn (default 0)")
    one.add_argument("graph", metavar="GRAPH", help="family:key=value,...")
    one.add_argument("--weights", default="fmmc", metavar="RULE", help="default: fmmc")
    one.add_argument("--schedule", default="static", metavar="SCHEDULE", help="default: static")
    one.add_argument("--n", type=_count, help="number of nodes where the graph does not say")
    measured.add_argument("--accuracy", type=_fraction, default=1e-2, help="of mixing_time (0.01)")
    measured.add_argument("--message-bytes", type=_positive, default=MESSAGE_BYTES)

    def add(
        name: str, run: Callable[[Any], Found | None], purpose: str, *parents: Parser
    ) -> Callable[..., Any]:
        command = commands.add_parser(name, help=purpose, parents=list(parents))
        command.set_defaults(run=run)
        return command.add_argument

    text = "the graph families, weight rules and schedules"
    option = add("list", list_names, text, as_json)
    option("what", nargs="?", choices=["families", "weights", "schedules"])

    text = "one graph and what gossips on it"
    add("show", describe_one, text, one, seeded, measured, as_json)

    text = "several graphs, weights and schedules: a table and a picture"
    option = add("compare", describe_several, text, seeded, measured, as_json)
    option("graphs", metavar="GRAPH", nargs="+")
    option("--weights", nargs="+", default=["fmmc"], metavar="RULE")
    option("--schedules", nargs="+", default=["static"], metavar="SCHEDULE")
    option("--n", type=_count, help="number of nodes where the graph does not say")
    option("--csv", type=_file(), metavar="FILE", help="write the whole table")
    option("--plot", type=_picture, metavar="FILE", help="write the picture")

    option = add(
        "schedule", show_rounds, "the rounds of a schedule", one, seeded, measured, as_json
    )
    option("--rounds", type=_count, help="how many to show (default: a period, or 8)")

    option = add("export", write_rounds, "write a matrix, or the rounds of a schedule", one, seeded)
    option("--output", type=_file(), required=True, metavar="PATH", help="file, or directory")
    option("--rounds", type=_count, help="how many (default: a period)")

    text = "draw a graph, its matrix, spectrum, consensus or rounds; gossip as a .gif"
    option = add("plot", write_picture, text, one, seeded)
    kinds = ["graph", "heatmap", "spectrum", "decay", "rounds"]
    option("more", nargs="*", metavar="GRAPH", help="more graphs in a picture of decay")
    option("--kind", choices=kinds, default="graph")
    option("--output", type=_moving, required=True, metavar="FILE")
    option("--rounds", type=_count, help="of decay, rounds and a .gif")

    text = "average random vectors: measured against promised contraction"
    option = add("gossip", average_vectors, text, one, seeded, as_json)
    option("--rounds", type=_count, default=100)
    option("--width", type=_count, default=16, help="entries of a vector")
    option("--csv", type=_file(), metavar="FILE", help="write the distance in each round")
    option("--plot", type=_picture, metavar="FILE", help="write a picture of it")

    text = "which topology and schedule for n nodes and a budget"
    option = add("rank", ranked, text, seeded, as_json)
    option("graphs", metavar="GRAPH", nargs="*", help="candidates (default: the usual)")
    option("--n", type=_several, required=True, help="number of nodes")
    option("--budget", nargs="+", default=[], metavar="KEY=LIMIT", help=", ".join(BUDGETS))
    option("--by", choices=[key for key in BUDGETS if key != "degree"], default="rounds")
    option("--weights", default="fmmc", metavar="RULE", help="of the candidates given")
    option("--accuracy", type=_fraction, default=1e-3, help="of consensus (0.001)")
    option("--message-bytes", type=_positive, default=MESSAGE_BYTES)
    option("--latency", type=_seconds, default=0.0, help="seconds of a link (0)")
    option("--bandwidth", type=_positive, default=math.inf, help="bits per second of a node's link")
    option("--link", choices=["shared", "per_path"], default="shared", help="the link's bits")
    option("--compute", type=_seconds, default=0.0, help="seconds of work a round (0)")
    option("--network", metavar="FILE", help="links, in place of --latency and so on")
    option("--most", type=_count, default=12, help="rows to print (default 12)")
    option("--csv", type=_file(), metavar="FILE", help="write the table")

    option = add("throughput", cycle_times, "cycle time of overlays on given links", as_json)
    option("network", metavar="NETWORK", help=".csv of delays, .graphml or .gml")
    option("--overlays", nargs="+", choices=list(OVERLAYS), default=list(OVERLAYS))
    option("--message-bytes", type=_positive, default=MESSAGE_BYTES)
    option("--local-steps", type=_count, default=1)
    option("--csv", type=_file(), metavar="FILE")
    return command_line


def list_names(options: argparse.Namespace) -> Found:
    """Return the graph families, weight rules and schedules, with their parameters."""
    tables: dict[str, Mapping[str, Entry]] = {
        "families": FAMILIES,
        "weights": WEIGHTS,
        "schedules": SCHEDULES,
    }
    if options.what:
        tables = {options.what: tables[options.what]}
    lines = []
    for title, table in tables.items():
        lines.append(title)
        for name, entry in table.items():
            lines.append(f"  {name:22s} {entry.summary}")
            for key, parameter in entry.parameters.items():
                has_default = parameter.default not in (None, inspect.Parameter.empty)
                default = f" (default {parameter.default})" if has_default else ""
                line = f"{parameter.summary}, {parameter.allowed}{default}"
                lines.append(f"  {'':24s} {key}: {line}")
    return {title: {k: _entry(e) for k, e in t.items()} for title, t in tables.items()}, lines


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


def describe_one(options: argparse.Namespace) -> Found:
    """Return the description of one graph with its weights and schedule."""
    record = build_case(_case_spec(options), options.seed).record(**_measures(options))
    return record, fields(record) + _left_out([record])


def _left_out(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [LEFT_OUT] * any(record["effective_neighbours"] is None for record in records)


def describe_several(options: argparse.Namespace) -> Found:
    """Return a table of several graphs, weights and schedules."""
    specs = [
        parse_case(text, weights, schedule, options.n)
        for text in options.graphs
        for schedule in options.schedules
        for weights in options.weights
    ]
    # A schedule without weights is the same under every rule.
    specs = list({one.label: one for one in specs}.values())
    cases = [build_case(one, options.seed) for one in specs]
    records = [{"label": case.spec.label, **case.record(**_measures(options))} for case in cases]
    write_table(records, options.csv)
    if options.plot:
        from topologies.analysis.plots import comparison, drawing

        with drawing():
            comparison(records).savefig(options.plot, dpi=150)
    return records, table(records, COLUMNS) + _left_out(records)


def show_rounds(options: argparse.Namespace) -> Found:
    """Return the rounds of a schedule."""
    case = build_case(_case_spec(options), options.seed)
    rounds: list[dict[str, Any]] = []
    for k in range(1, (options.rounds or case.schedule.period or 8) + 1):
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
    kinds = ("schedule", "n", "symmetric", "doubly_stochastic", "period", "tau")
    numbers = ("consensus_rate", "consensus_rate_error", "mixing_time", "messages_per_round")
    lines = fields({key: record[key] for key in (*kinds, *numbers)})
    lines += table([{**row, "sha256": row["sha256"][:12]} for row in rounds])
    return {**record, "rounds": rounds}, lines


def _case_spec(options: argparse.Namespace) -> CaseSpec:
    spec = parse_case(options.graph, options.weights, options.schedule, options.n)
    if spec.family is None and options.schedule != "static":
        raise TopologyError(
            f"{spec.schedule} is a schedule itself, so --schedule {options.schedule} has no use; "
            f"its parameters go behind its name, as in {spec.schedule}:n=8,drop_edges=0.1"
        )
    return spec


def _measures(options: argparse.Namespace) -> dict[str, float]:
    return {"accuracy": options.accuracy, "message_bytes": options.message_bytes}


def write_rounds(options: argparse.Namespace) -> None:
    """Write a matrix to a file, or the rounds of a schedule to a directory of them."""
    spec, target = _case_spec(options), options.output
    if spec.schedule == "static":
        if target.suffix not in FORMATS:
            raise TopologyError(f"{str(target)!r} must end in one of {', '.join(FORMATS)}")
        write_matrix(build_case(spec, options.seed).schedule.matrix(1), target)
        say(str(target))
        return
    if target.exists() and any(target.iterdir()):
        raise TopologyError(f"{str(target)!r} exists, but must be a new or empty directory")
    schedule = build_case(spec, options.seed).schedule
    count = options.rounds or schedule.period
    if count is None:
        raise TopologyError(f"the schedule {spec.schedule} does not repeat: say how many --rounds")
    target.mkdir(exist_ok=True)
    for k in range(1, count + 1):
        schedule.matrix(k).save(target / f"round-{k:06d}.npz")
    say(str(target))


def write_matrix(matrix: MixingMatrix, path: Path) -> None:
    """Write the matrix in the format of the path's suffix, one of ``FORMATS``."""
    if not matrix.symmetric and path.suffix in (".edges", ".graphml"):
        raise TopologyError(
            f"a directed matrix cannot be written to {path.name}: use .npz, .npy or .csv"
        )
    FORMATS[path.suffix](matrix, path)


def write_picture(options: argparse.Namespace) -> None:
    """Draw a graph, its matrix, its spectrum, the consensus of several, or its rounds."""
    spec = _case_spec(options)
    if options.more and options.kind != "decay":
        raise TopologyError(f"--kind {options.kind} draws one graph; several are for decay")
    moves = options.output.suffix == ".gif"
    if moves and options.kind not in ("graph", "rounds"):
        raise TopologyError(f"--kind {options.kind} does not move: --output must end in .png")
    schedule, title = build_case(spec, options.seed).schedule, spec.label
    from topologies.analysis import animation, plots

    with plots.drawing():
        if moves:
            count = options.rounds or 12
            animation.write_gossip(schedule, count, options.output, seed=options.seed, title=title)
            say(str(options.output))
            return
        if options.kind == "graph":
            figure = plots.draw_graph(schedule.matrix(1), title)
        elif options.kind == "heatmap":
            figure = plots.heat_map(schedule.matrix(1), title)
        elif options.kind == "spectrum":
            figure = plots.spectrum_plot(schedule.matrix(1), title)
        elif options.kind == "decay":
            others = [
                parse_case(text, options.weights, options.schedule, options.n)
                for text in options.more
            ]
            runs = {
                one.label: gossip(build_case(one, options.seed).schedule, options.rounds or 50,
                                  seed=options.seed)
                for one in (spec, *others)
            }  # fmt: skip
            figure = plots.consensus_decay(runs, "" if others else title)
        else:
            count = options.rounds or min(schedule.period or 8, 16)
            figure = plots.round_panels(schedule, count, title)
        figure.savefig(options.output, dpi=150)
    say(str(options.output))


def average_vectors(options: argparse.Namespace) -> Found:
    """Run gossip on random vectors; return the measured and the predicted contraction."""
    spec = _case_spec(options)
    schedule = build_case(spec, options.seed).schedule
    run = gossip(schedule, options.rounds, width=options.width, seed=options.seed)
    pairs = zip(run.distance.tolist(), run.predicted.tolist(), strict=True)
    rows = [
        {"round": k, "distance": distance, "predicted": predicted}
        for k, (distance, predicted) in enumerate(pairs)
    ]
    write_table(rows, options.csv)
    if options.plot:
        from topologies.analysis.plots import consensus_decay, drawing

        with drawing():
            consensus_decay({"measured": run}, spec.label).savefig(options.plot, dpi=150)
    summary = {
        "label": spec.label,
        "rounds": options.rounds,
        "measured_contraction": run.contraction,
        "predicted_contraction": run.rate.contraction,
        "consensus_rate": run.rate.p,
        "tau": run.rate.tau,
        "final_distance": float(run.distance[-1]),
        "mean_drift": run.drift,
    }
    return {**summary, "distance": run.distance.tolist()}, fields(summary)


def ranked(options: argparse.Namespace) -> Found:
    """Return the topologies and schedules that keep a budget, the best first."""
    n, budget = options.n, read_budget(options.budget)
    if options.network is None:
        shared = options.link == "shared"
        links = one_site(n, options.latency, options.bandwidth, shared=shared)
    elif options.latency or options.bandwidth < math.inf or options.link != "shared":
        raise TopologyError("--network has its own latencies and rates; leave the others out")
    else:
        links = at_sites(read_network(options.network), n)
    specs = [parse_case(text, options.weights, "static", n) for text in options.graphs]
    records = rank(
        specs or candidates(n, budget.get("degree", math.inf)),
        links,
        budget,
        by=options.by,
        work=options.compute,
        message_bytes=options.message_bytes,
        accuracy=options.accuracy,
        seed=options.seed,
    )
    write_table(records, options.csv)
    shares = "a node's messages of a round share its link"
    seconds = shares if options.link == "shared" else "each path has the bandwidth for itself"
    without = "effective_neighbours is left out, for it takes long; compare has it"
    return records, [*table(records[: options.most]), f"seconds: {seconds}", without]


def cycle_times(options: argparse.Namespace) -> Found:
    """Return the overlays for a network, with the seconds per round of each."""
    network = read_network(options.network)
    cost = {"message_bits": options.message_bytes * 8, "local_steps": options.local_steps}
    rows: list[dict[str, Any]] = []
    for name in options.overlays:
        start = cpu_seconds()
        overlay = design(name, network, **cost)
        seconds = cycle_time(overlay, network, **cost)
        rows.append(
            {
                "overlay": name,
                "cycle_time": seconds,
                "rounds_per_second": 1 / seconds if seconds > 0 else None,
                "arcs": overlay.number_of_edges(),
                "most_links": max((degree for _, degree in overlay.out_degree), default=0),
                "seconds": cpu_seconds() - start,
            }
        )
    write_table(rows, options.csv)
    return rows, table(rows)


def write_table(records: Sequence[dict[str, Any]], path: Path | None) -> None:
    """Write records of equal keys as CSV; None becomes an empty cell, a mapping JSON."""
    if path is None:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(records[0])
        for record in records:
            writer.writerow(
                json.dumps(cell) if isinstance(cell, dict | list) else cell
                for cell in record.values()
            )


def fields(record: Mapping[str, Any]) -> list[str]:
    """Return a record as lines of a key and a value."""
    return [f"{key:22s} {in_text(value)}" for key, value in record.items()]


def table(records: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> list[str]:
    """Return records as lines with aligned columns, by default all."""
    names = list(columns or records[0])
    cells = [names, *([in_text(record[name]) for name in names] for record in records)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(names))]
    lines = []
    for first, *others in cells:
        aligned = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        lines.append("  ".join(aligned).rstrip())
    return lines


def in_text(value: Any) -> str:
    """Return a value as text: six digits of a float, a dash for None."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
