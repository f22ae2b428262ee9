"""Tables and figures of the papers: runs what is missing, and writes pages."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.command import parser_of, whole
from mpifed.config.experiments import parse_overrides
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_FINISHED, InputError, closest, complain
from mpifed.reproduce.experiments.studies import Figure, PaperTable, Study, papers, studies
from mpifed.results.run_directories import check_output
from mpifed.watchdog.launcher import check_one_process

if TYPE_CHECKING:
    from mpifed.reproduce.experiments.tables import Plan


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = list(sys.argv[1:] if words is None else words)
    try:
        check_one_process("leave the launcher out")
        options = parser().parse_intermixed_args(arguments)
        if options.list or not arguments:
            for paper in [options.paper] if options.paper else papers():
                print(f"{paper}:")
                titles = {name: study.title for name, study in studies(paper).items()}
                width = max(map(len, titles))
                print("\n".join(f"  {name:<{width}}  {titles[name]}" for name in titles))
            return EXIT_FINISHED
        if options.paper is None:
            raise InputError(f"a paper is missing; allowed: {', '.join(papers())}")
        of_paper: dict[str, Study] = studies(options.paper)
        chosen = _chosen(options, of_paper)
        overrides = parse_overrides(options.words)
        for name, study in chosen.items():
            if isinstance(study, Figure) and (options.tune or options.data or options.without):
                raise InputError(
                    f"{name} is a figure made of sweeps, which take overrides, but neither --data, "
                    "--without nor --tune"
                )
        _validate(options, chosen)
        command = shlex.join(["python", "-m", "mpifed.reproduce", *arguments])
        from mpifed.reproduce.experiments.tables import (  # they read results
            Plan,
            make_figure,
            make_table,
        )

        planned, left_out = _planned(chosen, options, overrides)
        for name, reason in left_out.items():
            complain("mpifed.reproduce", f"{name} is left out: {reason}")
        failed = bool(left_out)
        for plan in planned.values():
            failed |= bool(
                make_table(plan, options, command)
                if isinstance(plan, Plan)
                else make_figure(plan, options)
            )
        return EXIT_FAILED if failed else EXIT_FINISHED
    except InputError as error:
        complain("mpifed.reproduce", str(error))
        return EXIT_BAD_INPUT


def _chosen(options: argparse.Namespace, of_paper: Mapping[str, Study]) -> dict[str, Study]:
    names = [("table-", each) for each in options.table]
    names += [("figure-", each) for each in options.figure]
    names += [("", each) for each in options.study]
    chosen: dict[str, Study] = {}
    for kind, each in names:
        name = kind + each
        # Figure 1 has two parts, each a study.
        having = {k: v for k, v in of_paper.items() if k == name or k.startswith(f"{name}-")}
        if not having:
            option = f"--{kind.rstrip('-') or 'study'}"
            among = [k.removeprefix(kind) for k in of_paper if k.startswith(kind)]
            allowed = closest(each, among) if among else f"it has {', '.join(of_paper)}"
            raise InputError(
                f"{option} is {each!r}, which {options.paper} does not have; {allowed}"
            )
        chosen |= having
    return chosen or dict(of_paper)


def _validate(options: argparse.Namespace, chosen: Mapping[str, Study]) -> None:
    """Validate kinds of data, rows, sites and the place of the output."""
    tables = [study for study in chosen.values() if isinstance(study, PaperTable)]
    whose = tables[0].name if len(tables) == 1 else "any of the tables"
    kinds = {kind for study in tables for kind in study.data}
    labels = {row.label for study in tables for row in study.entries}
    for option, values, allowed in (
        ("--data", options.data, kinds),
        ("--without", options.without, labels),
    ):
        for each in values:
            if each not in allowed:
                raise InputError(
                    f"{option} is '{each}', which is not in {whose}; {closest(each, allowed)}"
                )
    check_output(options.output)
    if options.slurm:
        from mpifed.jobs.plan import read_site

        read_site(options.slurm, "--slurm")


def _planned(
    chosen: Mapping[str, Study], options: argparse.Namespace, overrides: Mapping[str, Any]
) -> tuple[dict[str, Plan | Figure], dict[str, str]]:
    """Check all studies before the first run."""
    from mpifed.reproduce.experiments.tables import plan_of

    planned: dict[str, Plan | Figure] = {}
    left_out: dict[str, str] = {}
    for name, study in chosen.items():
        try:
            planned[name] = (
                plan_of(study, options, overrides) if isinstance(study, PaperTable) else study
            )
        except InputError as error:
            left_out[name] = str(error)
    if not planned:
        raise InputError(next(iter(left_out.values())))
    return planned, left_out


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = parser_of("reproduce", __doc__)
    parser.add_argument(
        "paper", nargs="?", choices=papers(), help="whose tables and figures; lists all without"
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help="overrides for all runs")
    parser.add_argument("--list", action="store_true", help="show names and titles")
    parser.add_argument("--table", action="append", default=[], metavar="N", help="a table")
    parser.add_argument("--figure", action="append", default=[], metavar="N", help="a figure")
    parser.add_argument("--study", action="append", default=[], metavar="NAME", help="by its name")
    parser.add_argument(
        "--data", action="append", default=[], metavar="KIND", help="on this kind of data alone"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="ROW", help="leave out a row of tables"
    )
    parser.add_argument("--tune", action="store_true", help="choose learning rates first")
    parser.add_argument("--slurm", metavar="SITE", help="submit the runs as SLURM arrays")
    parser.add_argument(
        "--finished", action="store_true", help="run nothing: pages of what is finished"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be run")
    parser.add_argument(
        "--processes",
        type=whole(1),
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="runs at once (default: cores)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("reproduced"), metavar="DIR", help="default: reproduced"
    )
    return parser
