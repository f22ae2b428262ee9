"""Gossip along graphs that depend on what clients know of each other: whom to mix with.

W says whom a client may ask (Morph: at first), and its weights are not read. In each round a client
asks some of them, which is booked, looks at what they send, and mixes what it chooses. Before a
round it has the value x_i, after its local steps z_i = x_i + u_i.

* ``Dpfl``, DPFL (Kharrat, Canini and Horvath, AISTATS 2025, arXiv 2406.06520): a client takes the
  mean, weighted by samples, of its own model and of a set S of others' that lowers its loss. S is
  found by the randomised greedy step for functions that are not monotone (Buchbinder et al. 2015):
  from X = {i} and Y = all, each j in random order is added to X with probability a / (a + b), else
  taken from Y, where a and b are by how much either lowers the loss, or 0; they count as 1 and 0 if
  both are 0. In round ``start`` it chooses among all (BGGC), and later among those chosen then
  (GGC), at most ``budget`` each time. The paper's text could not be had: all this is from its
  authors' code, ``selection/bandits.py`` of github.com/salmakh1/DPFL. The paper asks for models in
  batches in BGGC; here one round asks for all of them, which sends as many.
* ``Morph``, Morph (Cox, Ioannou and Decouchant 2026, arXiv 2602.03383): plain means of a fixed
  number of models, of which one is replaced every few rounds, by a client that is less similar. The
  paper's equations could not be had: they are from its authors' code, ``DissDL.py`` of
  github.com/bacox/Morph, there with estimates of several rounds averaged, here of the last one.
* ``Fomo``, FedFomo (Zhang et al. 2021) without a server: ``algorithms.personal.fedfomo`` has its
  equations. The affinity is as in the paper.
* ``L2c``, L2C (Li, Zhou, Tian and Tao, CVPR 2022): x_i <- x_i + sum_j w_ij u_j, w_i = softmax(a_i),
  and then a_i descends along the gradient of the client's loss at the new x_i. Only the abstract
  could be had. Assumed are this step of gradient descent with the u_j held fixed, and that the
  graph becomes sparse at one round.

Losses are of validation samples, or of training samples where a client has none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from scipy import sparse, special
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from mpifed.message import Correction, Gather, HeldOutRisks, Neighbours, Observations
from mpifed.state import on_host

COLLAPSE = ("chosen_gini", "chosen_components", "never_chosen")
"""Columns of metrics.csv."""


@dataclass(frozen=True)
class ParticipantView:
    """What one participant knows in a round.

    Attributes
    ----------
    node, participant : int
        Its number among the nodes, and among the participants hosted here.
    may_ask : ndarray
        Whom W lets it ask, itself not among them, int64, ascending.
    memory : ndarray
        What it remembers, (``Chooser.remembers``, nodes), to be written into.
    observations : Observations
        See there.
    draws : numpy.random.Generator
        Its random numbers of this round.
    """

    node: int
    participant: int
    may_ask: np.ndarray
    memory: np.ndarray
    observations: Observations
    draws: np.random.Generator

    @property
    def held_out(self) -> HeldOutRisks:
        """The risks of models on its own data."""
        assert self.observations.held_out is not None
        return self.observations.held_out

    def losses(self, models: np.ndarray) -> np.ndarray:
        """Return its losses of models (k, P), float64 (k,)."""
        return self.held_out.losses(self.participant, models)


class Chooser(Correction):
    """Base class of corrections by which clients choose whom they mix with.

    Attributes
    ----------
    looks_at_losses : bool
        Whether they do so by losses of each other's models.
    remembers : int
        How many numbers a client remembers of each other one.
    sends_notes : int
        The first so many of them it also sends with its value.
    """

    needs = "positive"
    chooses = True
    columns = COLLAPSE
    looks_at_losses: ClassVar[bool] = False
    remembers: ClassVar[int] = 1
    sends_notes: ClassVar[int] = 0

    def width(self, size: int) -> int:
        # Behind the memory: whom it chose in the last round, and how often in all.
        return (self.remembers + 2) * self.nodes

    def sends(self, x: Tensor, moved: Tensor) -> Tensor:
        """Return what the participants send of x and z, (participants, size)."""
        return moved

    @abstractmethod
    def asks(self, view: ParticipantView) -> np.ndarray:
        """Return whom a participant asks, as numbers of nodes."""

    @abstractmethod
    def chosen(
        self,
        view: ParticipantView,
        x: np.ndarray,
        z: np.ndarray,
        received: np.ndarray,
        rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a participant's new value, and which weights those it received from have in it.

        Parameters
        ----------
        view : ParticipantView
            What it knew.
        x, z : ndarray
            Its values before and after its local steps, float64 (size,).
        received : ndarray
            From whom it received, int64 (k,), ascending.
        rows : ndarray
            What they sent, float64 (k, size + ``sends_notes`` nodes).
        """

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        observations, n = neighbours.observations, self.nodes
        assert observations is not None
        tables = on_host(memory).astype(np.float64).reshape(len(memory), -1, n)
        requests, views = np.zeros((len(memory), n), bool), []
        for participant, node in enumerate(neighbours.mine.tolist()):
            may_ask = neighbours.weights[[node]].indices
            draws = observations.draws.stream(
                "choice of neighbours", int(observations.ids[participant])
            )
            candidates = np.sort(may_ask[may_ask != node])
            views.append(
                ParticipantView(
                    node,
                    participant,
                    candidates,
                    tables[participant, : self.remembers],
                    observations,
                    draws,
                )
            )
            requests[participant, self.asks(views[-1])] = True
        noted = torch.from_numpy(tables[:, : self.sends_notes]).flatten(1).to(moved)
        sent = torch.cat([self.sends(x, moved), noted], dim=1)
        arcs = observations.receive(sent, requests)
        others = arcs.all_rows(sent)
        before, after = on_host(x).astype(np.float64), on_host(moved).astype(np.float64)
        mixed = after.copy()
        for participant, view in enumerate(views):
            senders = arcs.senders[arcs.receivers == participant]
            received, weights = arcs.nodes[senders], np.zeros(0)
            if len(received):
                of = before[participant], after[participant], received, others[senders]
                mixed[participant], weights = self.chosen(view, *of)
            tables[participant, -2] = 0
            tables[participant, -2, received] = weights
            tables[participant, -1] += tables[participant, -2] > 0
        return torch.from_numpy(mixed).to(moved), torch.from_numpy(tables).flatten(1).to(memory)

    def measure(self, memory: Tensor, gather: Gather) -> dict[str, float | None]:
        """Return how evenly clients were chosen; see ``collapse``."""
        tables = gather(memory[:, -2 * self.nodes :])
        if tables is None:
            return {}
        last, often = np.split(tables, 2, axis=1)
        return collapse(last, often)


def mean_of(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted mean of rows (k, P), added one after the other."""
    return np.asarray((weights[:, None] * rows).sum(axis=0) / weights.sum())


def best_first(values: np.ndarray, among: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Return nodes in the order of their values, the largest first, equal ones at random."""
    return np.asarray(among[np.lexsort((draws.random(len(among)), -values[among]))])


class Dpfl(Chooser):
    """DPFL: the mean with those whose models lower the own loss, by greedy choice (Kharrat 2025).

    The paper's text could not be had: this is from its authors' code.

    Parameters
    ----------
    budget : int
        How many others a client mixes with at most, and asks after round ``start``.
    start : int
        The round in which clients first choose; before it they train alone.
    """

    looks_at_losses = True

    def __init__(
        self, *, budget: Annotated[int, Ge(1)] = 4, start: Annotated[int, Ge(1)] = 3
    ) -> None:
        self.budget, self.start = budget, start

    def asks(self, view: ParticipantView) -> np.ndarray:
        (pool,) = view.memory
        if view.observations.draws.round < self.start:
            return np.zeros(0, np.int64)
        # Its own entry says that a client has chosen.
        return np.flatnonzero(pool) if pool[view.node] else view.may_ask

    def chosen(
        self,
        view: ParticipantView,
        x: np.ndarray,
        z: np.ndarray,
        received: np.ndarray,
        rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        samples = view.observations.samples[[view.node, *received]].astype(float)
        models, (pool,) = np.concatenate([z[None], rows]), view.memory
        lower = np.arange(len(models)) == 0
        upper = np.ones(len(models), bool)

        def loss(some: np.ndarray) -> float:
            return float(view.losses(mean_of(models[some], samples[some])[None])[0])

        of_lower, of_upper = loss(lower), loss(upper)
        for j in 1 + view.draws.permutation(len(received)):
            larger, smaller = lower.copy(), upper.copy()
            larger[j], smaller[j] = True, False
            of_larger, of_smaller = loss(larger), loss(smaller)
            gain, other = max(0.0, of_lower - of_larger), max(0.0, of_upper - of_smaller)
            if view.draws.random() < (gain / (gain + other) if gain + other else 1.0):
                lower, of_lower = larger, of_larger
            else:
                upper, of_upper = smaller, of_smaller
            if lower.sum() > self.budget:
                break
        if not pool[view.node]:
            pool[view.node] = 1
            pool[received] = lower[1:]
        shares = samples * lower
        return mean_of(models[lower], samples[lower]), shares[1:] / shares.sum()


class Fomo(Chooser):
    """FedFomo without a server: moves to models that lower the own loss (Zhang et al. 2021).

    Parameters
    ----------
    models : int
        M, the models of others that a client asks for in a round.
    epsilon : float
        Probability that one of them is drawn at random, in round 1.
    decay : float
        By how much it falls from round to round.
    """

    looks_at_losses = True

    def __init__(
        self,
        *,
        models: Annotated[int, Ge(1)] = 4,
        epsilon: Annotated[float, Ge(0), Le(1)] = 0.3,
        decay: Annotated[float, Ge(0)] = 0.05,
    ) -> None:
        self.models, self.epsilon, self.decay = models, epsilon, decay

    def asks(self, view: ParticipantView) -> np.ndarray:
        best = best_first(view.memory[0], view.may_ask, view.draws).tolist()
        drawn = view.draws.permutation(view.may_ask).tolist()
        requested: list[int] = []
        epsilon = self.epsilon - self.decay * (view.observations.draws.round - 1)
        for _ in range(min(self.models, len(best))):
            order = drawn if view.draws.random() < epsilon else best
            requested.append(next(node for node in order if node not in requested))
        return np.array(requested, np.int64)

    def chosen(
        self,
        view: ParticipantView,
        x: np.ndarray,
        z: np.ndarray,
        received: np.ndarray,
        rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        ways = np.concatenate([z[None], rows]) - x
        losses = view.losses(np.concatenate([x[None], x + ways]))
        length = np.sqrt(np.square(ways).sum(axis=1))
        gain = losses[0] - losses[1:]
        gain = np.divide(gain, length, out=np.zeros(len(ways)), where=length > 0)
        view.memory[0, received] += gain[1:]
        shares = np.maximum(gain, 0)
        if not shares.any():
            return x, np.zeros(len(received))
        return x + mean_of(ways, shares), shares[1:] / shares.sum()


class L2c(Chooser):
    """L2C: weights of others' updates descend along the own loss (Li et al. 2022).

    The paper's text could not be had: this is from its abstract, with the steps of the weights
    assumed.

    Parameters
    ----------
    lr : float
        Step size of the logits of the weights.
    rounds : int
        Rounds in which a client asks all others it may ask.
    peers : int
        How many it asks later: those with the largest weights then.
    """

    looks_at_losses = True

    def __init__(
        self,
        *,
        lr: Annotated[float, Gt(0)] = 1.0,
        rounds: Annotated[int, Ge(1)] = 10,
        peers: Annotated[int, Ge(1)] = 4,
    ) -> None:
        self.lr, self.rounds, self.peers = lr, rounds, peers

    def sends(self, x: Tensor, moved: Tensor) -> Tensor:
        return moved - x

    def asks(self, view: ParticipantView) -> np.ndarray:
        if view.observations.draws.round <= self.rounds:
            return view.may_ask
        return best_first(view.memory[0], view.may_ask, view.draws)[: self.peers]

    def chosen(
        self,
        view: ParticipantView,
        x: np.ndarray,
        z: np.ndarray,
        received: np.ndarray,
        rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        (logits,), among = view.memory, [view.node, *received]
        updates = np.concatenate([(z - x)[None], rows])
        weights = special.softmax(logits[among])
        after = x + mean_of(updates, weights)
        slopes = (updates * view.held_out.gradient(view.participant, after)).sum(axis=1)
        logits[among] -= self.lr * weights * (slopes - (weights * slopes).sum())
        return after, weights[1:]


class Morph(Chooser):
    """Morph: means with as many others as at first, more and more unlike ones (Cox et al. 2026).

    The paper's text could not be had: this is from its authors' code.

    The similarity of two models is the mean cosine between their tensors. Clients send theirs to
    those that ask, and who they know. A client k from which i has not received is as similar to i
    as the mean of s_ij s_jk over those j that i receives from and that have received from k, else
    as i's mean similarity.

    Parameters
    ----------
    every : int
        Rounds after which one of those asked is replaced. At first they are the neighbours in W.
    sharpness : float
        beta: a known client k comes with probability proportional to exp(-beta s_ik), and one that
        is asked goes with probability proportional to exp(beta s_ik).
    """

    remembers = 3
    sends_notes = 2

    def __init__(
        self, *, every: Annotated[int, Ge(1)] = 5, sharpness: Annotated[float, Ge(0)] = 500.0
    ) -> None:
        self.every, self.sharpness = every, sharpness

    def asks(self, view: ParticipantView) -> np.ndarray:
        # Whom it asks is marked, and how it knows others: by name 1, by others 2, by itself 3.
        similar, knowledge, is_asked = view.memory
        if view.observations.draws.round == 1:
            knowledge[view.may_ask] = is_asked[view.may_ask] = 1
        elif (view.observations.draws.round - 1) % self.every == 0:
            inside = np.flatnonzero(is_asked)
            outside = np.flatnonzero((knowledge > 0) & (is_asked == 0))
            outside = outside[outside != view.node]
            if len(inside) > 1 and len(outside):
                mean = similar[knowledge > 1].mean() if (knowledge > 1).any() else 0.0
                score = self.sharpness * np.where(knowledge > 1, similar, mean)
                comes = view.draws.choice(outside, p=special.softmax(-score[outside]))
                goes = view.draws.choice(inside, p=special.softmax(score[inside]))
                is_asked[comes], is_asked[goes] = 1, 0
        return np.flatnonzero(is_asked)

    def chosen(
        self,
        view: ParticipantView,
        x: np.ndarray,
        z: np.ndarray,
        received: np.ndarray,
        rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        similar, knowledge, _ = view.memory
        models, (theirs, noted) = rows[:, : len(z)], np.split(rows[:, len(z) :], 2, axis=1)
        similar[received] = [cosine(z, model, view.observations.layers) for model in models]
        knowledge[received] = 3
        by_others = ((noted == 3) & (knowledge != 3)).sum(axis=0)
        guessed = (similar[received, None] * theirs * (noted == 3)).sum(axis=0)
        new = by_others > 0
        similar[new], knowledge[new] = guessed[new] / by_others[new], 2
        knowledge[(noted > 0).any(axis=0) & (knowledge == 0)] = 1
        similar[view.node] = knowledge[view.node] = 0
        share = 1 / (1 + len(received))
        return mean_of(np.concatenate([z[None], models]), np.ones(1 + len(received))), np.full(
            len(received), share
        )


def cosine(one: np.ndarray, other: np.ndarray, layers: Sequence[slice]) -> float:
    """Return the mean cosine between the tensors of one or several models, those of zeros apart."""
    cosines, period = [], max(layer.stop for layer in layers)
    for start in range(0, len(one), period):
        for layer in layers:
            a, b = (row[start + layer.start : start + layer.stop] for row in (one, other))
            length = np.sqrt((a * a).sum() * (b * b).sum())
            if length > 0:
                cosines.append(float((a * b).sum() / length))
    return float(np.mean(cosines)) if cosines else -1.0


def collapse(last: np.ndarray, often: np.ndarray) -> dict[str, float | None]:
    """Return how far clients' choices have narrowed (collaborator collapse, SONAR, MLSys 2026).

    The paper gives no formula that could be had; these are plain measures of it.

    Parameters
    ----------
    last : ndarray
        Weights of others in the last round, positive where the client of a row chose that of a
        column, (nodes, nodes).
    often : ndarray
        In how many rounds it did, (nodes, nodes).

    Returns
    -------
    dict
        ``chosen_gini``, the Gini coefficient of how many clients chose each one in the last round:
        0 where all are chosen alike, None where nobody is; ``chosen_components``, in how many parts
        their choices connect them; ``never_chosen``, the share of clients whom none ever chose.

    Examples
    --------
    >>> chosen = np.zeros((5, 5))
    >>> chosen[[1, 2, 3], [0, 0, 4]] = 1  # degrees are 2, 0, 0, 0, 1: sum |d_i - d_j| is 20
    >>> {name: round(value, 3) for name, value in collapse(chosen, chosen).items()}
    {'chosen_gini': 0.667, 'chosen_components': 2, 'never_chosen': 0.6}
    """
    arcs, n = last > 0, len(last)
    degrees = np.sort(arcs.sum(axis=0))
    ranks = 2 * np.arange(1, n + 1) - n - 1
    total = int(degrees.sum())
    parts = connected_components(sparse.csr_array(arcs), directed=False)[0]
    gini = float((ranks * degrees).sum() / (n * total)) if total else None
    never = float((often.sum(axis=0) == 0).mean())
    return dict(zip(COLLAPSE, (gini, int(parts), never), strict=True))
