"""Partitions: ways to deal the samples of one data set to clients, Dirichlet's among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.random import Generator

from mpifed.data.kmeans import equal_parts
from mpifed.errors import InputError
from mpifed.random import stream
from topologies.parameters import options_of

# A symmetric Dirichlet parameter that double precision can draw with.
Alpha = Annotated[float, Ge(1e-6), Le(1e9)]

MinSamples = Annotated[int, Ge(2)]

# Share of all samples that is used.
Fraction = Annotated[float, Gt(0), Le(1)]

# Samples of a client by default: the fewest of which 60/20/20 leaves 3, 1 and 1.
FEWEST = 5


# How samples are dealt, and how a client's are split.
Name = Literal[
    "contiguous",
    "dirichlet",
    "balanced_dirichlet",
    "extended_dirichlet",
    "iid",
    "pathological",
    "quantity_skew",
]
GroupedName = Literal[
    "natural",
    "contiguous",
    "dirichlet",
    "balanced_dirichlet",
    "extended_dirichlet",
    "iid",
    "pathological",
    "quantity_skew",
]
# Those that deal by labels.
BY_LABEL = ("dirichlet", "balanced_dirichlet", "extended_dirichlet", "pathological")

Parts = Literal["60_20_20", "in_order", "published"]

SplitRows = tuple[np.ndarray, np.ndarray, np.ndarray]

# Which samples of a pool each client trains, validates and tests on, in their order.
ShardRows = Sequence[SplitRows | tuple[range, range, range]]

Classes = Annotated[int, Ge(1)]
Law = Literal["dirichlet", "lognormal", "power_law"]
Spread = Annotated[float, Ge(0), Le(20)]
Choose = Literal["random", "first", "largest"]
ContiguousRule = Literal["floor", "array_split"]


def share_of(n_samples: int, fraction: float, seed: int) -> np.ndarray:
    """Return which samples are used where ``fraction`` of them is, int64, ascending."""
    if fraction == 1:
        return np.arange(n_samples)
    count = max(1, int(np.floor(fraction * n_samples + 0.5)))
    return np.sort(stream(seed, "fraction").permutation(n_samples)[:count])


def check_enough(n_samples: int, n_clients: int, min_samples: int) -> None:
    """Raise ``InputError`` if there are fewer than ``min_samples`` for each client."""
    if n_samples < n_clients * min_samples:
        raise InputError(
            f"clients is {n_clients}, but {n_samples} samples are enough for at most "
            f"{n_samples // min_samples} of {min_samples} samples each (data.min_samples)"
        )


def fill_up(counts: np.ndarray, min_samples: int) -> None:
    """Move samples in ``counts`` (clients, labels) until no client is below ``min_samples``."""
    totals = counts.sum(axis=1)
    for client in np.flatnonzero(totals < min_samples):
        while totals[client] < min_samples:
            donor = totals.argmax()
            counts[[donor, client], counts[donor].argmax()] += (-1, 1)
            totals[[donor, client]] += (-1, 1)


def deal(
    labels: np.ndarray, classes: np.ndarray, counts: np.ndarray, rng: Generator
) -> list[np.ndarray]:
    """Give clients random samples of each label, as many as ``counts`` (clients, labels) says."""
    n_clients = len(counts)
    owner = np.empty(len(labels), np.int64)
    for column, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(n_clients), counts[:, column])
    return grouped(owner, n_clients)


def grouped(owner: np.ndarray, n_clients: int) -> list[np.ndarray]:
    """Return the samples of each client, int64, ascending, of ``owner`` (samples,)."""
    sizes = np.bincount(owner, minlength=n_clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])


def pathological(
    labels: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    classes_per_client: Classes = 2,
) -> list[np.ndarray]:
    """Deal exactly ``classes_per_client`` labels to each client (McMahan et al. 2017, sec. 3)."""
    classes, sizes = np.unique(labels, return_counts=True)
    smallest = -(-min_samples // classes_per_client)
    pieces = _pieces_of(classes, sizes, n_clients, classes_per_client, smallest)
    holds = _hand_out(pieces, n_clients, classes_per_client, rng)
    counts = np.zeros(holds.shape, np.int64)
    for label, (size, cut) in enumerate(zip(sizes, pieces, strict=True)):
        counts[holds[:, label], label] = size // cut + (np.arange(cut) < size % cut)
    return deal(labels, classes, counts, rng)


def _pieces_of(
    classes: np.ndarray, sizes: np.ndarray, n_clients: int, each: int, smallest: int
) -> np.ndarray:
    """Pieces of each label: ``n_clients * each`` in all, none below ``smallest`` samples."""
    fewest = -(-len(classes) // n_clients)
    if not fewest <= each <= len(classes):
        raise InputError(
            f"data.classes_per_client is {each}; for {n_clients} clients to hold {len(classes)} "
            f"labels it must be at least {fewest} and at most {len(classes)}"
        )
    most = np.minimum(sizes // smallest, n_clients)
    if most.min() < 1 or most.sum() < n_clients * each:
        raise InputError(
            f"clients is {n_clients}, but the data give at most {most.sum() // each} clients of "
            f"{each} labels with {smallest} samples, and of each label at least "
            f"{sizes.min() // smallest} (data.classes_per_client, data.min_samples)"
        )
    pieces = np.ones(len(classes), np.int64)
    for _ in range(n_clients * each - len(classes)):
        pieces[np.where(pieces < most, sizes / (pieces + 1), -1).argmax()] += 1
    return pieces


def _hand_out(pieces: np.ndarray, n_clients: int, each: int, rng: Generator) -> np.ndarray:
    """Which client gets a piece of which label: bool (clients, labels), ``each`` True a row."""
    left = pieces.copy()
    holds = np.zeros((n_clients, len(pieces)), bool)
    for client in range(n_clients):
        with np.errstate(divide="ignore"):
            # The smallest of exponential times are a weighted sample without replacement.
            times = rng.exponential(size=len(left)) / left
        times[left == n_clients - client] = -1
        taken = np.argsort(times, kind="stable")[:each]
        holds[client, taken] = True
        left[taken] -= 1
    return holds


def pachinko(
    pairs: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    pachinko_alpha: Alpha = 0.4,
    pachinko_beta: Alpha = 10.0,
) -> list[np.ndarray]:
    """Deal by Pachinko allocation (Reddi et al. 2021, App. C.1; Marfoq et al. 2021, App.
    I.1.1).
    """
    check_enough(len(pairs), n_clients, min_samples)
    leaves, leaf_of, left = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    _, branch = np.unique(leaves[:, 0], return_inverse=True)
    counts = np.zeros((n_clients, len(leaves)), np.int64)
    for client in range(n_clients):
        quota = len(pairs) // n_clients + (client < len(pairs) % n_clients)
        coarse = _log_gamma(branch.max() + 1, pachinko_alpha, rng)
        fine = _log_gamma(len(leaves), pachinko_beta, rng)
        counts[client] = _draw(quota, coarse, fine, branch, left, rng)
        left -= counts[client]
    return deal(leaf_of.reshape(-1), np.arange(len(leaves)), counts, rng)


def _log_gamma(size: int, alpha: float, rng: Generator) -> np.ndarray:
    """Logarithms of Gamma(alpha, 1) draws, which normalised are ~ Dir(alpha); float64 (size,)."""
    larger = np.log(rng.standard_gamma(alpha + 1, size))
    return larger + np.log1p(-rng.random(size)) / alpha


def _draw(
    quota: int,
    coarse: np.ndarray,
    fine: np.ndarray,
    branch: np.ndarray,
    left: np.ndarray,
    rng: Generator,
) -> np.ndarray:
    """How many samples of each leaf one client draws, of those ``left``; int64 (leaves,)."""
    taken = np.zeros(len(branch), np.int64)
    while (missing := quota - taken.sum()) > 0:
        weights = _leaf_weights(coarse, fine, branch, left > taken)
        drawn = rng.choice(len(branch), missing, p=weights)
        # Draws are valid up to the one that takes the last sample of a leaf.
        seen = np.zeros(len(drawn), np.int64)
        for leaf in np.unique(drawn):
            at = drawn == leaf
            seen[at] = np.arange(1, at.sum() + 1)
        last = np.flatnonzero(seen == (left - taken)[drawn])
        valid = drawn[: last[0] + 1] if len(last) else drawn
        taken += np.bincount(valid, minlength=len(branch))
    return taken


def _leaf_weights(
    coarse: np.ndarray, fine: np.ndarray, branch: np.ndarray, open_leaves: np.ndarray
) -> np.ndarray:
    """Probability of each leaf, given those that have samples left; float64 (leaves,)."""
    is_open = np.bincount(branch, open_leaves, len(coarse)) > 0
    outer = _softmax(np.where(is_open, coarse, -np.inf), np.zeros(len(coarse), np.int64))
    product = outer[branch] * _softmax(np.where(open_leaves, fine, -np.inf), branch)
    return product / product.sum()


def _softmax(logs: np.ndarray, group: np.ndarray) -> np.ndarray:
    """exp(``logs``) over its sum in each group; 0 in groups that are -inf throughout."""
    largest = np.full(group.max() + 1, -np.inf)
    np.maximum.at(largest, group, logs)
    weights = np.exp(logs - np.where(np.isfinite(largest), largest, 0)[group])
    totals = np.bincount(group, weights)
    return weights / np.where(totals == 0, 1, totals)[group]


def quantity_skew(
    labels: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    quantity_law: Law = "dirichlet",
    quantity_alpha: Alpha = 0.5,
    quantity_sigma: Spread = 1.0,
    quantity_exponent: Spread = 1.0,
) -> list[np.ndarray]:
    """Deal all samples at random to clients of unequal size (Li et al. 2022, sec. IV.C)."""
    check_enough(len(labels), n_clients, min_samples)
    if quantity_law == "dirichlet":
        shares = rng.dirichlet(np.full(n_clients, quantity_alpha))
    elif quantity_law == "lognormal":
        shares = np.exp(quantity_sigma * rng.standard_normal(n_clients))
    else:
        shares = rng.permutation(np.arange(1.0, n_clients + 1) ** -quantity_exponent)
    sizes = min_samples + apportioned(len(labels) - n_clients * min_samples, shares)
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.repeat(np.arange(n_clients), sizes)
    return grouped(owner, n_clients)


def apportioned(total: int, shares: np.ndarray) -> np.ndarray:
    """Return whole numbers in proportion to ``shares``, int64, whose sum is ``total``."""
    exact = total * (shares / shares.sum())
    floors = np.floor(exact).astype(np.int64)
    rounded_up = np.argsort(floors - exact, kind="stable")[: total - floors.sum()]
    floors[rounded_up] += 1
    return floors


def natural(
    owner: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    choose: Choose = "random",
) -> list[np.ndarray]:
    """Give each client all samples of one source."""
    sources = chosen(np.bincount(owner), n_clients, rng, min_samples, choose)
    of_sources = grouped(owner, int(owner.max()) + 1)
    return [of_sources[source] for source in sources]


def chosen(
    sizes: np.ndarray, n_clients: int, rng: Generator, min_samples: int, choose: Choose
) -> np.ndarray:
    """Return the sources that become clients, int64 (n_clients,), ascending."""
    enough = np.flatnonzero(sizes >= min_samples)
    if len(enough) < n_clients:
        raise InputError(
            f"clients is {n_clients}, but only {len(enough)} sources of the data (writers, roles, "
            f"...) have at least {min_samples} samples (data.min_samples)"
        )
    if choose == "random":
        enough = rng.permutation(enough)
    elif choose == "largest":
        enough = enough[np.argsort(-sizes[enough], kind="stable")]
    return np.sort(enough[:n_clients])


def iid(
    labels: np.ndarray, n_clients: int, rng: Generator, *, min_samples: MinSamples = FEWEST
) -> list[np.ndarray]:
    """Deal all samples in random order; sizes differ by at most one."""
    check_enough(len(labels), n_clients, min_samples)
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) % n_clients
    return grouped(owner, n_clients)


def dirichlet(
    labels: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    dirichlet_alpha: Alpha = 0.4,
    label_groups: Annotated[int, Ge(1)] | None = None,
    dirichlet_shares: Annotated[int, Ge(1)] | None = None,
) -> list[np.ndarray]:
    """Deal by Dirichlet allocation (Marfoq et al. 2021, App. I.1.1, after Wang et al. 2020)."""
    check_enough(len(labels), n_clients, min_samples)
    if label_groups is not None:
        labels = group_of_each(labels, label_groups, rng)
    classes, sizes = np.unique(labels, return_counts=True)
    alpha = np.full(dirichlet_shares or n_clients, dirichlet_alpha)
    counts = np.stack([rng.multinomial(size, rng.dirichlet(alpha)) for size in sizes], axis=1)
    if dirichlet_shares is None:
        fill_up(counts, min_samples)
    enough = counts.sum(axis=1) >= min_samples
    if enough.sum() != n_clients:
        raise InputError(
            f"clients is {n_clients}, but {enough.sum()} of {dirichlet_shares} shares "
            f"(data.dirichlet_shares) have {min_samples} samples or more (data.min_samples); "
            f"clients must be {enough.sum()}"
        )
    shares = deal(labels, classes, counts, rng)
    return [share for share, is_large in zip(shares, enough, strict=True) if is_large]


def balanced_dirichlet(
    labels: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    dirichlet_alpha: Alpha = 0.4,
) -> list[np.ndarray]:
    """Deal equally many samples to all clients, whose shares q of K labels are ~ Dir(alpha 1_K)
    (Acar et al. 2021, sec. 4).

    Clients draw labels in turn, each with probability q among the labels that are left.
    """
    check_enough(len(labels), n_clients, min_samples)
    classes, left = np.unique(labels, return_counts=True)
    logs = np.stack([_log_gamma(len(classes), dirichlet_alpha, rng) for _ in range(n_clients)])
    quota = len(labels) // n_clients + (np.arange(n_clients) < len(labels) % n_clients)
    counts = np.zeros(logs.shape, np.int64)
    while (clients := np.flatnonzero(counts.sum(axis=1) < quota)).size:
        clients = rng.permutation(clients)
        among = np.where(left > 0, logs[clients], -np.inf)
        ends = np.exp(among - among.max(axis=1, keepdims=True)).cumsum(axis=1)
        drawn = (ends <= rng.random((len(clients), 1)) * ends[:, -1:]).sum(axis=1)
        for label in np.unique(drawn):
            first = clients[drawn == label][: left[label]]  # the others draw again
            counts[first, label] += 1
            left[label] -= len(first)
    return deal(labels, classes, counts, rng)


def extended_dirichlet(
    labels: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    classes_per_client: Classes = 2,
    dirichlet_alpha: Alpha = 0.4,
) -> list[np.ndarray]:
    """Deal ``classes_per_client`` labels to each client, and the samples of a label by shares ~
    Dir(alpha 1) to the clients that have it (ExDir, Li and Lyu 2023).

    The paper's text could not be had: labels are handed out as by ``pathological``, and each client
    first gets ceil(``min_samples`` / ``classes_per_client``) samples of each of its labels.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    least = -(-min_samples // classes_per_client)
    pieces = _pieces_of(classes, sizes, n_clients, classes_per_client, least)
    holds = _hand_out(pieces, n_clients, classes_per_client, rng)
    counts = least * holds.astype(np.int64)
    for label, size in enumerate(sizes):
        holders = np.flatnonzero(holds[:, label])
        logs = _log_gamma(len(holders), dirichlet_alpha, rng)
        shares = _softmax(logs, np.zeros(len(holders), np.int64))
        counts[holders, label] += rng.multinomial(size - least * len(holders), shares)
    return deal(labels, classes, counts, rng)


def group_of_each(labels: np.ndarray, n_groups: int, rng: Generator) -> np.ndarray:
    """Return the group of each label, int64: the labels that occur, divided at random into groups
    whose sizes differ by at most one.
    """
    classes, which = np.unique(labels, return_inverse=True)
    if n_groups > len(classes):
        raise InputError(
            f"data.label_groups is {n_groups}; the data have {len(classes)} labels, so that it "
            f"must be at most {len(classes)}"
        )
    group = np.empty(len(classes), np.int64)
    group[rng.permutation(len(classes))] = np.arange(len(classes)) % n_groups
    return group[which.reshape(-1)]


def contiguous(
    labels: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
    contiguous_rule: ContiguousRule = "floor",
) -> list[np.ndarray]:
    """Deal runs of consecutive samples, in the order of the source (Gasanov et al. 2022,
    sec. 6).
    """
    check_enough(len(labels), n_clients, min_samples)
    every = np.arange(len(labels))
    if contiguous_rule == "array_split":
        return np.array_split(every, n_clients)
    return np.split(every, [client * len(labels) // n_clients for client in range(1, n_clients)])


def kmeans(
    points: np.ndarray,
    n_clients: int,
    rng: Generator,
    *,
    min_samples: MinSamples = FEWEST,
) -> list[np.ndarray]:
    """Deal clusters of equal size (Dieuleveut et al. 2025, sec. 6): clients as unlike as
    can be.
    """
    check_enough(len(points), n_clients, min_samples)
    points = points.reshape(len(points), -1).astype(np.float64)
    return grouped(equal_parts(points, n_clients, rng), n_clients)


def partition(
    name: str, keys: np.ndarray, n_clients: int, rng: Generator, options: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return each client's samples, ascending, by what the partition deals by (labels, points,
    sources, ...) and those of ``options`` that it takes.
    """
    rules: tuple[Callable[..., list[np.ndarray]], ...] = (
        *(contiguous, dirichlet, balanced_dirichlet, extended_dirichlet, iid, kmeans, natural),
        *(pachinko, pathological, quantity_skew),
    )
    function = {rule.__name__: rule for rule in rules}[name]
    taken = {option: options[option] for option in options_of(function) if option in options}
    return function(keys, n_clients, rng, **taken)


def split_in_order(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut one client's samples, at least 2, into 60 % training, 20 % validation and 20 % test."""
    fifth = (2 * len(samples) + 5) // 10
    n_train = len(samples) - fifth - max(fifth, 1)
    train, val, test = np.split(samples, [n_train, n_train + fifth])
    return train, val, test


def in_file_order(indices: list[np.ndarray], seed: int, test_fraction: float) -> ShardRows:
    """Return the samples of each client in their order, of which a share is for testing."""
    shard_rows = []
    for client, samples in enumerate(indices):
        n_test = min(int(np.floor(test_fraction * len(samples) + 0.5)), len(samples) - 1)
        tested = np.zeros(len(samples), bool)
        tested[stream(seed, "split", client=client).permutation(len(samples))[:n_test]] = True
        shard_rows.append((samples[~tested], samples[:0], samples[tested]))
    return shard_rows
