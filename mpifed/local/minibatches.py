"""Which samples a client visits in which order, for many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Split
from mpifed.federation.clients import Clients, Draws
from mpifed.io.memory import check_memory
from mpifed.local.options import Sampling
from mpifed.random import bits_at, shuffles

# Least number of bytes of a sample in a minibatch: its place, int64, and its weight, float32.
SLOT_BYTES = 12

# Columns of a float64 product that are samples of several clients are padded to multiples of this.
COLUMNS = 96


@dataclass(frozen=True)
class Work:
    """Amount of work of each client in a round."""

    samples: np.ndarray
    steps: np.ndarray
    per_epoch: np.ndarray
    drawn: np.ndarray

    @property
    def epochs(self) -> np.ndarray:
        """Number of passes begun, int64 (clients,)."""
        return -(-self.steps // self.per_epoch)

    def shortened(self, effort: np.ndarray) -> Work:
        """Return the first steps only, a share ``effort`` of them, at least one."""
        steps = np.ceil(effort * self.steps).astype(np.int64).clip(min=1)
        return replace(self, steps=np.minimum(steps, self.steps))


def work_of(
    n_train: np.ndarray,
    batch_size: int,
    epochs: int,
    steps: int | None,
    sampling: Sampling = "shuffled",
) -> Work:
    """Return the work of ``epochs`` passes, or of ``steps`` minibatches where given. With
    ``uniform`` sampling each has ``batch_size`` samples, at most n_t (Marfoq et al. 2021, Alg. 2,
    line 17).
    """
    per_epoch = -(-n_train // batch_size)
    total = per_epoch * epochs if steps is None else np.where(n_train > 0, steps, 0)
    drawn = n_train if sampling == "shuffled" else per_epoch * np.minimum(batch_size, n_train)
    return Work(n_train, total, per_epoch.clip(min=1), drawn)


@dataclass(frozen=True)
class Step:
    """One step of a block: clients ``first`` to ``last`` each take minibatch ``number``."""

    number: int
    first: int
    last: int


@dataclass(frozen=True)
class Minibatches:
    """Minibatches of all active clients, padded, in the order in which they are visited.

    ``idle`` has the positions in ``order`` of clients that take no step.
    """

    order: np.ndarray
    idle: Tensor
    steps: list[Step]
    sizes: list[int]
    positions: Tensor
    scale: Tensor

    @cached_property
    def is_sorted(self) -> bool:
        """Whether ``order`` ascends."""
        return bool((self.order[1:] > self.order[:-1]).all())

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first client of each block, int64 (blocks,); 0 for the first that steps: those before
        it have no samples.
        """
        firsts = np.array([step.first for step in self.steps if step.number == 0], np.int64)
        firsts[:1] = 0
        return firsts


def plan_minibatches(
    work: Work,
    batch_size: int,
    width: int,
    components: int,
    block: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Minibatches:
    """Arrange minibatches, padded to one width, in blocks of clients."""
    order = np.argsort(-work.steps, kind="stable") if block > 1 else np.arange(len(work.steps))
    lengths = work.drawn * work.epochs
    starts = (np.cumsum(lengths * components) - lengths * components)[order]
    drawn, steps, per_epoch = work.drawn[order], work.steps[order], work.per_epoch[order]
    strides = lengths[order][:, None] * np.arange(components)
    columns = np.arange(width)
    planned, positions, scale = [], [np.zeros(0, np.int64)], [np.zeros(0)]
    for first in range(0, len(order), block):
        for number in range(int(steps[first])):
            last = first + int((steps[first : first + block] > number).sum())
            part = slice(first, last)
            epoch, index = np.divmod(number, per_epoch[part])
            sizes = np.minimum(batch_size, drawn[part] - index * batch_size)
            inside = columns < sizes[:, None]
            begin = (starts[part] + epoch * drawn[part] + index * batch_size)[:, None]
            entries = begin + np.where(inside, columns, 0)
            positions.append((entries[:, None, :] + strides[part][:, :, None]).reshape(-1))
            scale.append(np.repeat(inside / sizes[:, None], components, axis=0).reshape(-1))
            planned.append(Step(number, first, last))
    return Minibatches(
        order,
        torch.from_numpy(np.flatnonzero(steps == 0)),
        planned,
        [len(slots) for slots in positions[1:]],
        torch.from_numpy(np.concatenate(positions)).to(device),
        torch.from_numpy(np.concatenate(scale)).to(device, dtype),
    )


def draw_orders(
    keys: np.ndarray, starts: np.ndarray, work: Work, components: int, sampling: Sampling
) -> Tensor:
    """Draw the sequences of sample rows, by client, then component, then epoch."""
    epochs = work.epochs
    passes = np.repeat(np.arange(len(keys)), epochs * components)
    number = np.arange(len(passes)) - np.repeat(
        np.cumsum(epochs * components) - epochs * components, epochs * components
    )
    pass_keys = bits_at(keys[passes], number)
    samples = work.samples[passes]
    if sampling == "shuffled":
        return torch.from_numpy(shuffles(pass_keys, samples, starts[passes]))
    drawn = work.drawn[passes]
    counters = np.arange(drawn.sum()) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    bits = bits_at(np.repeat(pass_keys, drawn), counters) >> np.uint64(32)
    of = np.repeat(samples, drawn).astype(np.uint64)
    visited = (bits * of >> np.uint64(32)).astype(np.int64)
    return torch.from_numpy(visited + np.repeat(starts[passes], drawn))


def check_plan(work: Work, epochs: int | None, width: int, epochs_field: str) -> None:
    """Refuse more local steps than memory can hold minibatches of the largest client and model."""
    (steps,), (longest,) = work.steps.tolist(), work.samples.tolist()
    what = f"local.steps is {steps}, which"
    if epochs is not None:
        what = f"{epochs_field} is {epochs}, which with {longest} samples of a client"
    check_memory(float(SLOT_BYTES) * steps * width, what)


def batches(
    clients: Clients, draws: Draws, purpose: str, size: int | np.ndarray
) -> list[np.ndarray]:
    """Draw training samples of each client, without replacement."""
    counts = clients.n_train
    order = shuffles(draws.client_keys(purpose, clients.ids), counts)
    begins = np.cumsum(counts) - counts
    ends = begins + np.minimum(size, counts)
    return [
        order[begin:end] + start
        for begin, end, start in zip(begins.tolist(), ends.tolist(), clients.starts, strict=True)
    ]


def chosen(train: Split, samples: list[np.ndarray]) -> Split:
    """Return the split that consists of some rows of ``train``."""
    rows = torch.from_numpy(np.concatenate(samples) if samples else np.zeros(0, np.int64))
    rows = rows.to(train.x.device)
    offsets = np.concatenate([[0], np.cumsum([len(drawn) for drawn in samples])]).astype(np.int64)
    return Split(train.x.index_select(0, rows), train.y.index_select(0, rows), offsets)


def minibatches(split: Split, size: int) -> tuple[Split, np.ndarray]:
    """Cut every client's samples into minibatches, in their order; the last one has the rest."""
    numbers = -(-split.counts // size)
    ends = np.cumsum(numbers)
    first = ends - numbers
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(first, numbers)
    begins = np.repeat(split.offsets[:-1], numbers) + size * within
    return Split(split.x, split.y, np.append(begins, split.offsets[-1])), first


def share_weights(
    clients: Clients, draws: Draws, purpose: str, share: float, like: Tensor
) -> Tensor:
    """Return weights of samples under which a loss is that of a drawn share of them."""
    counts = clients.n_train
    sizes = np.ceil(share * counts).astype(np.int64)
    rows = np.concatenate([np.zeros(0, np.int64), *batches(clients, draws, purpose, sizes)])
    weights = np.zeros((1, len(clients.shards.train.x)))
    weights[0, rows] = np.repeat(counts / sizes, sizes)
    return torch.from_numpy(weights).to(like)


def never_alone(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Return ``function(*rows)``, computed row by row, with at least two rows in the call."""
    if len(rows[0]) > 1:
        return function(*rows)
    return function(*(t.expand(2, *t.shape[1:]).contiguous() for t in rows))[:1]
