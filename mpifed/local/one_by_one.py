"""Local steps of one client after the other, each at its true batch size.

Convolutions, recurrences and large models are faster alone than as stacked rows: a client's batch
is work enough for the kernels, nothing is padded, and the parameters of one model stay in the
cache. Since a client is alone, its result cannot depend on the clients beside it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.local.optimizers import Moments, Rule
from mpifed.local.steps import Steps
from mpifed.models.base import Gradient, Model
from mpifed.random import bits_at
from mpifed.supervision import heartbeat


def step_one_by_one(
    model: Model,
    rule: Rule,
    batch_size: int,
    start: Tensor,
    moments: Moments,
    noise: np.ndarray,
    steps: Steps,
) -> tuple[Tensor, Moments]:
    """Train each client's models, one after the other.

    Parameters
    ----------
    model : Model
        What is trained.
    rule : Rule
        The update rule.
    batch_size : int
        Samples of a minibatch.
    start : Tensor
        First parameters, (clients, components, P).
    moments : tuple of Tensor
        Those of the rule, (clients, components, P) each; they are not changed.
    noise : numpy.ndarray
        Keys of the random numbers that a model draws, uint64 (clients,).
    steps : Steps
        Samples and rates.

    Returns
    -------
    tuple of Tensor and tuple of Tensor
        The trained rows and their moments.
    """
    trained = start.clone(memory_format=torch.contiguous_format)
    moments = tuple(moment.clone() for moment in moments)
    components = start.shape[1]
    gradient = start.new_empty(model.n_parameters - model.n_buffers)
    lengths = steps.work.drawn * steps.work.epochs
    begins = np.cumsum(lengths * components) - lengths * components
    samples = steps.samples.to(steps.train.x.device)
    mask = None if steps.mask is None else steps.mask.numbers
    devices = [start.device] if start.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        for client in range(len(trained)):
            for m in range(components):
                seed = bits_at(noise[client : client + 1], np.array([m]))
                torch.manual_seed(int(seed[0]))
                begin = int(begins[client] + m * lengths[client])
                own = samples[begin : begin + int(lengths[client])]
                row = tuple(moment[client, m] for moment in moments)
                with model.training(trained[client, m], gradient, mask) as compute:
                    _train(
                        compute, rule, batch_size, trained, gradient, row, own, steps, (client, m)
                    )
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
    (client, m), work, train = which, steps.work, steps.train
    w = trained[client, m, : len(gradient)]
    drawn, per_epoch = int(work.drawn[client]), int(work.per_epoch[client])
    part = (slice(client, client + 1), slice(m, m + 1))
    for number in range(int(work.steps[client])):
        heartbeat.step()
        epoch, index = divmod(number, per_epoch)
        first = epoch * drawn + index * batch_size
        visited = samples[first : min(first + batch_size, (epoch + 1) * drawn)]
        scale = train.x.new_full((len(visited),), 1 / len(visited))
        if steps.weights is not None:
            scale *= steps.weights[m].index_select(0, visited)
        compute(train.x.index_select(0, visited), train.y.index_select(0, visited), scale)
        for term in steps.adjustments:
            term.add_to(gradient[None, None], w[None, None], *part)
        rates = steps.rates[client]
        rate = float(rates[min(epoch, len(rates) - 1)])
        done = float(steps.done[client] + number + 1)
        rule.masked_step(w, gradient, moments, rate, done, steps.mask)
