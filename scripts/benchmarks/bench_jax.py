"""mpifed beside a program in JAX, a page long, that does the same work on one core.

``scripts/bench jax > LINES`` makes an environment of its own for JAX (in MPIFED_PEERS, by default
/var/tmp/mpifed-peers), measures in turns, and prints the table on standard error too;
``python scripts/benchmarks/bench_peers.py LINES`` puts it into docs/evidence/peers.md. Both
programs have the same samples, and draw their own minibatches of an epoch for each client and
component. Figures are medians of the CPU seconds of turns; start and compilation are before the
first.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
from bench_figures import report
from bench_peers import HERE, JAX, installed, table

TURNS, SECONDS, RATE = 5, 0.4, 0.05
"""Turns, how long one should be, and the step size of ``peers/jax_rounds.py``."""

WAYS = ("vmap", "map")


@dataclass(frozen=True)
class Work:
    """What is trained: widths of a perceptron or ``cnn``, and numbers of clients and samples."""

    model: str
    clients: int
    samples: int
    batch: int
    components: tuple[int, ...] = (1,)

    @property
    def labels(self) -> int:
        """Number of labels; two of them have one logit."""
        return 10 if self.model == "cnn" else max(2, int(self.model.split("-")[-1]))

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (clients, samples, ...) and labels (clients, samples)."""
        random, count = np.random.default_rng(0), (self.clients, self.samples)
        shape = (28, 28) if self.model == "cnn" else (int(self.model.split("-")[0]),)
        x = random.standard_normal((*count, *shape), np.float32)
        y = random.integers(0, self.labels, count, np.int32)
        y.flat[: self.labels] = range(self.labels)  # each label occurs
        return x, y


WORKS = (
    Work("784-10", 100, 200, 20),
    Work("150-1", 300, 256, 128, (1, 3)),
    Work("784-64-10", 100, 200, 20, (1, 3)),
    Work("784-512-512-10", 32, 320, 32),
    Work("cnn", 20, 200, 20),
)


def rounds_of(work: Work, components: int, x: np.ndarray, y: np.ndarray) -> Any:
    """Return mpifed's rounds of this work, before the first."""
    from mpifed.testing import run_rounds

    hidden = [int(width) for width in work.model.split("-")[1:-1]] if "-" in work.model else []
    model = {"name": "mlp", "hidden": hidden} if hidden else {"name": "linear"}
    return run_rounds(
        "fedavg" if components == 1 else {"name": "fedem", "n_components": components},
        list(zip(x, y, strict=True)),
        rounds=0,
        model={"name": "peers.workload:cnn"} if work.model == "cnn" else model,
        local={"lr": RATE, "batch_size": work.batch, "epochs": 1},
        dtype="float32",
    )


def parameters_of(rounds: Any) -> np.ndarray:
    """Return mpifed's shared models, (M, P)."""
    state = rounds.state
    models = state.components if hasattr(state, "components") else state.model
    return np.asarray(models.reshape(-1, models.shape[-1]))


def write(work: Work, rounds: Any, path: Path) -> None:
    """Write the samples, and the first components and mixture weights of mpifed's rounds."""
    mixture = getattr(rounds.state, "mixture", np.ones((work.clients, 1), np.float32))
    x, y = work.draw()
    np.savez(path, x=x, y=y, components=parameters_of(rounds), mixture=np.asarray(mixture))


def begun(work: Work, way: str, path: Path, python: Path) -> Popen[str]:
    """Return the program in JAX, which waits for numbers of rounds."""
    words: list[str | Path] = [
        python,
        HERE / "jax_rounds.py",
        path,
        path.with_suffix(f".{way}.npy"),
    ]
    words += [work.model, str(work.batch), way]
    return Popen(words, stdin=PIPE, stdout=PIPE, text=True)


def seconds_of(program: Popen[str], rounds: int) -> float:
    """Let the program run rounds, and return their CPU seconds."""
    assert program.stdin and program.stdout
    print(rounds, file=program.stdin, flush=True)
    return float(program.stdout.readline())


def ended(program: Popen[str], way: str, path: Path) -> np.ndarray:
    """End the program and return its models, (M, P)."""
    program.communicate()
    if program.returncode:
        raise RuntimeError(f"jax_rounds.py ended with {program.returncode}")
    return np.load(path.with_suffix(f".{way}.npy"))


def advance(rounds: Any, count: int) -> float:
    """Let mpifed run rounds, and return their CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    rounds.advance(count)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and what it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measured(work: Work, python: Path, folder: Path) -> dict[tuple[int, str], list[float]]:
    """Return the seconds of a round in each turn, by the number of components and by program."""
    programs: dict[tuple[int, str], Callable[[int], float]] = {}
    with ExitStack() as stack:
        for components in work.components:
            rounds, path = rounds_of(work, components, *work.draw()), folder / f"{components}.npz"
            programs[components, "mpifed"] = partial(advance, rounds)
            write(work, rounds, path)
            for way in WAYS:
                program = stack.enter_context(begun(work, way, path, python))
                programs[components, way] = partial(seconds_of, program)
        for run in programs.values():
            run(1)
        counts = {key: max(1, round(SECONDS / run(1))) for key, run in programs.items()}
        turns: dict[tuple[int, str], list[float]] = {key: [] for key in programs}
        for _ in range(TURNS):
            for key, run in programs.items():
                turns[key].append(run(counts[key]) / counts[key])
    return turns


def jax(works: tuple[Work, ...] = WORKS) -> None:
    """Measure all, one work after the other."""
    python, version = installed("JAX", JAX)
    figures = []
    for work in works:
        with one_core(), tempfile.TemporaryDirectory(prefix="mpifed-bench-") as folder:
            turns = measured(work, python, Path(folder))
        for components in work.components:
            seconds = {
                name: statistics.median(turns[components, name]) for name in ("mpifed", *WAYS)
            }
            times = {way: round(seconds["mpifed"] / seconds[way], 2) for way in WAYS}
            detail = {
                "jax": version,
                "work": f"{'FedAvg' if components == 1 else f'FedEM, M = {components},'} "
                f"{work.model}, {work.clients} × {work.samples}, batch {work.batch}",
                **{name: round(each, 4) for name, each in seconds.items()},
                **{f"of_{way}": each for way, each in times.items()},
            }
            if components > 1:
                ratios = zip(turns[components, "mpifed"], turns[1, "mpifed"], strict=True)
                detail["of_fedavg"] = round(statistics.median(a / b for a, b in ratios), 2)
            report(f"jax {work.model}", times["vmap"], "times the CPU s of JAX, vmap", **detail)
            figures.append({"detail": detail})
    print(table(figures), file=sys.stderr)


BENCHMARKS = {"jax": jax}
