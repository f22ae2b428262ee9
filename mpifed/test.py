"""``mpifed test``: whether runs work here, with this launcher and MPI, on a page to hand on.

It starts runs of seconds by the launcher and compares their numbers on several ranks, kills a rank
and resumes, and times messages between ranks. Every wait has a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.command import (
    Parser,
    carried_out,
    launch_words,
    parser_of,
    physical_cores,
    python_words,
    say,
    whole,
)
from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, InputError, one_line
from topologies.job_environment import is_rank, outside_step

# The round in which a rank is killed, when a checkpoint is complete.
KILLED_IN = 8

# Options of the runs; more ranks need as many clients.
RUN = (
    *("synthetic-fedem", "rounds=10", "data.n_test=20", "evaluation.every=2"),
    *("checkpoint.every=2", "checkpoint.keep=9"),
)
CLIENTS = 8

# Bytes and repetitions of messages: short ones for the latency, long ones for the bandwidth.
SHORT, LONG, REPEATED = 8, 1 << 22, 20

# Ranks with which rank 0 exchanges messages, at most.
PARTNERS = 16

# Seconds that a process has to end after SIGTERM, and lines of its output on the page.
PATIENCE, LINES = 10.0, 15

PAGE = Path("mpifed-test.md")


@dataclass(frozen=True)
class Step:
    """What was tried: ``failure`` is empty where it went well."""

    name: str
    seconds: float
    failure: str = ""
    command: str = ""
    printed: str = ""

    @property
    def result(self) -> str:
        """The words of the table."""
        return f"**failed**: {self.failure}" if self.failure else "ok"


class Battery:
    """Starts commands in a folder, each for ``limit`` seconds at most, and notes how they end."""

    def __init__(self, folder: Path, launcher: str | None, limit: float) -> None:
        self.folder, self.limit, self.steps = folder, limit, list[Step]()
        self._launcher = launcher

    def command(self, ranks: int | None, words: Sequence[str]) -> list[str]:
        """Return the command that starts ``mpifed WORDS``, by the launcher unless ranks is None."""
        started = [*python_words(words[0]), *words[1:]]
        if ranks is None:
            return started
        if self._launcher is None:
            return [*launch_words(ranks), *started]
        return [*shlex.split(self._launcher), str(ranks), *started]

    def step(
        self,
        name: str,
        ranks: int | None,
        words: Sequence[str],
        check: Callable[[int, str], str] | None = None,
    ) -> bool:
        """Carry out a command; return whether it, and the check of its code and output, is fine."""
        command, began = self.command(ranks, words), time.monotonic()
        code, printed = ended(command, self.folder, self.limit)
        if code is None:
            failure = f"no end after {self.limit:g} s"
        elif check is not None:
            failure = check(code, printed)
        else:
            failure = f"exit code {code}" if code else ""
        last = "\n".join(printed.splitlines()[-LINES:]) if failure else ""
        step = Step(name, time.monotonic() - began, failure, shlex.join(command), last)
        self.steps.append(step)
        say(f"{'FAILED' if failure else 'ok':<7} {name} ({step.seconds:.0f} s) {failure}".rstrip())
        return not failure


def ended(command: Sequence[str], folder: Path, limit: float) -> tuple[int | None, str]:
    """Return the exit code of a command, None where it had to be ended, and what it printed."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=outside_step(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return 127, f"{command[0]}: {error.strerror}"
        code = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                _end(process)
        output.seek(0)
        return code, output.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that it has started here."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


def kill_a_rank(recorded: Any) -> None:
    """Kill this process, rank 0, in a round; of ``mpifed run --on-round``."""
    if recorded.round == KILLED_IN:
        os.kill(os.getpid(), signal.SIGKILL)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command, or a rank that exchanges messages."""
    arguments = list(sys.argv[1:] if words is None else words)
    if "--messages" in arguments:
        from mpifed.watchdog.guard import guarded

        return guarded(_messages)
    return carried_out("mpifed.test", lambda: _test(arguments))


def _test(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    if is_rank():
        raise InputError(
            "mpifed test is itself a rank of a job, and starts the launcher by itself; start it "
            "without mpirun or srun, in a batch script or a shell on a node"
        )
    page = options.output
    if page.is_dir() or not page.absolute().parent.is_dir():
        raise InputError(f"--output is '{page}'; it must be a file in a directory that is there")
    ranks = options.ranks or max(2, int(os.environ.get("SLURM_NTASKS") or physical_cores()))
    if options.launcher is None:
        launch_words(ranks)  # which says that there is no mpirun
    try:
        # Beside the page: other hosts see no directory of this one.
        with tempfile.TemporaryDirectory(dir=page.absolute().parent, prefix=".mpifed-test-") as at:
            battery = Battery(Path(at), options.launcher, options.limit)
            messages = run_all(battery, ranks)
            text = page_of(battery, ranks, messages)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {page} cannot be written: {error.strerror}") from None
    failed = sum(bool(step.failure) for step in battery.steps)
    verdict = f"{failed} of {len(battery.steps)} steps failed" if failed else "all steps are fine"
    say(f"{verdict}; the page for an administrator: {page}")
    return EXIT_FAILED if failed else EXIT_FINISHED


def run_all(battery: Battery, ranks: int) -> list[dict[str, Any]]:
    """Carry out all steps on up to ``ranks`` ranks; return the times of messages."""
    run = ["run", *RUN, f"clients={max(CLIENTS, ranks)}"]
    battery.step("products of matrices do not depend on addresses", None, ["verify", "--kernels"])
    words = [*run, "--output", "whole", "--expect-ranks", str(ranks)]
    if battery.step(f"a run on {ranks} ranks", ranks, words):
        battery.step("the same numbers on 1 rank", None, ["verify", "whole", "--quiet"])
        if ranks > 2:
            battery.step("the same numbers on 2 ranks", 2, ["verify", "whole", "--quiet"])
        _kill_and_resume(battery, ranks, run)
    gossip = [*run, "exchange=gossip", "--output", "gossip"]
    if battery.step(f"gossip on {ranks} ranks", ranks, gossip):
        battery.step("the same numbers on 1 rank", None, ["verify", "gossip", "--quiet"])
    times: list[dict[str, Any]] = []

    def read(code: int, printed: str) -> str:
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        times.extend(map(json.loads, lines))
        if code or not times:
            return f"exit code {code}, {len(times)} times"
        return ""

    battery.step(f"messages between {ranks} ranks", ranks, ["test", "--messages"], read)
    return times


def _kill_and_resume(battery: Battery, ranks: int, run: Sequence[str]) -> None:
    """Kill a rank of a run, resume the run on fewer ranks, and compare it with the whole one."""
    checkpoints = battery.folder / "cut" / "checkpoints"

    def failed(code: int, printed: str) -> str:
        if not code:
            return "the job ended with 0"
        return "" if list(checkpoints.glob("round-*.h5")) else "there is no checkpoint"

    def compared(code: int, printed: str) -> str:
        if code:
            return f"exit code {code}"
        same = _rows(battery.folder / "cut") == _rows(battery.folder / "whole")
        return "" if same else "its numbers differ from those of the run without a kill"

    killed = [*run, "--on-round", "mpifed.test:kill_a_rank", "--output", "cut"]
    if battery.step(f"a killed rank ends the job of {ranks}", ranks, killed, failed):
        fewer = max(1, ranks // 2)
        words = ["run", "--resume", "--output", "cut"]
        by_launcher = fewer if fewer > 1 else None
        battery.step(f"it resumes on {fewer}, with the same numbers", by_launcher, words, compared)


def _rows(run: Path) -> list[dict[str, str]]:
    """Return the rows of a metrics.csv without what depends on the computer's speed."""
    from mpifed.results.results import read_metrics

    table = read_metrics(run / "metrics.csv")
    named = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return [{name: text for name, text in row.items() if name != "seconds"} for row in named]


def _messages() -> int:
    """Time messages between rank 0 and others, in a rank; rank 0 prints a line for each."""
    from mpifed import launch

    communicator = launch.world_of_ranks()

    def action() -> int:
        from mpifed.training.train import describe_versions

        for times in timed(communicator, socket.gethostname()):
            say(json.dumps({**times, "mpi": describe_versions().get("mpi", "none")}))
        return EXIT_FINISHED

    return launch.reporting(communicator, action, "mpifed.test")


def timed(communicator: Any, host: str) -> list[dict[str, Any]]:
    """Return the times of messages between rank 0 and a rank of each ``host``; collective.

    Rank 0 alone has them: its partner, whose host that is, the latency in seconds, and the
    bandwidth in bytes a second.
    """
    hosts = communicator.broadcast_object(communicator.gather_object(host))
    first = {host: rank for rank, host in reversed([*enumerate(hosts)][1:])}
    times = []
    for partner in sorted(first.values())[:PARTNERS]:
        seconds = [_there_and_back(communicator, partner, size) for size in (SHORT, LONG)]
        if communicator.rank == 0:
            location = "the same host" if hosts[partner] == hosts[0] else "another host"
            record = {"partner": partner, "host": hosts[partner], "where": location}
            times.append({**record, "latency": seconds[0], "bandwidth": LONG / seconds[1]})
        communicator.barrier()
    return times


def _there_and_back(communicator: Any, partner: int, size: int) -> float:
    """Return the least seconds of a message of ``size`` bytes one way, as rank 0 sees it."""
    values, least = np.zeros(size, np.uint8), np.inf
    for _ in range(REPEATED):
        began = time.perf_counter()
        if communicator.rank == 0:
            communicator.send(values, partner)
            communicator.receive(values.shape, values.dtype, partner)
        elif communicator.rank == partner:
            communicator.send(communicator.receive(values.shape, values.dtype, 0), 0)
        least = min(least, (time.perf_counter() - began) / 2)
    return least


def page_of(battery: Battery, ranks: int, messages: Sequence[dict[str, Any]]) -> str:
    """Return the page, Markdown."""
    from mpifed.training.train import describe_versions

    failed = [step for step in battery.steps if step.failure]
    verdict = f"{len(failed)} of {len(battery.steps)} steps failed." if failed else "All is fine."
    launcher = battery.command(ranks, ["test"])[: -len(python_words("test"))]
    _, version = ended([launcher[0], "--version"], battery.folder, PATIENCE)
    facts = {
        "host": socket.gethostname(),
        "system": f"{platform.platform()}, {physical_cores()} cores",
        "launcher": shlex.join(launcher),
        "its version": one_line(" ".join(version.split()), 120),
        "Python": sys.executable,
        **describe_versions(),
        **({"MPI": str(messages[0]["mpi"])} if messages else {}),
        **{name: os.environ[name] for name in sorted(os.environ) if name.startswith("SLURM_JOB_N")},
    }
    lines = [
        "# mpifed test",
        "",
        f"{datetime.datetime.now():%Y-%m-%d %H:%M}, {ranks} ranks. **{verdict}**",
        "",
        *_table(
            ["step", "result", "seconds"],
            [[step.name, step.result, f"{step.seconds:.1f}"] for step in battery.steps],
        ),
    ]
    if messages:
        rows = [
            [
                f"0 and {each['partner']} ({each['host']}, {each['where']})",
                f"{1e6 * each['latency']:.1f}",
                f"{each['bandwidth'] / 1e9:.2f}",
            ]
            for each in messages
        ]
        lines += ["", "## Messages", ""]
        lines += _table(["ranks", "latency (µs)", "bandwidth (GB/s)"], rows)
    lines += ["", "## Here", "", *_table(["what", "value"], [[*item] for item in facts.items()])]
    for step in failed:
        lines += ["", f"## {step.name}: {step.failure}", "", "```", f"$ {step.command}"]
        lines += [*step.printed.splitlines(), "```"]
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *cells)]


def parser() -> Parser:
    """Return the parser of the command."""
    command_line = parser_of(
        "test",
        "Try whether runs work on this computer or allocation: the same numbers on 1, 2 and N "
        "ranks, a kill and a resume, the speed of messages. It writes a page for an administrator.",
        epilog="Exit codes: 0 all is fine, 1 a step failed, 2 bad input. Example: "
        "python -m mpifed.test --ranks 8 --launcher 'srun --mpi=pmix -n'",
    )
    command_line.add_argument(
        "--ranks",
        type=whole(2),
        metavar="N",
        help="the most ranks (default: the tasks of the SLURM job, else the cores, at least 2)",
    )
    command_line.add_argument(
        "--launcher",
        metavar="WORDS",
        help="what starts ranks, up to their number (default: 'mpirun -n')",
    )
    command_line.add_argument(
        "--limit", type=_seconds, default=300.0, metavar="SECONDS", help="for each step (300)"
    )
    command_line.add_argument(
        "--output", type=Path, default=PAGE, metavar="FILE", help=f"the page (default: {PAGE})"
    )
    command_line.add_argument("--messages", action="store_true", help=argparse.SUPPRESS)
    return command_line


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < np.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"is {text!r}; it must be a number of seconds above 0")


if __name__ == "__main__":
    sys.exit(main())
