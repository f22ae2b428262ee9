"""``python -m mpifed.verify RUN``: repeats rounds of a finished run and compares digests."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpifed.command import (
    RANKS,
    Parser,
    become,
    carried_out,
    parser_of,
    say,
    starts_ranks,
    under_mpirun,
    whole,
    without_ranks,
)
from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, InputError

RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command, guarded where a launcher started this process."""
    from mpifed.watchdog.guard import guarded

    arguments = list(sys.argv[1:] if words is None else words)
    return verified(arguments) if starts_ranks(arguments) else guarded(lambda: verified(arguments))


def verified(words: list[str]) -> int:
    """Run the command in this process without a guard; the words are those of ``main``."""
    from mpifed import launch
    from mpifed.results.configurations import read_stored
    from mpifed.results.run_directories import check_finished, chosen_rounds
    from mpifed.watchdog.launcher import launched_rank

    def prepared() -> Callable[[], int]:
        options = parser().parse_args(words)
        if options.kernels:
            return _kernels
        if options.run is None:
            raise InputError("RUN is missing; it must be a run directory")
        directory, rounds = Path(options.run), _rounds(options)
        if launched_rank() is None:  # ranks may see other files, and look together
            check_finished(directory)
            chosen_rounds(rounds, int(read_stored(directory / "config.yaml")["rounds"]))
        if options.ranks is not None:
            command = under_mpirun(options.ranks, "verify", without_ranks(words))
            return lambda: become(command)
        communicator = launch.world_of_ranks()
        action = _action(directory, rounds, communicator, options.quiet)
        return lambda: launch.reporting(communicator, action, "mpifed.verify")

    return launch.started(prepared, "mpifed.verify")


def _kernels() -> int:
    """Say whether products of this computer depend on which clients share a rank."""
    from mpifed.training.verification import advice_on_kernels

    advice = advice_on_kernels()
    if advice is None:
        print("verified: matrix products are the same wherever their operands begin")
        return EXIT_FINISHED
    print(f"NOT verified: matrix products depend on which clients share a rank; {advice}")
    return EXIT_FAILED


def _action(
    directory: Path, rounds: tuple[int, int] | int | None, communicator: Any, quiet: bool
) -> Callable[[], int]:
    def tell(line: str) -> None:
        if communicator.rank == 0:
            say(line)

    def action() -> int:
        from mpifed.training.verification import other_versions, verify

        verdict = verify(directory, rounds, communicator, (lambda line: None) if quiet else tell)
        ranks = f"{communicator.size} rank{'s' * (communicator.size > 1)}"
        for line in verdict.differences:
            tell(f"differs: {line}")
        if not verdict.differences:
            states = f"{verdict.compared} round{'s' * (verdict.compared > 1)}"
            tell(
                f"verified: rounds {verdict.first} to {verdict.last} on {ranks}, states of "
                f"{states} compared"
            )
            return EXIT_FINISHED
        if communicator.rank == 0:
            for line in other_versions(directory):
                tell(f"note: {line}")
        tell(f"NOT verified: {directory} differs from what these rounds give on {ranks}")
        return EXIT_FAILED

    return action


def _rounds(options: argparse.Namespace) -> tuple[int, int] | int | None:
    if options.rounds is not None and options.last is not None:
        raise InputError("--rounds and --last were given; at most one of them may be")
    if options.last is not None:
        return int(options.last)
    if options.rounds is None:
        return None
    match = RANGE.fullmatch(options.rounds)
    if match is None:
        raise InputError(f"--rounds is {options.rounds!r}; it must be A:B, two whole numbers")
    return int(match[1]), int(match[2])


def parser() -> Parser:
    """Return the parser of the command."""
    command_line = parser_of(
        "verify",
        "Repeat rounds of a finished run, alone or under mpirun, and say whether they "
        "give the recorded digests and metrics.",
        epilog="Exit codes: 0 everything agrees, 1 something differs, 2 bad input.",
    )
    command_line.add_argument("run", nargs="?", metavar="RUN", help="the run directory")
    command_line.add_argument(
        "--kernels",
        action="store_true",
        help="try instead whether this computer's matrix products depend on which clients share a "
        "rank, as they do where MKL_CBWR has another value than AUTO,STRICT",
    )
    command_line.add_argument(
        "--rounds",
        metavar="A:B",
        help="repeat these rounds, from the newest checkpoint before them (default: all)",
    )
    command_line.add_argument("--last", type=whole(1), metavar="K", help="repeat the last K rounds")
    command_line.add_argument("--ranks", type=RANKS, metavar="N", help="start it under mpirun -n N")
    command_line.add_argument("--quiet", action="store_true", help="print the result alone")
    return command_line


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.verify", main, by_all=True))
