"""Making a federated HDF5 file of a data set: clients are loaded and written a block at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpifed.data.base import Dataset, Shards
from mpifed.data.federated_file import Contents, write
from mpifed.errors import one_line
from mpifed.io.memory import check_memory, enough_memory
from mpifed.mpi.communicator import Alone

# Bytes of x that are held at once, if no client has more.
BLOCK = 256 << 20


def make(
    name: str,
    component: Callable[..., Dataset],
    n_clients: int,
    seed: int,
    values: Mapping[str, Any],
    dtype: str,
    output: Path,
    say: Callable[[str], None],
) -> str:
    """Write the file."""
    check_memory(8.0 * n_clients, f"--clients is {n_clients}, which")
    with enough_memory(f"the data set {name} with such options"):
        dataset = component(n_clients, seed, Alone(), **values)
    for line in dataset.remarks():
        say(line)
    contents, stored = _contents(dataset, values, seed, dtype)
    blocks = _blocks(dataset, contents, stored, show=sys.stderr.isatty())
    write(output, contents, blocks, {"dataset": name, **values})
    about = contents.description
    return (
        f"{output}: {n_clients} clients of {one_line(about.source, 200)}, "
        f"{about.n_train.sum()} training, {about.n_val.sum()} validation and "
        f"{about.n_test.sum()} test samples, {output.stat().st_size / 1e6:.1f} MB"
    )


def _contents(
    dataset: Dataset, values: Mapping[str, Any], seed: int, dtype: str
) -> tuple[Contents, torch.dtype]:
    """What the file will hold, and the type in which x is loaded for it."""
    stored = "uint8" if dataset.divisor > 1 or dataset.is_uint8 else dtype
    partition = str(values.get("partition", "natural"))
    made_by = seed if dataset.seed is None else dataset.seed
    contents = Contents(dataset.description, partition, made_by, stored, dataset.divisor)
    return contents, getattr(torch, stored)


def _blocks(
    dataset: Dataset, contents: Contents, dtype: torch.dtype, show: bool
) -> Iterator[Shards]:
    about = contents.description
    samples = about.n_train + about.n_val + about.n_test
    largest = int(samples.argmax())
    check_memory(
        float(samples[largest]) * math.prod(about.input_shape) * dtype.itemsize,
        f"client {largest} has {samples[largest]} samples of shape {about.input_shape}, which",
    )
    sizes = samples * math.prod(about.input_shape)
    block = np.cumsum(sizes * dtype.itemsize) // BLOCK
    for clients in np.split(np.arange(len(block)), np.flatnonzero(np.diff(block)) + 1):
        if show:
            print(f"\r{clients[0]} of {len(block)} clients", end="", file=sys.stderr, flush=True)
        yield dataset.load(clients, dtype)
    if show:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
