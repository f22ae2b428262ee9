"""Local steps of one client after the other, each at its true batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import note
from mpifed.local.adjustments import Minibatch, Steps, sequences
from mpifed.local.optimizers import Moments, Rule
from mpifed.models.base import Gradient, Model
from mpifed.random import bits_at
from mpifed.watchdog import heartbeat

# Inputs, targets and weights of the samples of a minibatch.
Batch = tuple[Tensor, Tensor, Tensor]


def step_one_by_one(
    model: Model,
    rule: Rule,
    batch_size: int,
    start: Tensor,
    moments: Moments,
    noise: np.ndarray,
    steps: Steps,
    ids: np.ndarray,
) -> tuple[Tensor, Moments]:
    """Train each client's models, one after the other; ``ids`` are the clients' numbers."""
    trained = start.clone(memory_format=torch.contiguous_format)
    moments = tuple(moment.clone() for moment in moments)
    components = sequences(start, steps.coupling)
    gradient = start.new_empty(model.n_parameters - model.n_buffers)
    lengths = steps.work.drawn * steps.work.epochs
    begins = np.cumsum(lengths * components) - lengths * components
    samples = steps.samples.to(steps.train.x.device)
    mask = None if steps.mask is None else steps.mask.numbers
    devices = [start.device] if start.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        for client in range(len(trained)):
            try:
                for m in range(components):
                    seed = bits_at(noise[client : client + 1], np.array([m]))
                    torch.manual_seed(int(seed[0]))
                    begin = int(begins[client] + m * lengths[client])
                    own = samples[begin : begin + int(lengths[client])]
                    if steps.coupling is not None:
                        _couple(model, rule, batch_size, trained, moments, own, steps, client)
                        continue
                    row, which = tuple(moment[client, m] for moment in moments), (client, m)
                    with model.training(trained[client, m], gradient, mask) as compute:
                        _train(compute, rule, batch_size, trained, gradient, row, own, steps, which)
            except Exception as error:
                note(error, f"client {ids[client]}")
                raise
    return trained, moments


def _train(
    compute: Gradient,
    rule: Rule,
    batch_size: int,
    trained: Tensor,
    gradient: Tensor,
    moments: Moments,
    samples: Tensor,
    steps: Steps,
    which: tuple[int, int],
) -> None:
    """Train one model of one client in place; ``samples`` are its visits, epoch after epoch."""
    client, m = which
    w = trained[client, m, : len(gradient)]
    part = (slice(client, client + 1), slice(m, m + 1))
    for number, rate, batch in _minibatches(batch_size, samples, steps, which):
        compute(*batch)
        for term in steps.adjustments:
            term.add_to(gradient[None, None], w[None, None], *part)
        done = float(steps.done[client] + number + 1)
        rule.masked_step(w, gradient, moments, rate, done, steps.mask)


def _minibatches(
    batch_size: int, samples: Tensor, steps: Steps, which: tuple[int, int]
) -> Iterator[tuple[int, float, Batch]]:
    """Yield number, learning rate and samples of the minibatches of one model of one client."""
    (client, m), work, train = which, steps.work, steps.train
    drawn, per_epoch = int(work.drawn[client]), int(work.per_epoch[client])
    rates = steps.rates[client]
    for number in range(int(work.steps[client])):
        heartbeat.step()
        epoch, index = divmod(number, per_epoch)
        first = epoch * drawn + index * batch_size
        visited = samples[first : min(first + batch_size, (epoch + 1) * drawn)]
        scale = train.x.new_full((len(visited),), 1 / len(visited))
        if steps.weights is not None:
            scale *= steps.weights[m].index_select(0, visited)
        x, y = train.x.index_select(0, visited), train.y.index_select(0, visited)
        yield number, float(rates[min(epoch, len(rates) - 1)]), (x, y, scale)


def _couple(
    model: Model,
    rule: Rule,
    batch_size: int,
    trained: Tensor,
    moments: Moments,
    samples: Tensor,
    steps: Steps,
    client: int,
) -> None:
    """Move the models of one client together, in place; ``samples`` are their visits."""
    assert steps.coupling is not None
    rows, where = trained[client : client + 1], torch.tensor([client], device=trained.device)
    own = tuple(moment[client] for moment in moments)
    for number, rate, batch in _minibatches(batch_size, samples, steps, (client, 0)):
        done = int(steps.done[client]) + number * steps.coupling.steps
        steps.coupling.move(
            OfOneClient(rows, where, number, rate, model, rule, steps, own, batch, client, done)
        )


@dataclass
class OfOneClient(Minibatch):
    """A minibatch of one client, whose models move together."""

    model: Model
    rule: Rule
    steps: Steps
    moments: Moments
    batch: Batch
    client: int
    done: int
    taken: Counter[int] = field(default_factory=Counter)

    def gradient(self, points: Tensor, model: int) -> Tensor:
        trained = self.model.n_parameters - self.model.n_buffers
        found, buffers = points.new_empty(trained), self.rows[0, model, trained:]
        # Bound anew for every point: a module may put other tensors in place of its buffers.
        row = torch.cat([points[0, :trained], buffers])
        with self.model.training(row, found) as compute:
            compute(*self.batch)
        buffers.copy_(row[trained:])
        return found[None]

    def step(self, gradient: Tensor, model: int) -> None:
        self.taken[model] += 1
        w = self.rows[:, model, : gradient.shape[1]]
        for term in self.steps.adjustments:
            part = slice(self.client, self.client + 1), slice(model, model + 1)
            term.add_to(gradient[:, None], w[:, None], *part)
        assert isinstance(self.rate, float)
        moments = tuple(moment[model] for moment in self.moments)
        number = float(self.done + self.taken[model])
        self.rule.masked_step(w[0], gradient[0], moments, self.rate, number, self.steps.mask)
