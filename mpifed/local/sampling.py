"""Clients' training samples drawn without replacement: as batches, splits, or weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Split
from mpifed.federation.clients import Clients, Draws
from mpifed.random import shuffles


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
