"""The command ``mpifed SUBCOMMAND ...``; each is also ``python -m mpifed.SUBCOMMAND ...``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from mpifed import __version__
from mpifed.command import carried_out, started_as, starts_ranks
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, closest
from mpifed.watchdog.launcher import launched_rank

# Subcommands by name: the module whose ``main`` runs them, and a summary for the help.
SUBCOMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("mpifed.launch", "run an experiment, alone or under mpirun"),
    "sweep": ("mpifed.sweep.__main__", "run every combination of lists of values"),
    "report": ("mpifed.report.__main__", "make tables and pictures from run directories"),
    "data": ("mpifed.data.__main__", "make a federated HDF5 file from raw files"),
    "topologies": ("topologies.__main__", "study graphs, mixing matrices and schedules"),
    "jobs": ("mpifed.jobs.__main__", "submit, list and stop runs on a cluster"),
    "verify": ("mpifed.verify", "repeat rounds of a finished run and compare digests"),
    "test": ("mpifed.test", "try whether runs work on this computer or cluster"),
    "cite": ("mpifed.cite", "print BibTeX of the method, data and graph of runs"),
    "retime": ("mpifed.retime", "say what finished runs would take on another network"),
    "reproduce": ("mpifed.reproduce.__main__", "run the tables and figures of the papers"),
    "new": ("mpifed.new.__main__", "write a method, model or other component to begin with"),
}

# As many as ``mpifed`` alone shows.
FIRST = 6

# What is asked without a subcommand; ``more`` is the whole list, as ``--help`` is.
OPTIONS = ("--help", "--version")
HELP = ("-h", "--help", "help", "more")


def main(words: Sequence[str] | None = None) -> int:
    """Run a subcommand."""
    arguments = list(sys.argv[1:] if words is None else words)
    return carried_out("mpifed", lambda: _run(arguments), by_all=True)


def _run(words: list[str]) -> int:
    if len(words) > 1 and words[0] == "help":
        words = [words[1], "--help"]
    name = words[0] if words else ""
    if name in SUBCOMMANDS:
        module, _ = SUBCOMMANDS[name]
        # As under ``python -m``, components may be named that are in the working directory, also
        # where ``command.python_words`` has kept it from the front of the path.
        forbidden = sys.flags.isolated or os.environ.get("PYTHONSAFEPATH")
        if not {"", os.getcwd()} & set(sys.path) and not forbidden:
            sys.path.append(os.getcwd())
        if name == "run":
            return run(words[1:])
        return int(importlib.import_module(module).main(words[1:]))
    if launched_rank() not in (None, 0):
        return EXIT_FINISHED if name in ("", *HELP, "--version") else EXIT_BAD_INPUT
    if name in HELP or not words:
        print(_help(complete=bool(words)))
        return EXIT_FINISHED
    if name == "--version":
        print(f"mpifed {__version__}")
        return EXIT_FINISHED
    print(f"mpifed: {_unknown(name)}", file=sys.stderr)
    return EXIT_BAD_INPUT


def run(words: Sequence[str] | None = None) -> int:
    """Run an experiment, guarded where a launcher started this process."""
    from mpifed.watchdog.guard import guarded

    # Imported later than the fork: a guard needs none of it.
    launch = partial(importlib.import_module, "mpifed.launch")
    if starts_ranks(words):
        return int(launch().main(words))
    return guarded(lambda: launch().main(words), lambda: launch().preload(words))


def _help(*, complete: bool) -> str:
    summaries = {name: summary for name, (_, summary) in SUBCOMMANDS.items()}
    if not complete:
        later = list(summaries)[FIRST:]
        summaries = {name: summaries[name] for name in list(summaries)[:FIRST]}
        summaries["more"] = f"list all: also {', '.join(later)}"
    width = max(map(len, summaries))
    return "\n".join(
        [
            f"usage: {started_as()} COMMAND ...",
            "",
            "Federated learning, centralised and decentralised, simulated over MPI.",
            "",
            *(f"  {name:<{width}}  {summary}" for name, summary in summaries.items()),
            "",
            f"{started_as()} COMMAND --help shows the options of one; begin with:",
            f"    {started_as()} run digits-fedem rounds=20",
        ]
    )


def _unknown(word: str) -> str:
    from mpifed.config.experiments import YAML_FILES, experiment_names
    from mpifed.launch import parser as run_parser
    from topologies.errors import excerpt

    if word in experiment_names() or word.endswith(YAML_FILES):
        return (
            f"{excerpt(word)} is an experiment, not a subcommand; use '{started_as()} run {word}'"
        )
    if word.startswith("-") and word in run_parser().format_help().split():
        return f"{excerpt(word)} is an option of run; did you mean '{started_as()} run {word}'?"
    allowed = [*SUBCOMMANDS, *OPTIONS] if word.startswith("-") else SUBCOMMANDS
    return f"Unknown subcommand {excerpt(word)}; {closest(word, allowed)}"


if __name__ == "__main__":
    sys.exit(main())
