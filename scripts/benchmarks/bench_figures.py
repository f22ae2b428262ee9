"""What benchmarks share: figures as lines of JSON, CPU seconds, an engine, and how to run them.

Nothing is imported here before it is needed: a benchmark decides what its process loads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

chosen = {"device": "cpu"}
"""Where engines compute; ``run`` reads it off the command line."""


def clock() -> float:
    """CPU seconds of this process, or wall seconds at which a GPU has done what it was given."""
    if chosen["device"] == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def report(name: str, value: float, unit: str, **detail: Any) -> None:
    """Prints one figure as a line of JSON."""
    print(json.dumps({"name": name, "value": value, "unit": unit, "detail": detail}), flush=True)


def cpu_seconds(
    action: Callable[[], Any], repeats: int, inner: int = 1, warm: bool = True
) -> list[float]:
    """Seconds by ``clock`` of one call, ``repeats`` times, each the mean of ``inner`` calls.

    ``warm`` makes one call before, which is not counted.
    """
    return in_turn({"": action}, repeats, inner, warm)[""]


def in_turn(
    actions: Mapping[str, Callable[[], Any]], repeats: int, inner: int = 1, warm: bool = True
) -> dict[str, list[float]]:
    """``cpu_seconds`` of each action, measured in turn so that all meet the same noise."""
    measured: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        if warm:
            action()
    for _ in range(repeats):
        for name, action in actions.items():
            began = clock()
            for _ in range(inner):
                action()
            measured[name].append((clock() - began) / inner)
    return measured


def engine(experiment: str, **overrides: Any) -> Any:
    """A shipped experiment, prepared for its first round, in this process with one thread."""
    import torch

    from mpifed.config.configuration import apply_overrides, read_experiment, resolve
    from mpifed.mpi.communicator import Alone
    from mpifed.training.build import make
    from mpifed.training.engine import Clock, Engine

    torch.set_num_threads(1)
    overrides = {**chosen, **overrides}
    setup = make(resolve(apply_overrides(read_experiment(experiment), overrides)), Alone(), 200)
    made = Engine(setup, setup.hosted_shards(), Clock())
    made.prepare()
    return made


def scores_of(made: Any) -> Any:
    """Every client's scores between rounds of an engine."""
    from mpifed.federation.clients import Draws
    from mpifed.training.evaluation import score, training_of

    training = training_of(made.setup, made.shards)
    draws = Draws(made.seed, made.round)
    return score(made.setup, made.shards, made.state, training, draws)


def measures_of(made: Any) -> Any:
    """What its algorithm adds to metrics.csv."""
    from mpifed.federation.clients import Draws
    from mpifed.training.evaluation import measure, of_trained, training_of

    training = training_of(made.setup, made.shards)
    trained = of_trained(made.setup, made.state, training)
    return measure(made.setup, trained, training, Draws(made.seed, made.round))


def run(benchmarks: Mapping[str, Callable[[], None]], words: list[str]) -> int:
    """Runs the named benchmarks, or all; returns 2 for a name or a device there is not."""
    known = ", ".join(benchmarks)
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all; {known}")
    asked = parser.parse_args(words)
    for name in asked.names:
        if name not in benchmarks:
            print(f"bench: there is no '{name}'; there are: {known}", file=sys.stderr)
            return 2
    chosen["device"] = asked.device
    if asked.device == "cuda" and not _sees_gpu():
        print("bench: --device is cuda, but torch sees no GPU; allowed here: cpu", file=sys.stderr)
        return 2
    for name in asked.names or benchmarks:
        benchmarks[name]()
    return 0


def _sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
