"""Losses and hits of many clients' samples, client by client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Split
from mpifed.federation.clients import Clients
from mpifed.models.base import Model
from mpifed.models.loss import Loss, Score, likeliest, probabilities, score
from mpifed.watchdog import heartbeat


def train_losses(model: Model, parameters: Tensor, split: Split, rows: np.ndarray) -> Tensor:
    """Return -log p_m(s) of every sample under every component."""
    components, shared = parameters.shape[-2], parameters.dim() == 2
    logits = None
    for i, begin, sizes in _adjacent(model, split, rows, shared):
        models, part = parameters if shared else parameters[i], slice(begin, begin + sum(sizes))
        z = model.logits_of_parts(models, split.x[part], sizes)
        if logits is None:
            logits = z.new_zeros(components, len(split.y), *z.shape[2:])
        logits[:, part] = z
    if logits is None:
        return parameters.new_zeros(components, len(split.y))
    return model.loss.samples(logits, split.y.expand(components, *split.y.shape))


@dataclass(frozen=True)
class ClientScores:
    """Scores of the clients' predictors, each float64 (clients,); see ``losses.Score``.

    ``samples`` has what was asked for of their samples, client after client, by name.
    """

    loss: np.ndarray
    nll: np.ndarray
    hits: np.ndarray
    possible: np.ndarray
    samples: dict[str, np.ndarray]


def client_scores(
    model: Model,
    parameters_of: Callable[[int], Tensor],
    weights_of: Callable[[int, Tensor], Tensor | None],
    split: Split,
    rows: np.ndarray,
    local_predictor: Callable[[int], torch.nn.Module] | None = None,
    of_samples: Collection[str] = (),
) -> ClientScores:
    """Evaluate the clients' predictors on their samples of a split.

    ``of_samples`` names what is returned of each sample; see ``predicted``.
    """
    sums, most = np.zeros((4, len(rows))), model.scored_together
    groups: dict[str, list[np.ndarray]] = {name: [] for name in of_samples}
    parts = [(i, part) for i, row in enumerate(rows) for part in samples_of(split, row, most)]
    for group in _groups(parts, parameters_of, most if local_predictor is None else 0):
        first = group[0][0]
        samples = slice(group[0][1].start, group[-1][1].stop)
        sizes = [part.stop - part.start for _, part in group]
        x = split.x[samples]
        z = model.logits_of_parts(parameters_of(first), x, sizes)
        if local_predictor is not None:
            z = torch.cat([z, local_predictor(first)(x)[None]])
        weights = [weights_of(i, split.x[part]) for i, part in group]
        mixture = _side_by_side(weights, sizes)
        scored = score(model.loss, z, split.y[samples], mixture)
        for name, values in groups.items():
            of_group = predicted(name, model.loss, z, split.y[samples], mixture, scored)
            values.append(of_group.cpu().numpy())
        sizes_before, ids = np.cumsum([0, *sizes[:-1]]), [i for i, _ in group]
        for row, counted in ((2, scored.hits), (3, scored.possible)):
            counts = np.add.reduceat(counted.cpu().numpy(), sizes_before, dtype=np.float64)
            sums[row, ids] += counts
        several = [scored.loss] if scored.nll is scored.loss else [scored.loss, scored.nll]
        losses = torch.stack(several).double().split(sizes, 1)
        # Part by part: the bits of a sum depend on how many numbers are added.
        sums[:2, ids] += (
            torch.stack([part_losses.sum(1) for part_losses in losses], 1).cpu().numpy()
        )
    counts = split.counts[rows]
    means = np.divide(sums[:2], counts, out=np.full((2, len(rows)), np.nan), where=counts > 0)
    joined = {name: np.concatenate(parts) for name, parts in groups.items() if parts}
    return ClientScores(means[0], means[1], sums[2], sums[3], joined)


def predicted(
    name: str, loss: Loss, outputs: Tensor, y: Tensor, mixture: Tensor | None, scored: Score
) -> Tensor:
    """Return of each of B samples its target ``y_true``, what is predicted, ``y_pred``, or its
    probabilities ``y_score``.
    """
    if name == "y_true":
        return y
    if name == "y_score":
        return probabilities(outputs, mixture)
    if y.is_floating_point():
        return outputs[0] if mixture is None else loss.mixed(outputs, mixture)
    if outputs.shape[-1] == 1:  # by the rule of the accuracy, also of ties
        return torch.where(scored.hits, y, 1 - y)
    return likeliest(outputs, mixture)


def _groups(
    parts: list[tuple[int, slice]], parameters_of: Callable[[int], Tensor], most: int
) -> Iterator[list[tuple[int, slice]]]:
    """Yield adjacent parts of clients that have the same models, together at most ``most``."""
    group: list[tuple[int, slice]] = []
    for i, part in parts:
        heartbeat.step()
        adjacent = bool(group) and part.start == group[-1][1].stop
        if not (adjacent and part.stop - group[0][1].start <= most) or (
            parameters_of(i) is not parameters_of(group[0][0])
        ):
            if group:
                yield group
            group = []
        group.append((i, part))
    if group:
        yield group


def _side_by_side(weights: list[Tensor | None], sizes: list[int]) -> Tensor | None:
    """Return the weights of several parts of samples, (M, B), or those of the only part."""
    tensors = [each for each in weights if each is not None]
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    if tensors[0].dim() == 2:
        return torch.cat(tensors, 1)
    return torch.stack(tensors, 1).repeat_interleave(torch.tensor(sizes).to(tensors[0].device), 1)


def _adjacent(
    model: Model, split: Split, rows: np.ndarray, together: bool
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield sizes of the parts of each of ``rows``, those of adjacent clients ``together``."""
    first, begin, end, sizes, most = 0, 0, 0, list[int](), model.scored_together
    starts, ends = split.offsets[rows].tolist(), split.offsets[rows + 1].tolist()
    for i, (start, stop) in enumerate(zip(starts, ends, strict=True)):
        for a in range(start, stop, most):
            heartbeat.step()
            size = min(most, stop - a)
            fits = (together or first == i) and a == end and end + size - begin <= most
            if sizes and not fits:
                yield first, begin, sizes
                sizes = []
            if not sizes:
                first, begin = i, a
            sizes.append(size)
            end = a + size
    if sizes:
        yield first, begin, sizes


def samples_of(split: Split, row: int, most: int) -> Iterator[slice]:
    """Yield where the samples of the client at ``row`` are, at most ``most`` of them at a time."""
    start, stop = split.offsets[row : row + 2].tolist()
    for begin in range(start, stop, most):
        heartbeat.step()
        yield slice(begin, min(begin + most, stop))


def mean_by_client(values: Tensor, offsets: np.ndarray, rows: np.ndarray) -> Tensor:
    """Return the mean of values over each client's samples; ``offsets`` are those of a split."""
    if not len(rows):
        return torch.empty(0, len(values), dtype=torch.float64)
    counts = offsets[1:] - offsets[:-1]
    filled = counts > 0  # an empty segment would give its successor's first value
    sums = np.zeros((len(values), len(filled)))
    starts = offsets[:-1][filled]
    if len(starts):
        sums[:, filled] = np.add.reduceat(values.double().cpu().numpy(), starts, axis=1)
    return torch.from_numpy(sums[:, rows].T / np.maximum(1, counts[rows])[:, None])


def train_risks(model: Model, parameters: Tensor, split: Split, rows: np.ndarray) -> Tensor:
    """Return the mean of ``train_losses``, whose parameters these are, over each client's
    samples.
    """
    return mean_by_client(train_losses(model, parameters, split, rows), split.offsets, rows)


def held_out_risks(model: Model, models: Tensor, clients: Clients, who: np.ndarray) -> Tensor:
    """Return the risks of some clients on validation samples, float64 (who, M).

    On training samples where a client has no others. ``models`` are (M, P), or (clients, M, P).
    """
    rows, shards = clients.rows[who], clients.shards
    validates = shards.val.counts[rows] > 0
    risks = torch.zeros(len(who), models.shape[-2], dtype=torch.float64)
    for split, part in ((shards.val, validates), (shards.train, ~validates)):
        some = models if models.dim() == 2 else models[who[part]]
        risks[part] = train_risks(model, some, split, rows[part]).cpu()
    return risks


def best_weight(loss: Loss, outputs: Tensor, y: Tensor, grid: Tensor) -> float:
    """Return the weight of the second of two predictors with which most samples are right."""
    best, chosen = (-1.0, 0.0), 0.0
    for weight in grid.tolist():
        scored = score(loss, outputs, y, outputs.new_tensor([1 - weight, weight]))
        reached = float(scored.hits.sum()), -float(scored.loss.double().sum())
        if reached > best:
            best, chosen = reached, weight
    return chosen
