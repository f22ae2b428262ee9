"""Benchmarks of networks: rounds and evaluation beside bare PyTorch loops over the same steps.

Samples are random images or characters of the shape that is named, so no data files are needed.
The bare loop trains a module on the same shards with ``torch.optim`` and nothing else: a shuffled
epoch for each client, ``zero_grad``, ``backward``, ``step``, and the mean of the parameters at the
end. Both are measured in turn, in CPU seconds of one thread.
"""

from __future__ import annotations

import copy
import statistics
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_figures import chosen, engine, in_turn, report, scores_of
from torch import nn

from mpifed.data.base import Dataset, Description, Shards, Split
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.models.lstm import lstm
from mpifed.models.mlp import Mlp, mlp
from mpifed.models.mobilenet import mobilenet_v2
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

REPEATS = 5


class RandomSamples(Dataset):
    """Random images, or characters, with random labels.

    Parameters
    ----------
    shape : list of int
        Shape of a sample.
    labels : int
        Number of labels.
    samples : int
        Training samples of a client.
    tests : int
        Test samples of a client.
    codes : bool
        Whether inputs are codes 0 .. labels - 1.
    """

    def __init__(
        self,
        n_clients: int,
        seed: int,
        communicator: Communicator,
        *,
        shape: list[int],
        labels: int = 10,
        samples: int = 600,
        tests: int = 20,
        codes: bool = False,
    ) -> None:
        counts = [np.full(n_clients, n, np.int64) for n in (samples, 0, tests)]
        self.description = Description("random", tuple(shape), labels, *counts)
        self.seed, self.codes = seed, codes

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        return Shards(
            client_ids, *(self._split(client_ids, n, dtype) for n in ("train", "val", "test"))
        )

    def _split(self, client_ids: np.ndarray, name: str, dtype: torch.dtype) -> Split:
        about = self.description
        counts = getattr(about, f"n_{name}")[client_ids]
        generator = stream(self.seed or 0, name)
        shape = (int(counts.sum()), *about.input_shape)
        x = (
            generator.integers(0, about.n_classes, shape)
            if self.codes
            else generator.standard_normal(shape, np.float32)
        )
        y = generator.integers(0, about.n_classes, len(x))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Split(torch.from_numpy(x).to(dtype), torch.from_numpy(y), offsets)


def small_cnn(data: Description) -> nn.Module:
    """The CNN of McMahan et al. (2017) for MNIST, without padding."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, data.n_outputs),
    )


def perceptron(data: Description) -> nn.Module:
    """784-64-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def small_perceptron(data: Description) -> nn.Module:
    """20-16-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))


def wide_mlp(data: Description) -> Mlp:
    """784-512-512-10."""
    return mlp(data, hidden=[512, 512])


def made(model: str, data: dict[str, Any], **overrides: Any) -> Any:
    """An engine that trains ``model`` on random samples."""
    return engine(
        "digits-fedem",
        **{
            "data": {"name": "bench_networks:RandomSamples", **data},
            "model": {"name": model},
            "algorithm": "fedavg",
            "local.lr": 0.05,
            **overrides,
        },
    )


def bare_loop(module: nn.Module, train: Split, batch: int, **options: Any) -> Callable[[], None]:
    """One round of FedAvg in plain PyTorch."""
    module = copy.deepcopy(module).to(train.x.device)
    loss = nn.CrossEntropyLoss()

    def round_() -> None:
        start = copy.deepcopy(module.state_dict())
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for first, end in zip(train.offsets, train.offsets[1:], strict=False):
            module.load_state_dict(start)
            module.train()
            optimizer = torch.optim.SGD(module.parameters(), **{"lr": 0.05, **options})
            order = first + torch.randperm(int(end - first))
            for visited in order.split(batch):
                optimizer.zero_grad()
                loss(module(train.x[visited]), train.y[visited]).backward()
                optimizer.step()
            for name, value in module.state_dict().items():
                total[name] += value
        clients = len(train.offsets) - 1
        module.load_state_dict({name: value / clients for name, value in total.items()})

    return round_


def ratio(measured: dict[str, list[float]], over: str, under: str) -> float:
    """The median of the ratios of paired measurements."""
    pairs = zip(measured[over], measured[under], strict=True)
    return statistics.median(a / b for a, b in pairs)


def compared(
    name: str, module: nn.Module, model: str, data: dict[str, Any], batch: int, **overrides: Any
) -> None:
    """A round of FedAvg and one of FedEM with M = 3, beside the bare loop and forward passes."""
    overrides = {"local.batch_size": batch, **overrides}
    fedavg = made(model, data, **overrides)
    fedem = made(model, data, **{**overrides, "algorithm": {"name": "fedem", "n_components": 3}})
    train = fedavg.shards.loaded.train
    momentum = {"momentum": overrides.get("local.momentum", 0.0)}
    loop = bare_loop(module, train, batch, **momentum)
    best = best_forward(module, train.x)
    measured = in_turn(
        {"fedavg": fedavg.advance, "bare": loop, "fedem": fedem.advance, "forward": best}, REPEATS
    )
    middle = {key: round(statistics.median(values), 3) for key, values in measured.items()}
    report(name, round(ratio(measured, "fedavg", "bare"), 3), "of a bare loop", **middle)
    excess = [
        (em - 3 * forward) / avg
        for em, avg, forward in zip(
            measured["fedem"], measured["fedavg"], measured["forward"], strict=True
        )
    ]
    report(
        f"{name}_fedem",
        round(statistics.median(excess), 3),
        "of FedAvg, three forward passes of the E-step apart",
        whole=round(ratio(measured, "fedem", "fedavg"), 3),
    )


def resident_bytes() -> int:
    """Memory of this process that is not shared with files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def most_resident_bytes(action: Callable[[], None]) -> int:
    """The most of it while ``action`` runs, looked at every two milliseconds."""
    found, done = [resident_bytes()], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            found.append(resident_bytes())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        action()
    finally:
        done.set()
        watcher.join()
    return max(found)


def best_forward(module: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Bare forward passes over ``x`` at the batch size at which they are quickest."""
    module = copy.deepcopy(module).to(x.device).eval()

    def passes(batch: int) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                for part in x.split(batch):
                    module(part)

        return run

    sizes = (16, 32, 64, 128, 256, 1024)
    measured = in_turn({str(size): passes(size) for size in sizes}, 3)
    return passes(int(min(measured, key=lambda size: min(measured[size]))))


def cnn_round() -> None:
    """The CNN on ten clients of 600 images, batch 20."""
    about = {"shape": [28, 28], "samples": 600}
    description = Description("random", (28, 28), 10, *[np.zeros(1, np.int64)] * 3)
    compared("cnn_round", small_cnn(description), "bench_networks:small_cnn", about, 20, clients=10)


def mlp_round() -> None:
    """A perceptron 784-64-10 on sixty clients of 700 images, batch 128."""
    about = {"shape": [28, 28], "samples": 700}
    description = Description("random", (28, 28), 10, *[np.zeros(1, np.int64)] * 3)
    compared("mlp_round", perceptron(description), "mlp", about, 128, clients=60)


def lstm_round() -> None:
    """The LSTM on four clients of 64 sequences of 80 characters, batch 32."""
    about = {"shape": [80], "labels": 80, "samples": 64, "tests": 4, "codes": True}
    description = Description("random", (80,), 80, *[np.zeros(1, np.int64)] * 3)
    compared("lstm_round", lstm(description), "lstm", about, 32, clients=4)


def mobilenet_round() -> None:
    """MobileNet-v2 on two clients of 128 images of 32 x 32, batch 64."""
    about = {"shape": [3, 32, 32], "samples": 128, "tests": 4}
    description = Description("random", (3, 32, 32), 10, *[np.zeros(1, np.int64)] * 3)
    compared("mobilenet_round", mobilenet_v2(description), "mobilenet_v2", about, 64, clients=2)


def mobilenet_memory() -> None:
    """Peak memory of FedEM, M = 3, with eight clients on a rank, in copies of its components."""
    about = {"shape": [3, 32, 32], "samples": 8, "tests": 2}
    fedem = {"name": "fedem", "n_components": 3}
    empty = resident_bytes()
    engine = made(
        "mobilenet_v2",
        about,
        clients=8,
        algorithm=fedem,
        **{"local.batch_size": 8, "local.momentum": 0.9},
    )
    engine.advance()
    before = resident_bytes() - empty
    peak = most_resident_bytes(engine.advance) - empty
    copies = 8 * 3 * engine.setup.model.n_parameters * 4
    report(
        "mobilenet_memory",
        round(peak / copies, 2),
        "copies of eight clients' components, data and the libraries' own memory included",
        resident_between_rounds=round(before / copies, 2),
        mebibytes_of_a_copy=round(copies / 2**20),
    )


def ways_of_stepping() -> None:
    """Modules stacked and one by one."""
    for name, shape, batch, samples, clients in (
        ("small_perceptron", [20], 20, 200, 60),
        ("perceptron", [28, 28], 20, 200, 30),
        ("perceptron", [28, 28], 128, 700, 30),
        ("small_cnn", [28, 28], 20, 100, 5),
    ):
        about = {"shape": shape, "samples": samples}
        engines = {
            way: made(
                f"bench_networks:{name}",
                about,
                clients=clients,
                **{"local.batch_size": batch, "local.stepping": way},
            )
            for way in ("stacked", "one_by_one")
        }
        measured = in_turn({way: made.advance for way, made in engines.items()}, REPEATS)
        report(
            "ways_of_stepping",
            round(ratio(measured, "stacked", "one_by_one"), 2),
            "stacked, of one by one",
            model=name,
            batch=batch,
            **{way: round(statistics.median(values), 3) for way, values in measured.items()},
        )


def in_place(model: Mlp, rows: torch.Tensor, train: Split, batch: int) -> Callable[[], None]:
    """One step of every client in plain PyTorch: forward, backward, and an update in place."""
    modules = [model.module(row) for row in rows]
    loss = nn.CrossEntropyLoss()

    def steps() -> None:
        for module, first, end in zip(modules, train.offsets, train.offsets[1:], strict=False):
            visited = first + torch.randperm(int(end - first))[:batch]
            parameters = list(module.parameters())
            found = loss(module(train.x[visited]), train.y[visited])
            gradients = torch.autograd.grad(found, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-0.05)

    return steps


ONE_STEP: dict[str, dict[str, Any]] = {
    "exponential": {"exchange": "gossip", "exchange.topology": "exponential"},
    "ring": {"exchange": "gossip", "exchange.topology": "ring"},
    "erdos_renyi": {"exchange": "gossip", "exchange.topology": {"name": "erdos_renyi", "p": 0.5}},
    "one_peer": {"exchange": "gossip", "exchange.schedule": "one_peer_exponential"},
    "server": {"exchange": "server"},
}


def one_step() -> None:
    """Rounds of one step, 784-512-512-10 on 32 clients, batch 32: local steps, then an average.

    The script makes the same steps in plain PyTorch, then ``W @ X``, or the mean of all rows.
    """
    about = {"shape": [28, 28], "samples": 64}
    options = {"clients": 32, "local.steps": 1, "local.batch_size": 32}
    engines = {
        name: made("bench_networks:wide_mlp", about, **options, **exchange)
        for name, exchange in ONE_STEP.items()
    }
    some = engines["server"]
    model, train = some.setup.model, some.shards.loaded.train
    rows = torch.from_numpy(model.init(np.random.default_rng(0))).float().repeat(32, 1)
    steps = in_place(model, rows, train, 32)
    matrix, weights = torch.full((32, 32), 1 / 32), torch.full((1, 32), 1 / 32)

    def script(mixing: torch.Tensor) -> None:
        steps()
        torch.mm(mixing, rows)

    actions = {name: engine.advance for name, engine in engines.items()}
    scripts = {"mixed": lambda: script(matrix), "averaged": lambda: script(weights)}
    measured = in_turn({**actions, **scripts}, 2 * REPEATS)
    for name in engines:
        beside = "averaged" if name == "server" else "mixed"
        report(
            f"one_step_{name}",
            round(ratio(measured, name, beside), 3),
            "of a script",
            round=round(statistics.median(measured[name]), 4),
            script=round(statistics.median(measured[beside]), 4),
        )


def cnn_hundred() -> None:
    """The CNN on a hundred clients of 600 images, batch 20: stacked, one by one, and on a core.

    Wall seconds on a GPU, beside one core of the host; without ``--device cuda`` none are measured.
    """
    if chosen["device"] == "cpu":
        print("bench: cnn_hundred is measured with --device cuda only", file=sys.stderr)
        return
    about = {"shape": [28, 28], "samples": 600}
    ways: dict[str, dict[str, Any]] = {
        "stacked": {"local.stepping": "stacked"},
        "one_by_one": {"local.stepping": "one_by_one"},
        "one_core": {"local.stepping": "one_by_one", "device": "cpu"},
    }
    engines = {
        way: made(
            "bench_networks:small_cnn", about, clients=100, **{"local.batch_size": 20}, **more
        )
        for way, more in ways.items()
    }
    measured = in_turn({way: made.advance for way, made in engines.items()}, REPEATS)
    report(
        "cnn_hundred",
        round(statistics.median(measured["stacked"]), 3),
        "s",
        device=chosen["device"],
        **{way: round(statistics.median(values), 3) for way, values in measured.items()},
    )


def cnn_scoring() -> None:
    """Scores of the CNN on 12,000 images, beside bare forward passes at their best batch size."""
    about = {"shape": [28, 28], "samples": 600, "tests": 600}
    engine = made("bench_networks:small_cnn", about, clients=10)
    shards = engine.shards.loaded
    x = torch.cat([shards.train.x, shards.test.x])
    description = Description("random", (28, 28), 10, *[np.zeros(1, np.int64)] * 3)
    measured = in_turn(
        {"scores": lambda: scores_of(engine), "forward": best_forward(small_cnn(description), x)},
        REPEATS,
    )
    report(
        "cnn_scoring",
        round(ratio(measured, "scores", "forward"), 3),
        "of bare forward passes",
        **{key: round(statistics.median(values), 3) for key, values in measured.items()},
    )


def compiled_step() -> None:
    """One stacked step of SGD, batch 20: as models take it, by gradients, and by torch.compile."""
    models: dict[str, tuple[Model, int]] = {
        "perceptron": (Mlp((784, 64, 10)), 19),
        "linear": (Linear(784, 10), 50),
    }
    for name, (model, rows) in models.items():
        w = 0.02 * torch.randn(rows, model.n_parameters)
        x, y = torch.randn(rows, 20, 784), torch.randint(0, 10, (rows, 20))
        batch = x, y, torch.full((rows, 20), 1 / 20)
        rates = torch.full((rows, 1), 1e-9)

        def by_gradient(
            w: torch.Tensor,
            *batch: torch.Tensor,
            model: Model = model,
            rates: torch.Tensor = rates,
        ) -> torch.Tensor:
            return w - model.gradient(w, *batch) * rates

        compiled = torch.compile(by_gradient)
        compiled(w, *batch)
        actions: dict[str, Callable[[], object]] = {
            "model": lambda m=model, w=w, b=batch, r=rates: m.descend(w, *b, r),
            "gradient": lambda f=by_gradient, w=w, b=batch: f(w, *b),
            "compiled": lambda f=compiled, w=w, b=batch: f(w, *b),
        }
        measured = in_turn(actions, 8 * REPEATS)
        for other in ("gradient", "compiled"):
            report(
                f"compiled_step_{name}_{other}",
                round(ratio(measured, other, "model"), 2),
                "times the step of the model",
            )


BENCHMARKS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        cnn_round,
        mlp_round,
        lstm_round,
        mobilenet_round,
        ways_of_stepping,
        one_step,
        compiled_step,
        cnn_hundred,
        cnn_scoring,
        mobilenet_memory,
    )
}
