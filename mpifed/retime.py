"""``python -m mpifed.retime RUN ... network.latency=0.05``: finished runs on another network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mpifed.command import Parser, carried_out, parser_of
from mpifed.config.configuration import apply_overrides, check_names
from mpifed.config.experiments import parse_overrides
from mpifed.errors import EXIT_FINISHED, InputError
from mpifed.report.runs import run_directories
from mpifed.results.configurations import read_stored
from mpifed.results.results import read_summary
from mpifed.results.run_directories import check_output


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return carried_out("mpifed.retime", lambda: _run(words))


def _run(words: Sequence[str] | None) -> int:
    options = parser().parse_intermixed_args(words)
    # Names of sweeps' directories have signs of equality, too.
    directories = [word for word in options.words if "=" not in word or Path(word).exists()]
    overrides = parse_overrides([word for word in options.words if word not in directories])
    if not directories or not overrides:
        raise InputError("RUN or network.latency=0.05 is missing; --help shows an example")
    targets = {
        run: _target(run, Path(directory), options.output)
        for directory in directories
        for run in run_directories(Path(directory))
    }
    if options.output is not None and len({*targets.values()}) < len(targets):
        raise InputError("two of these runs have the same name")
    for run in targets:  # before torch is imported
        check_names(apply_overrides(read_stored(run / "config.yaml"), overrides))

    from mpifed.training.retiming import retime, write

    timings = {run: retime(run, overrides) for run in targets}
    for run, times in timings.items():
        target = targets[run]
        if target is not None:
            write(times, target)
        link = times.configuration.network.link
        print(f"{run}: {times.seconds[-1]:.6g} s (network.link={link})")
    return EXIT_FINISHED


def _target(run: Path, directory: Path, output: Path | None) -> Path | None:
    """Return where a run is written to, if anywhere."""
    if output is None:
        return None
    check_output(output)
    target = output / (run.resolve().name if run == directory else run.relative_to(directory))
    summary = target / "summary.json"
    if target.exists() and not (summary.is_file() and "retimed" in read_summary(summary)):
        raise InputError(f"--output: {target} exists and was not written by this command")
    return target


def parser() -> Parser:
    """Return the parser of the command."""
    command_line = parser_of("retime", __doc__)
    command_line.add_argument(
        "words",
        nargs="*",
        metavar="RUN | key=value",
        help="run directories, or directories that hold some; values of the sections network and "
        "compute (docs/time.md)",
    )
    command_line.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write a run directory for each run into DIR; without it times are only printed",
    )
    return command_line


if __name__ == "__main__":
    sys.exit(main())
