"""Robust aggregation: what a server makes of updates, some of which may be sent by attackers.

A server takes u_1, ..., u_n from the n participants of a round, the *updates* by which they move
the shared value, and moves it by their mean. One attacker moves a mean as far as it likes. An
aggregator takes the place of the mean. It sees updates alone, so it goes with any method whose
server averages. Clients count alike, whatever their numbers of samples: an attacker would claim
many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed.components.registry import checked_section, find, make
from mpifed.errors import InputError
from mpifed.exchange.base import Round
from mpifed.federation.federation import Federation
from mpifed.federation.participation import Participation, count_participants, fixed_fraction
from mpifed.state import check_result, on_host

# The share of participants that may be attackers.
Byzantine = Annotated[float, Ge(0), Lt(0.5)]

Total = Callable[[Tensor, Tensor], Tensor]
Groups = np.ndarray | None

# Numbers that a rank holds of other ranks' rows at a time.
AT_ONCE = 1 << 22

# Components of a server by what leaves the mean of updates as it is.
IDLE = {"aggregator": "mean", "pre_aggregator": "none"}


class Aggregator(ABC):  # noqa: B024 (what derives from it has abstract methods)
    """Base class of aggregators; its keyword-only parameters are its options.

    It derives from ``ByCoordinates`` or ``ByProducts``.

    Attributes
    ----------
    needs_fixed_number : bool
        Whether the number of participants must be the same in every round.
    centred : bool
        Whether what it aggregates are distances of the updates from its last aggregate.
    """

    needs_fixed_number: ClassVar[bool] = False
    centred: ClassVar[bool] = False

    def least(self, n: int) -> int:
        """Return how many of ``n`` participants it needs at least, to be more than a mean."""
        return 3

    def bears(self, n: int) -> int | None:
        """Return how many attackers among ``n`` it is made for; None where no option says so."""
        return None

    def aggregate(
        self, updates: Tensor, round: Round, total: Total, members: Groups = None
    ) -> Tensor:
        """Return the aggregate of the participants' updates (participants, ...). Collective.

        ``total(rows, weights)`` is their weighted sum over all ranks. With ``members``, bool
        (means, participants), it is that of the means of these groups of updates.
        """
        raise NotImplementedError

    def traffic(
        self, payload: int, itemsize: int, summed: int, federation: Federation
    ) -> tuple[int, str]:
        """Return the bytes that MPI moves in a round in which all take part, and how, in words."""
        raise NotImplementedError


class ByCoordinates(Aggregator):
    """An aggregator that treats every coordinate by itself."""

    @abstractmethod
    def combine(self, columns: np.ndarray) -> np.ndarray:
        """Return the aggregate of some coordinates.

        Parameters
        ----------
        columns : ndarray
            Some coordinates of all updates, float64 (n, width), n at least 1. It may be
            overwritten.

        Returns
        -------
        ndarray
            float64 (width,), each computed of its own column alone.
        """

    def aggregate(
        self, updates: Tensor, round: Round, total: Total, members: Groups = None
    ) -> Tensor:
        """Each rank combines a share of the coordinates of all updates."""
        communicator, flat = round.federation.communicator, updates.detach().flatten(1)
        size, present = communicator.size, round.ids_by_rank
        order = np.argsort(np.concatenate(present))
        # Row c * size + r of what is sent is the share of rank r in the row of client c.
        send = {rank: np.arange(len(flat)) * size + rank for rank in range(size)}
        receive = {rank: len(clients) for rank, clients in enumerate(present)}
        combined = np.empty(flat.shape[1])
        at_once = size * max(1, AT_ONCE // (max(1, len(order)) + size * max(1, len(flat))))
        # The widths of all ranks are those of the one with the fewest columns at a time.
        at_once = int(-communicator.max(np.array([-float(at_once)]))[0])
        for start in range(0, flat.shape[1], at_once):
            part = on_host(flat[:, start : start + at_once])
            width = -(-part.shape[1] // size)
            padded = np.zeros((len(part), size * width), part.dtype)
            padded[:, : part.shape[1]] = part
            arrived = communicator.exchange_rows(padded.reshape(-1, width), send, receive)
            columns = arrived[order].astype(np.float64)
            share = self.combine(columns if members is None else means(columns, members))
            check_result(share, combined[:width], self, "combine")
            shares = communicator.gather_rows(share[None], [1] * size)
            combined[start : start + part.shape[1]] = shares.reshape(-1)[: part.shape[1]]
        return torch.from_numpy(combined.reshape(updates.shape[1:])).to(updates.device)

    def traffic(
        self, payload: int, itemsize: int, summed: int, federation: Federation
    ) -> tuple[int, str]:
        """A share of all updates goes to each other rank, and its float64 aggregate to all."""
        ranks, n = federation.communicator.size, len(federation.training)
        there = n * payload * (ranks - 1) // ranks
        back = payload // itemsize * 8 * (ranks - 1)
        return there + back, "each rank aggregates a share of the coordinates"


class ByProducts(Aggregator):
    """An aggregator that weighs updates by their inner products."""

    @abstractmethod
    def shares(self, products: np.ndarray) -> np.ndarray:
        """Return the shares of the updates in the aggregate, float64 (n,), whose sum is one.

        Parameters
        ----------
        products : ndarray
            Inner products of all pairs of updates, float64 (n, n), in the order of the clients.
        """

    def weighted_shares(self, products: np.ndarray, n_train: np.ndarray) -> np.ndarray:
        """Return ``shares``, where clients of ``n_train`` samples (n,) may count for these."""
        return self.shares(products)

    def aggregate(
        self, updates: Tensor, round: Round, total: Total, members: Groups = None
    ) -> Tensor:
        """Rank 0 finds the shares of the products, and all ranks add."""
        federation, shares = round.federation, np.zeros(round.federation.n_clients)
        products = inner_products(updates, round)
        if federation.communicator.rank == 0:
            n_train = federation.n_train[round.active]
            if members is None:
                combined = self.weighted_shares(products, n_train)
                check_result(combined, products[0], self, "shares")
            else:
                weights = members / members.sum(axis=1, keepdims=True)
                mixed = weights @ products @ weights.T
                combined = self.weighted_shares(mixed, weights @ n_train)
                check_result(combined, mixed[0], self, "shares")
                combined = combined @ weights
            shares[round.active] = combined
        hosted_shares = federation.communicator.broadcast(shares)[round.ids]
        return total(updates, torch.from_numpy(hosted_shares))

    def traffic(
        self, payload: int, itemsize: int, summed: int, federation: Federation
    ) -> tuple[int, str]:
        """Updates that are not on rank 0 go there, and then a sum is made."""
        moved = bytes_to_rank_0(federation, payload)
        return moved + summed, "rank 0 compares all updates, and ranks add some"


class Mean(Aggregator):
    """No aggregator: the weighted mean, which one attacker moves as far as it likes."""

    def least(self, n: int) -> int:
        return 1


def build(section: Any, path: str = "exchange.aggregator") -> Aggregator | None:
    """Return the aggregator that a section of the configuration asks for; None for ``mean``.

    Parameters
    ----------
    section : str, mapping or Section
        A name, or a mapping with a name and options.
    path : str
        The section's place in the configuration, for messages.

    Raises
    ------
    InputError
        For what is unknown, out of range, or not an aggregator.

    Examples
    --------
    >>> build("median").combine(np.array([[0.0], [1.0], [9.0]]))
    array([1.])
    """
    chosen = checked_section("aggregator", section, path)
    if chosen.name == "mean":
        return None
    return cast(Aggregator, find("aggregator", chosen.name, f"{path}.name")(**chosen.options))


def count_of(share: float, n: int) -> int:
    """Return the whole number of clients in a share of ``n``, rounded down.

    Examples
    --------
    >>> count_of(0.29, 100), count_of(0.2, 9)
    (29, 1)
    """
    return int(np.floor(share * n + 1e-9))


class Median(ByCoordinates):
    """The median of each coordinate, of an even number the mean of the two in the middle."""

    def combine(self, columns: np.ndarray) -> np.ndarray:
        n = len(columns)
        columns.sort(axis=0)  # faster than a partition
        return (columns[(n - 1) // 2] + columns[n // 2]) / 2


class TrimmedMean(ByCoordinates):
    """The mean of each coordinate without its largest and its smallest values.

    Parameters
    ----------
    trim : float
        Share of the participants that is left out at each end, rounded down to whole clients.
    """

    def __init__(self, *, trim: Annotated[float, Gt(0), Lt(0.5)] = 0.2) -> None:
        self.trim = trim

    def least(self, n: int) -> int:
        return n if self.bears(n) else n + 1

    def bears(self, n: int) -> int:
        return count_of(self.trim, n)

    def combine(self, columns: np.ndarray) -> np.ndarray:
        columns.sort(axis=0)
        cut = self.bears(len(columns))
        middle = columns[cut : len(columns) - cut]
        # Added row by row: numpy adds a single column in another order than several.
        total = np.zeros(columns.shape[1])
        for row in middle:
            total += row
        return total / len(middle)


class Krum(ByProducts):
    """Krum: the update that is closest to its n - f - 2 nearest ones (Blanchard et al. 2017).

    Parameters
    ----------
    byzantine : float
        Share of the participants that may be attackers; f is that of n, rounded down.
    selected : int
        How many updates of the least scores are averaged; above 1 is multi-Krum.
    """

    needs_fixed_number = True

    def __init__(
        self,
        *,
        byzantine: Byzantine = 0.2,
        selected: Annotated[int, Ge(1)] = 1,
    ) -> None:
        self.byzantine, self.selected = byzantine, selected

    def least(self, n: int) -> int:
        return max(2 * self.bears(n) + 3, self.selected)

    def bears(self, n: int) -> int:
        return count_of(self.byzantine, n)

    def shares(self, products: np.ndarray) -> np.ndarray:
        n = len(products)
        nearest = n - self.bears(n) - 2
        squares = squared_distances(products)
        np.fill_diagonal(squares, np.inf)
        squares.sort(axis=1)
        scores = np.zeros(n)
        for column in squares.T[:nearest]:
            scores += column
        shares = np.zeros(n)
        # Of equal scores the first client's.
        shares[np.argsort(scores, kind="stable")[: self.selected]] = 1 / self.selected
        return shares


class GeometricMedian(ByProducts):
    """The geometric median, by the smoothed Weiszfeld algorithm (RFA, Pillutla et al. 2022).

    It minimises F(z) = sum_i alpha_i h(||u_i - z||) / sum_i alpha_i, where h(d) is d for d >= nu
    and d^2 / (2 nu) + nu / 2 below it.

    Parameters
    ----------
    smoothing : float
        nu, below which distances count quadratically.
    tolerance : float
        The iteration ends where it moves by less than this share of the least distance within
        which an update has more than half of all weight.
    iterations : int
        Most iterations.
    client_weights : {'equal', 'samples'}
        alpha_i: 1, or the client's number of samples, as in the paper, which trusts these.
    """

    def __init__(
        self,
        *,
        smoothing: Annotated[float, Gt(0)] = 1e-6,
        tolerance: Annotated[float, Ge(0), Lt(1)] = 1e-9,
        iterations: Annotated[int, Ge(1)] = 200,
        client_weights: Literal["equal", "samples"] = "equal",
    ) -> None:
        self.smoothing, self.tolerance, self.iterations = smoothing, tolerance, iterations
        self.client_weights = client_weights

    def shares(self, products: np.ndarray) -> np.ndarray:
        return self._weiszfeld(products, np.ones(len(products)))

    def weighted_shares(self, products: np.ndarray, n_train: np.ndarray) -> np.ndarray:
        if self.client_weights == "equal":
            return self.shares(products)
        return self._weiszfeld(products, n_train.astype(float))

    def _weiszfeld(self, products: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """Iterate among those nearest to an update around which most weight is close.

        From such an update, products with far ones are multiplied by shares that are as small, so
        that an attack of any length costs no digits; and no attacker moves the scale of a step.
        """
        squares = squared_distances(products)
        order = np.argsort(squares, axis=1, kind="stable")
        most = (np.cumsum(alpha[order], axis=1) > alpha.sum() / 2).argmax(axis=1)
        radii = np.take_along_axis(squares, order, axis=1)[np.arange(len(squares)), most]
        centre = int(radii.argmin())
        away = products - products[centre]
        away -= away[:, [centre]]
        shares = alpha * (squares[centre] <= radii[centre])
        shares /= shares.sum()
        least = self.tolerance * max(np.sqrt(radii[centre]), self.smoothing)
        for _ in range(self.iterations):
            to_each = away @ shares
            lengths = away.diagonal() - 2 * to_each + shares @ to_each
            weights = alpha / np.maximum(np.sqrt(np.maximum(lengths, 0)), self.smoothing)
            before, shares = shares, weights / weights.sum()
            moved = shares - before
            if moved @ away @ moved <= least**2:
                break
        return shares


def squared_distances(products: np.ndarray) -> np.ndarray:
    """Return ||u_i - u_j||^2 of all pairs from their inner products, both float64 (n, n).

    Examples
    --------
    >>> squared_distances(np.array([[1.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    norms = products.diagonal()
    # Products of one pair may differ by rounding, and ties would depend on it.
    return np.maximum(norms[:, None] + norms - (products + products.T), 0.0)


def inner_products(rows: Tensor, round: Round) -> np.ndarray:
    """Return the inner products of all pairs of participants' rows, by client. Collective."""
    communicator, flat = round.federation.communicator, rows.detach().flatten(1)
    present = round.ids_by_rank
    order = torch.from_numpy(np.argsort(np.concatenate(present)))
    send, at_root = {0: np.arange(len(flat))}, communicator.rank == 0
    receive = {rank: len(clients) for rank, clients in enumerate(present) if at_root}
    products = torch.zeros(len(order), len(order), dtype=torch.float64)
    width = max(1, AT_ONCE // max(1, len(order)))
    for start in range(0, flat.shape[1], width):
        columns = np.ascontiguousarray(on_host(flat[:, start : start + width]))
        arrived = communicator.exchange_rows(columns, send, receive)
        if at_root:
            part = torch.from_numpy(arrived)[order].double()
            products += part @ part.T
    return communicator.broadcast(products.numpy())


def bytes_to_rank_0(federation: Federation, payload: int) -> int:
    """Return the bytes that MPI moves where all participants' rows go to rank 0."""
    on_rank_0 = int((~federation.unseen[federation.hosted_of(0)]).sum())
    return (len(federation.training) - on_rank_0) * payload


def means(columns: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return means of groups of rows, float64 (groups, width); see ``Aggregator.aggregate``."""
    group_means = np.zeros((len(members), columns.shape[1]))
    for mean, group in zip(group_means, members, strict=True):
        # Added row by row: see TrimmedMean.
        for row in np.flatnonzero(group):
            mean += columns[row]
        mean /= group.sum()
    return group_means


def clipped(rows: Tensor, norm: float) -> Tensor:
    """Return rows (clients, ...), of which those longer than ``norm`` are scaled to it."""
    lengths = norms(rows)
    if not (lengths > norm).any():
        return rows
    # Not by norm / lengths, which is not finite where a length is not: refused when it is summed.
    factors = np.divide(norm, lengths, out=np.ones(len(rows)), where=lengths > norm)
    shape = (-1, *[1] * (rows.dim() - 1))
    return rows * torch.from_numpy(factors).to(rows).view(shape)


def norms(rows: Tensor) -> np.ndarray:
    """Return the Euclidean norm of each row (clients, ...), float64 (clients,)."""
    squares = [np.square(on_host(row).reshape(-1).astype(np.float64)).sum() for row in rows]
    return np.sqrt(np.array(squares, np.float64))


def completed_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a server, without those of aggregation that ask for nothing.

    Runs that average do not mention them, as those of earlier versions.
    """
    named = {
        kind: checked_section(kind, options[kind], f"exchange.{kind}", idle)
        for kind, idle in IDLE.items()
    }
    idle = {kind: chosen.name == IDLE[kind] for kind, chosen in named.items()}
    idle["clip"] = options["clip"] is None
    return {key: value for key, value in {**options, **named}.items() if not idle.get(key)}


def check_number(options: Mapping[str, Any], n: int, participation: Participation) -> None:
    """Check that an aggregator has enough updates of ``n`` clients to choose from."""
    section, before = options.get("aggregator"), options.get("pre_aggregator")
    if section is None and before is not None:
        raise InputError(
            f"exchange.pre_aggregator is '{before.name}', but exchange.aggregator is 'mean', "
            "which bears no attack before or after it; allowed: another aggregator"
        )
    if section is None:
        return
    aggregator = build(section)
    assert aggregator is not None
    fraction = fixed_fraction(participation)
    count = n if fraction is None else count_participants(fraction, n)
    what = f"{count} clients take part in a round"
    if before is not None:
        count = make("pre_aggregator", before, "exchange.pre_aggregator").count(count)
        what += f", of which '{before.name}' makes {count} updates"
    if count < aggregator.least(count):
        raise InputError(
            f"exchange.aggregator is '{section.name}', but at most {what}, with which its options "
            "make it a plain mean or leave it nothing to choose; allowed: more clients or "
            "participants, or other options"
        )


__all__ = ["Aggregator", "ByCoordinates", "ByProducts", "build"]
