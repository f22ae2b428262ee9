"""``python -m topologies``: study graphs, mixing matrices and schedules."""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from topologies import commands
from topologies import commands as tabulating
from topologies.analysis.consensus import MESSAGE_BYTES
from topologies.analysis.ranking import BUDGETS
from topologies.commands import list_names
from topologies.graphs.families import FAMILIES
from topologies.inputs import (
    TopologyError,
    choice_in,
    closest,
    nearest,
    number,
    one_line,
    one_thread,
    sentence,
)
from topologies.links.overlays import OVERLAYS


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
        """Return the options of the command and, where none is chosen yet, of all commands."""
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
    _measures(show)
    _finish(show, commands.show)

    compare = add("compare", help="several graphs, weights and schedules: a table and a picture")
    compare.add_argument("graphs", metavar="GRAPH", nargs="+")
    compare.add_argument("--weights", nargs="+", default=["fmmc"], metavar="RULE")
    compare.add_argument("--schedules", nargs="+", default=["static"], metavar="SCHEDULE")
    _common(compare)
    _measures(compare)
    compare.add_argument("--csv", metavar="FILE", help="write the whole table")
    compare.add_argument("--plot", metavar="FILE", help="write the picture")
    _finish(compare, commands.compare)

    rounds = add("schedule", help="the rounds of a schedule")
    _graph(rounds)
    _measures(rounds)
    rounds.add_argument("--rounds", type=_count, help="how many to show (default: a period, or 8)")
    _finish(rounds, commands.show_rounds)

    export = add("export", help="write a matrix, or the rounds of a schedule")
    _graph(export)
    export.add_argument("--output", required=True, metavar="PATH", help="file, or directory")
    export.add_argument("--rounds", type=_count, help="how many (default: a period)")
    export.set_defaults(run=commands.export)

    plot = add("plot", help="draw a graph, its matrix, spectrum, consensus or rounds")
    _graph(plot)
    kinds = ["graph", "heatmap", "spectrum", "decay", "rounds"]
    plot.add_argument("--kind", choices=kinds, default="graph")
    plot.add_argument("--output", required=True, metavar="FILE", help="ends in .png, .pdf or .svg")
    plot.add_argument("--rounds", type=_count, help="of decay and rounds")
    plot.set_defaults(run=commands.plot)

    gossip = add("gossip", help="average random vectors: measured against promised contraction")
    _graph(gossip)
    gossip.add_argument("--rounds", type=_count, default=100)
    gossip.add_argument("--width", type=_count, default=16, help="entries of a vector")
    gossip.add_argument("--csv", metavar="FILE", help="write the distance in each round")
    gossip.add_argument("--plot", metavar="FILE", help="write a picture of it")
    _finish(gossip, commands.dry_run)

    stated = add("rates", help="consensus rates that papers state, beside measured ones")
    stated.add_argument("--n", type=_several, default=64, help="number of nodes (default 64)")
    stated.add_argument("--seed", type=_natural, default=0, help="of all that is drawn (default 0)")
    stated.add_argument("--csv", metavar="FILE", help="write the table")
    stated.add_argument("--markdown", action="store_true", help="print it as Markdown")
    _finish(stated, tabulating.stated_rates)

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
    _finish(rank, tabulating.ranked)

    throughput = add("throughput", help="cycle time of overlays on given links")
    throughput.add_argument("network", metavar="NETWORK", help=".csv of delays, .graphml or .gml")
    throughput.add_argument("--overlays", nargs="+", default=list(OVERLAYS))
    throughput.add_argument("--message-bytes", type=_positive, default=MESSAGE_BYTES)
    throughput.add_argument("--local-steps", type=_count, default=1)
    throughput.add_argument("--csv", metavar="FILE")
    _finish(throughput, tabulating.cycle_times)
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


def _measures(parser: argparse.ArgumentParser) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
