"""Which samples a client visits in which order, for many clients at once.

``draw_orders`` draws a sequence of samples for every (client, component); ``plan`` cuts these
sequences into minibatches and arranges clients in blocks that step together. A plan depends only on
shard sizes, so one serves every round with the same participants.

Clients' training samples drawn without replacement: as batches, splits, or weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Split
from mpifed.federation.clients import Clients, Draws
from mpifed.io.memory import check_memory
from mpifed.local.options import LocalOptions, Sampling
from mpifed.random import bits_at, shuffles

SLOT_BYTES = 12
"""Least number of bytes of a sample in a minibatch: its place, int64, and its weight, float32."""


@dataclass(frozen=True)
class Work:
    """Amount of work of each client in a round.

    Attributes
    ----------
    samples : numpy.ndarray
        Training samples n_t, int64 (clients,), as all attributes.
    steps : numpy.ndarray
        Minibatches in the round.
    per_epoch : numpy.ndarray
        Minibatches in one pass.
    drawn : numpy.ndarray
        Samples in one pass: n_t, or more where every minibatch is full.
    """

    samples: np.ndarray
    steps: np.ndarray
    per_epoch: np.ndarray
    drawn: np.ndarray

    @property
    def epochs(self) -> np.ndarray:
        """Number of passes begun, int64 (clients,)."""
        return -(-self.steps // self.per_epoch)

    def shortened(self, effort: np.ndarray) -> Work:
        """Return the first steps only, a share ``effort`` of them, at least one.

        Parameters
        ----------
        effort : numpy.ndarray
            Share of each client, float64 (clients,) in (0, 1].

        Returns
        -------
        Work
        """
        steps = np.ceil(effort * self.steps).astype(np.int64).clip(min=1)
        return replace(self, steps=np.minimum(steps, self.steps))


def work_of(
    n_train: np.ndarray,
    batch_size: int,
    epochs: int,
    steps: int | None,
    sampling: Sampling = "shuffled",
) -> Work:
    """Return the work of ``epochs`` passes, or of ``steps`` minibatches where given.

    The last minibatch of a shuffled pass holds the samples that are left. With ``uniform`` sampling
    each has ``batch_size`` samples, at most n_t (Marfoq et al. 2021, Alg. 2, line 17). Clients
    without samples take no step.

    Parameters
    ----------
    n_train : numpy.ndarray
        Training samples, int64 (clients,).
    batch_size : int
        Samples of a minibatch.
    epochs : int
        Passes over a client's samples.
    steps : int or None
        Minibatches, in place of ``epochs``.
    sampling : {'shuffled', 'uniform'}
        How samples are drawn; see ``draw_orders``.

    Returns
    -------
    Work

    Examples
    --------
    >>> work_of(np.array([5, 8]), 4, epochs=3, steps=None).steps
    array([6, 6])
    """
    per_epoch = -(-n_train // batch_size)
    total = per_epoch * epochs if steps is None else np.where(n_train > 0, steps, 0)
    drawn = n_train if sampling == "shuffled" else per_epoch * np.minimum(batch_size, n_train)
    return Work(n_train, total, per_epoch.clip(min=1), drawn)


@dataclass(frozen=True)
class Step:
    """One step of a block: clients ``first`` to ``last`` each take minibatch ``number``.

    Attributes
    ----------
    number : int
        Minibatch of the round, from 0.
    first, last : int
        Range of clients, in the sorted order of the plan.
    """

    number: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Minibatches of all active clients, padded, in the order in which they are visited.

    Attributes
    ----------
    order : numpy.ndarray
        Clients by decreasing number of steps, int64 (clients,).
    steps : list of Step
        All steps, block by block.
    sizes : list of int
        Slots of each step, (clients x components x width).
    place : Tensor
        Position in the sequences of ``draw_orders``, int64 (slots,).
    scale : Tensor
        1 / (samples in the minibatch), 0 on padding, (slots,).
    """

    order: np.ndarray
    steps: list[Step]
    sizes: list[int]
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
    """Arrange minibatches, padded to one width, in blocks of clients.

    Clients are sorted by their number of steps. Those of a block that still step are then its first
    ones, so that a client that has finished costs nothing.

    Parameters
    ----------
    work : Work
        Work of each client.
    batch_size : int
        Samples of a minibatch.
    width : int
        Slots of a minibatch, at least ``batch_size`` or the largest shard.
    components : int
        Models that each client trains.
    block : int
        Clients in a block.
    dtype : torch.dtype
        Type of ``Plan.scale``.
    device : torch.device
        Where the tables are kept.

    Returns
    -------
    Plan
    """
    order = np.argsort(-work.steps, kind="stable")
    lengths = work.drawn * work.epochs
    starts = (np.cumsum(lengths * components) - lengths * components)[order]
    drawn, steps, per_epoch = work.drawn[order], work.steps[order], work.per_epoch[order]
    strides = lengths[order][:, None] * np.arange(components)
    columns = np.arange(width)
    made, place, scale = [], [np.zeros(0, np.int64)], [np.zeros(0)]
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
            made.append(Step(number, first, last))
    return Plan(
        order,
        made,
        [len(slots) for slots in place[1:]],
        torch.from_numpy(np.concatenate(place)).to(device),
        torch.from_numpy(np.concatenate(scale)).to(device, dtype),
    )


def draw_orders(
    keys: np.ndarray, starts: np.ndarray, work: Work, components: int, sampling: Sampling
) -> Tensor:
    """Draw the sequences of sample rows, by client, then component, then epoch.

    Parameters
    ----------
    keys : numpy.ndarray
        Keys of the clients' random numbers, uint64 (clients,).
    starts : numpy.ndarray
        First row of each client's shard, int64 (clients,).
    work : Work
        Work of each client.
    components : int
        Models that each client trains.
    sampling : {'shuffled', 'uniform'}
        ``shuffled`` draws a new permutation in each epoch, ``uniform`` every sample independently,
        so that each minibatch is full (Marfoq et al. 2021, Alg. 2, line 17).

    Returns
    -------
    Tensor
        Rows of the hosted training samples, int64.
    """
    epochs = work.epochs
    passes = np.repeat(np.arange(len(keys)), epochs * components)
    number = np.arange(len(passes)) - np.repeat(
        np.cumsum(epochs * components) - epochs * components, epochs * components
    )
    pass_keys = bits_at(keys[passes], number)
    samples = work.samples[passes]
    if sampling == "shuffled":
        visited = shuffles(pass_keys, samples)
        return torch.from_numpy(visited + np.repeat(starts[passes], samples))
    drawn = work.drawn[passes]
    counters = np.arange(drawn.sum()) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    bits = bits_at(np.repeat(pass_keys, drawn), counters) >> np.uint64(32)
    of = np.repeat(samples, drawn).astype(np.uint64)
    visited = (bits * of >> np.uint64(32)).astype(np.int64)
    return torch.from_numpy(visited + np.repeat(starts[passes], drawn))


def check_plan(options: LocalOptions, longest: int, width: int, epochs_field: str) -> None:
    """Refuse more local steps than memory can hold minibatches of one client and model.

    Parameters
    ----------
    options : LocalOptions
        The section ``local``.
    longest : int
        Largest shard of all clients.
    width : int
        Slots of a minibatch.
    epochs_field : str
        Where the epochs come from, for messages.

    Raises
    ------
    InputError
    """
    steps = options.steps
    what = f"local.steps is {steps}, which"
    if steps is None:
        steps = -(-longest // options.batch_size) * options.epochs
        what = f"{epochs_field} is {options.epochs}, which with {longest} samples of a client"
    check_memory(float(SLOT_BYTES) * steps * width, what)


def batches(
    clients: Clients, draws: Draws, purpose: str, size: int | np.ndarray
) -> list[np.ndarray]:
    """Draw training samples of each client, without replacement.

    The rows of a client depend on ``purpose``, the seed, the round and the client alone.

    Parameters
    ----------
    clients : Clients
        The clients that draw.
    draws : Draws
        Random numbers of the round.
    purpose : str
        Name of the stream.
    size : int or numpy.ndarray
        Samples of a client, one number or int64 (clients,). A client with fewer gives all.

    Returns
    -------
    list of numpy.ndarray
        Rows of ``clients.shards.train`` for each client, int64.
    """
    counts = clients.n_train
    order = shuffles(draws.client_keys(purpose, clients.ids), counts)
    begins = np.cumsum(counts) - counts
    ends = begins + np.minimum(size, counts)
    return [
        order[begin:end] + start
        for begin, end, start in zip(begins.tolist(), ends.tolist(), clients.starts, strict=True)
    ]


def chosen(train: Split, samples: list[np.ndarray]) -> Split:
    """Return the split that consists of some rows of ``train``.

    Parameters
    ----------
    train : Split
        Where the rows are taken from.
    samples : list of numpy.ndarray
        Rows of ``train`` for each client, int64.

    Returns
    -------
    Split
        Its i-th client has ``samples[i]``.
    """
    rows = torch.from_numpy(np.concatenate(samples) if samples else np.zeros(0, np.int64))
    rows = rows.to(train.x.device)
    offsets = np.concatenate([[0], np.cumsum([len(drawn) for drawn in samples])]).astype(np.int64)
    return Split(train.x.index_select(0, rows), train.y.index_select(0, rows), offsets)


def minibatches(split: Split, size: int) -> tuple[Split, np.ndarray]:
    """Cut every client's samples into minibatches, in their order; the last one has the rest.

    Parameters
    ----------
    split : Split
        Samples of the clients.
    size : int
        Samples of a minibatch.

    Returns
    -------
    tuple of Split and numpy.ndarray
        The same samples, with a minibatch in place of each client; and the first minibatch of each
        client, int64 (clients,).

    Examples
    --------
    >>> parts, first = minibatches(Split(torch.zeros(7, 2), torch.zeros(7), np.array([0, 5, 7])), 2)
    >>> parts.counts, first
    (array([2, 2, 1, 2]), array([0, 3]))
    """
    numbers = -(-split.counts // size)
    ends = np.cumsum(numbers)
    first = ends - numbers
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(first, numbers)
    begins = np.repeat(split.offsets[:-1], numbers) + size * within
    return Split(split.x, split.y, np.append(begins, split.offsets[-1])), first


def share_weights(
    clients: Clients, draws: Draws, purpose: str, share: float, like: Tensor
) -> Tensor:
    """Return weights of samples under which a loss is that of a drawn share of them.

    Parameters
    ----------
    clients : Clients
        The clients that draw.
    draws : Draws
        Random numbers of the round.
    purpose : str
        Name of the stream.
    share : float
        Share of each client's samples that is drawn, rounded up, in (0, 1].
    like : Tensor
        A tensor of the type and on the device of the weights.

    Returns
    -------
    Tensor
        (1, hosted training samples), for the solver's ``weights``: n_t / drawn for those drawn,
        zero for the others.
    """
    counts = clients.n_train
    sizes = np.ceil(share * counts).astype(np.int64)
    rows = np.concatenate([np.zeros(0, np.int64), *batches(clients, draws, purpose, sizes)])
    found = np.zeros((1, len(clients.shards.train.x)))
    found[0, rows] = np.repeat(counts / sizes, sizes)
    return torch.from_numpy(found).to(like)
