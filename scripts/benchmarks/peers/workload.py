"""The two workloads of ``scripts/bench peers``: what every peer trains, and on what.

FedAvg: every client takes part in every round, with one epoch of SGD on minibatches of 20.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

BATCH, RATE = 20, 0.05
# Clients, and training samples of each.
SIZES = {"linear": (100, 100), "cnn": (20, 60)}
# The length of a label's image beside the noise.
SIGNAL = {"linear": 0.1, "cnn": 0.6}
TESTS, SHAPE, LABELS = 20, (28, 28), 10


def linear(data: object = None) -> nn.Module:
    """Return a linear classifier of images (samples, 28, 28)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, LABELS))


def cnn(data: object = None) -> nn.Module:
    """Return two convolutions and a linear layer."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 49, LABELS)),
    )


MODELS = {"linear": linear, "cnn": cnn}


def write(workload: str, path: Path) -> None:
    """Write the samples: noise around an image of each label; labels are unlike from client to
    client.
    """
    clients, own = SIZES[workload]
    random = np.random.default_rng(7)
    images = random.standard_normal((LABELS, *SHAPE))
    shares = random.dirichlet(np.full(LABELS, 0.5), clients)
    client = np.repeat(np.arange(clients), own + TESTS)
    y = np.concatenate([random.choice(LABELS, own + TESTS, p=share) for share in shares])
    x = (SIGNAL[workload] * images[y] + random.standard_normal((len(y), *SHAPE))).astype(np.float32)
    test = np.tile(np.arange(own + TESTS) >= own, clients)
    np.savez(path, x=x, y=y, client=client, test=test)


class Federation:
    """The samples of a file, by client."""

    def __init__(self, path: str) -> None:
        found = np.load(path)
        x, y, self.test = torch.from_numpy(found["x"]), torch.from_numpy(found["y"]), found["test"]
        self.test_x, self.test_y = x[self.test], y[self.test]
        numbers = range(int(found["client"].max()) + 1)
        own = [np.flatnonzero((found["client"] == k) & ~self.test) for k in numbers]
        self.clients = [(x[rows], y[rows]) for rows in own]

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of test samples that a model has right."""
        model.eval()
        with torch.no_grad():
            return float((model(self.test_x).argmax(1) == self.test_y).float().mean())


def asked() -> tuple[Federation, nn.Module, int]:
    """Return what the words ``PATH WORKLOAD ROUNDS`` of a peer's program ask for."""
    path, workload, rounds = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Federation(path), MODELS[workload](), int(rounds)


def local_epoch(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Train a model on one client's samples."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for rows in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
