"""Which samples a client visits in which order, for many clients at once.

``draw_orders`` gives every (client, component) its own sequence of samples; ``plan`` cuts these
sequences into minibatches and arranges clients in blocks that step together. A plan depends only on
shard sizes, so one serves every round with the same participants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mpifed.local.options import Sampling
from mpifed.random import shuffles, uniforms


@dataclass(frozen=True)
class Work:
    """How much a client does in a round, each int64 (clients,).

    ``samples`` n_t, ``steps`` minibatches in all, ``per_epoch`` minibatches in one pass, ``drawn``
    samples in one pass: n_t, or more where every minibatch is whole.
    """

    samples: np.ndarray
    steps: np.ndarray
    per_epoch: np.ndarray
    drawn: np.ndarray

    @property
    def epochs(self) -> np.ndarray:
        """Passes begun."""
        return -(-self.steps // self.per_epoch)

    def shortened(self, effort: np.ndarray) -> Work:
        """The first steps only, a share ``effort`` of them, float64 in (0, 1]; at least one."""
        steps = np.ceil(effort * self.steps).astype(np.int64).clip(min=1)
        return replace(self, steps=np.minimum(steps, self.steps))


def work_of(
    n_train: np.ndarray,
    batch_size: int,
    epochs: int,
    steps: int | None,
    sampling: Sampling = "shuffled",
) -> Work:
    """``epochs`` passes in minibatches of ``batch_size``; or ``steps`` minibatches, if given.

    The last minibatch of a shuffled pass is what is left of the samples. By ``uniform`` sampling
    each has ``batch_size`` samples, or n_t where that is less (Marfoq et al. 2021, Alg. 2,
    line 17).
    """
    per_epoch = -(-n_train // batch_size)
    total = per_epoch * epochs if steps is None else np.full_like(per_epoch, steps)
    drawn = n_train if sampling == "shuffled" else per_epoch * np.minimum(batch_size, n_train)
    return Work(n_train, total, per_epoch, drawn)


@dataclass(frozen=True)
class Step:
    """One step of a block: its clients ``first`` to ``last`` each take minibatch ``number``.

    Clients are counted in the sorted order of the plan; ``slots`` are the entries of the plan's
    tables that belong to the step.
    """

    number: int
    first: int
    last: int
    slots: slice


@dataclass(frozen=True)
class Plan:
    """Minibatches of all active clients, padded, in the order in which they are visited.

    ``order`` sorts clients by decreasing number of steps; ``steps`` go block by block. Each step
    has (clients x components x width) slots. ``place`` (int64, one per slot) is the position in the
    sequences of ``draw_orders``; ``scale`` is 1 / (samples in the minibatch), 0 for the padding.
    """

    order: np.ndarray
    steps: list[Step]
    place: Tensor
    scale: Tensor


def plan(
    work: Work,
    batch_size: int,
    width: int,
    components: int,
    block: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """Minibatches padded to ``width``, clients in blocks of ``block``.

    Sorted by their number of steps, the clients of a block that still step are always its first, so
    one whose epochs are over costs nothing.
    """
    order = np.argsort(-work.steps, kind="stable")
    lengths = work.drawn * work.epochs
    starts = (np.cumsum(lengths * components) - lengths * components)[order]
    drawn, steps, per_epoch = work.drawn[order], work.steps[order], work.per_epoch[order]
    strides = lengths[order][:, None] * np.arange(components)
    columns = np.arange(width)
    made, place, scale, slot = [], [np.zeros(0, np.int64)], [np.zeros(0)], 0
    for first in range(0, len(order), block):
        for number in range(int(steps[first])):
            last = first + int((steps[first : first + block] > number).sum())
            part = slice(first, last)
            epoch, index = np.divmod(number, per_epoch[part])
            sizes = np.minimum(batch_size, drawn[part] - index * batch_size)
            inside = columns < sizes[:, None]
            begin = (starts[part] + epoch * drawn[part] + index * batch_size)[:, None]
            within = begin + np.where(inside, columns, 0)
            place.append((within[:, None, :] + strides[part][:, :, None]).reshape(-1))
            scale.append(np.repeat(inside / sizes[:, None], components, axis=0).reshape(-1))
            made.append(Step(number, first, last, slice(slot, slot + len(place[-1]))))
            slot += len(place[-1])
    return Plan(
        order,
        made,
        torch.from_numpy(np.concatenate(place)).to(device),
        torch.from_numpy(np.concatenate(scale)).to(device, dtype),
    )


def draw_orders(
    keys: np.ndarray, starts: np.ndarray, work: Work, components: int, sampling: Sampling
) -> Tensor:
    """The sequences of sample rows: int64, client by client, component by component, epoch by
    epoch.

    ``keys`` is uint64 (clients,), ``starts`` the first row of each client's shard. ``shuffled``
    makes each epoch a fresh permutation; ``uniform`` draws every sample independently, so that
    each minibatch is whole (Alg. 2, line 17).
    """
    epochs = work.epochs
    passes = np.repeat(np.arange(len(keys)), epochs * components)
    number = np.arange(len(passes)) - np.repeat(
        np.cumsum(epochs * components) - epochs * components, epochs * components
    )
    pass_keys = uniforms(keys[passes], number)
    samples = work.samples[passes]
    if sampling == "shuffled":
        visited = shuffles(pass_keys, samples)
        return torch.from_numpy(visited + np.repeat(starts[passes], samples))
    drawn = work.drawn[passes]
    counters = np.arange(drawn.sum()) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    bits = uniforms(np.repeat(pass_keys, drawn), counters) >> np.uint64(32)
    of = np.repeat(samples, drawn).astype(np.uint64)
    visited = (bits * of >> np.uint64(32)).astype(np.int64)
    return torch.from_numpy(visited + np.repeat(starts[passes], drawn))
