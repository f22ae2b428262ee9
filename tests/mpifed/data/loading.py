"""What tests of loaders check alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mpifed.dataset import Communicator, Dataset
from mpifed.testing import load_dataset


def dataset_of(
    name: str,
    n_clients: int | str,
    seed: int = 0,
    communicator: Communicator | None = None,
    /,
    **options: Any,
) -> Any:
    """A data set by name, with some of its options."""
    data = {"name": name, **options}
    return load_dataset(data, n_clients, seed=seed, communicator=communicator)


def all_rows(dataset: Dataset, dtype=torch.float64) -> tuple[np.ndarray, np.ndarray]:
    """x and y of all clients and splits, after checking them against the description."""
    about = dataset.description
    shards = dataset.load(np.arange(about.n_clients), dtype)
    splits = (shards.train, shards.val, shards.test)
    for split, counts in zip(splits, (about.n_train, about.n_val, about.n_test), strict=True):
        assert np.array_equal(split.counts, counts)
        assert split.x.shape == (counts.sum(), *about.input_shape)
        assert split.y.dtype == about.target_type(dtype)
    x = torch.cat([split.x for split in splits]).numpy()
    return x, torch.cat([split.y for split in splits]).numpy()


def sorted_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    rows = np.column_stack([np.asarray(x).reshape(len(x), -1), y])
    return rows[np.lexsort(rows.T)]


def holds(dataset: Dataset, x: np.ndarray, y: np.ndarray, divisor: float = 1) -> bool:
    """Whether the clients together hold exactly these samples, x as it is stored."""
    found, labels = all_rows(dataset)
    return np.array_equal(sorted_rows(np.round(found * divisor), labels), sorted_rows(x, y))


def labels_by_client(dataset: Dataset) -> list[np.ndarray]:
    shards = dataset.load(np.arange(dataset.description.n_clients), torch.float32)
    splits = (shards.train, shards.val, shards.test)
    return [
        np.concatenate([s.y[s.offsets[c] : s.offsets[c + 1]].numpy() for s in splits])
        for c in range(dataset.description.n_clients)
    ]


def texts_of_clients(dataset: Dataset) -> list[str]:
    """The text of each client, put together from its windows of one character."""
    about = dataset.description
    shards = dataset.load(np.arange(about.n_clients), torch.uint8)
    texts = [""] * about.n_clients
    for split in (shards.train, shards.val, shards.test):
        for client in range(about.n_clients):
            start, end = split.offsets[client : client + 2]
            codes = [split.x[start, 0], *split.y[start:end]]
            texts[client] += "".join(about.class_names[code] for code in codes)
    return texts
