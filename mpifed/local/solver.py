"""Local steps of a rank's clients (LocalSolver of Marfoq et al. 2021, Alg. 2 and 4).

Two ways of stepping:

* ``stacked``: rows (client, component) step together, padded to one width;
* ``one_by_one``: each client and component alone, at its true batch size.

Either way the result of a client is the same bit for bit whichever clients share its rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import note
from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Adjustment, Coupling, Minibatch, Steps, sequences
from mpifed.local.invariance import LANES, never_alone
from mpifed.local.minibatches import Plan, Work, check_plan, draw_orders, plan, work_of
from mpifed.local.optimizers import (
    RULES,
    Mask,
    Moments,
    OptimizerState,
    Rule,
    WithBuffers,
    without_buffers,
)
from mpifed.local.options import LocalOptions
from mpifed.models.base import Gradient, Model, RowGradients
from mpifed.random import bits_at
from mpifed.watchdog import heartbeat

# Bytes of inputs in one step of a block; near the size of a core's cache is fastest.
BLOCK_BYTES = 3 << 20

# The same on a GPU: all clients of a rank, as long as their activations fit.
GPU_BLOCK_BYTES = 16 << 20

EVERY = slice(None)
CONTIGUOUS = torch.contiguous_format


class Stacked:
    """Steps of stacked rows."""

    def __init__(
        self,
        model: Model,
        rule: Rule,
        batch_size: int,
        width: int,
        block_bytes: int,
        device: torch.device,
    ) -> None:
        self.model, self.rule, self.batch_size = model, rule, batch_size
        self.width, self.block_bytes, self.device = width, block_bytes, device
        self._plans: dict[tuple[bytes, int], Plan] = {}
        self._buffer: Tensor | None = None

    def __call__(
        self, start: Tensor, moments: Moments, clients: Clients, steps: Steps
    ) -> tuple[Tensor, Moments]:
        """Train each client's models."""
        work, train, components = steps.work, steps.train, sequences(start, steps.coupling)
        the_plan = self._plan(clients, work, components, start.dtype)
        samples = steps.samples.to(self.device).index_select(0, the_plan.place)
        scale = the_plan.scale
        if steps.weights is not None:
            rows = samples.view(-1, components, self.width)
            offsets = torch.arange(components, device=self.device) * steps.weights.shape[1]
            entries = (rows + offsets[:, None]).view(-1)
            scale = scale * steps.weights.reshape(-1).index_select(0, entries)
        labels = train.y.index_select(0, samples)
        order = torch.from_numpy(the_plan.order).to(self.device)
        # Clients with equally many steps stay in their order, which saves copies of all rows.
        is_sorted = bool((np.diff(the_plan.order) > 0).all())
        theta = start.clone(memory_format=CONTIGUOUS) if is_sorted else start[order]
        moving = tuple(moment.clone() if is_sorted else moment[order] for moment in moments)
        adjustments = steps.adjustments
        if not is_sorted:
            adjustments = tuple(term.reordered(order) for term in adjustments)
        rates = np.repeat(steps.rates[the_plan.order], components, axis=0)
        rate_of = torch.from_numpy(rates).to(theta)
        before = torch.from_numpy(np.repeat(steps.done[the_plan.order], components)).to(theta)
        per_epoch = np.repeat(work.per_epoch[the_plan.order], components)
        w_rows = theta.flatten(0, 1)
        flat = tuple(moment.flatten(0, 1) for moment in moving)
        batches = zip(
            samples.split(the_plan.sizes),
            labels.split(the_plan.sizes),
            scale.split(the_plan.sizes),
            strict=True,
        )
        mask = steps.mask
        compute: RowGradients = self.model.gradient
        if mask is not None:
            compute = self.model.gradient_within(mask.numbers)
        with torch.no_grad():
            for step, (visited, targets, shares) in zip(the_plan.steps, batches, strict=True):
                heartbeat.step()
                part = slice(step.first * components, step.last * components)
                rate = rate_of[part]
                if rate.shape[1] > 1:
                    epoch = torch.from_numpy(step.number // per_epoch[part]).to(self.device)
                    rate = rate.gather(1, epoch[:, None])
                batch = self._inputs(train.x, visited), targets, shares
                if steps.coupling is not None:
                    done = before[part, None] + step.number * steps.coupling.steps
                    own = tuple(moment[part] for moment in moving)
                    made = theta[part], order[part], step.number, rate
                    terms = adjustments, mask
                    steps.coupling.move(OfBlock(*made, self, own, batch, part, done, *terms))
                    continue
                w = w_rows[part]
                change = self.gradient(w, *batch, compute)
                for term in adjustments:
                    shape = (step.last - step.first, components, self.model.n_parameters)
                    term.add_to(
                        change.view(shape), w.view(shape), slice(step.first, step.last), EVERY
                    )
                number = before[part, None] + (step.number + 1) if self.rule.counts_steps else 1.0
                moving_part = tuple(m[part] for m in flat)
                self.rule.masked_step(w, change, moving_part, rate, number, mask)
        if is_sorted:
            return theta, moving
        return (
            torch.empty_like(theta).index_copy_(0, order, theta),
            tuple(torch.empty_like(moment).index_copy_(0, order, moment) for moment in moving),
        )

    def gradient(
        self, w: Tensor, x: Tensor, y: Tensor, scale: Tensor, compute: RowGradients | None = None
    ) -> Tensor:
        """Return the gradient of the rows ``w`` on one minibatch each, padded to ``width``."""
        shape = (len(w), self.width)
        inputs, targets = x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:])
        return never_alone(compute or self.model.gradient, w, inputs, targets, scale.view(shape))

    def _inputs(self, x: Tensor, samples: Tensor) -> Tensor:
        """``x[samples]`` in memory that is used again, so that it stays in the cache."""
        if self._buffer is None or len(self._buffer) < len(samples):
            self._buffer = x.new_empty(len(samples), *x.shape[1:])
        return torch.index_select(x, 0, samples, out=self._buffer[: len(samples)])

    def _plan(self, clients: Clients, work: Work, components: int, dtype: torch.dtype) -> Plan:
        """The plan of these clients and this work; the last few are kept."""
        key = (b"".join(map(bytes, (clients.rows, work.steps, work.drawn))), components)
        if key not in self._plans:
            if len(self._plans) >= 4:
                self._plans.clear()
            numbers = math.prod(clients.shards.train.x.shape[1:])
            client_bytes = components * self.width * numbers * dtype.itemsize
            block = max(1, self.block_bytes // max(1, client_bytes))
            self._plans[key] = plan(
                work, self.batch_size, self.width, components, block, dtype, self.device
            )
        return self._plans[key]


@dataclass
class OfBlock(Minibatch):
    """Minibatches of the clients of a block, whose models move together."""

    stacked: Stacked
    moments: Moments
    batch: tuple[Tensor, Tensor, Tensor]
    block: slice
    done: Tensor
    terms: tuple[Adjustment, ...]
    mask: Mask | None
    taken: Counter[int] = field(default_factory=Counter)

    def gradient(self, points: Tensor, model: int) -> Tensor:
        return self.stacked.gradient(points, *self.batch)

    def step(self, gradient: Tensor, model: int) -> None:
        self.taken[model] += 1
        w = self.rows[:, model]
        for term in self.terms:
            term.add_to(gradient[:, None], w[:, None], self.block, slice(model, model + 1))
        moments = tuple(moment[:, model] for moment in self.moments)
        number = self.done + self.taken[model]
        self.stacked.rule.masked_step(w, gradient, moments, self.rate, number, self.mask)


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


def constant(step: int, horizon: int) -> float:
    """Return 1."""
    return 1.0


def multi_step(step: int, horizon: int) -> float:
    """Return 1, 0.1 from floor(R/2) steps, 0.01 from 3 floor(R/4) steps.

    Examples
    --------
    >>> [round(multi_step(t, 8), 2) for t in (0, 4, 6)]
    [1.0, 0.1, 0.01]
    """
    return 0.1 ** ((step >= horizon // 2) + (step >= 3 * (horizon // 4)))


def sqrt(step: int, horizon: int) -> float:
    """Return 1 / sqrt(step), 1 at the start."""
    return 1 / math.sqrt(step) if step else 1.0


def linear(step: int, horizon: int) -> float:
    """Return 1 / step, 1 at the start."""
    return 1 / step if step else 1.0


def cosine(step: int, horizon: int) -> float:
    """Return half a cosine, from 1 to 0 over R steps.

    Examples
    --------
    >>> [round(cosine(t, 4), 2) for t in range(5)]
    [1.0, 0.85, 0.5, 0.15, 0.0]
    """
    return (1 + math.cos(math.pi * step / horizon)) / 2


SCHEDULES = {
    "constant": constant,
    "multi_step": multi_step,
    "sqrt": sqrt,
    "linear": linear,
    "cosine": cosine,
}


def learning_rates(
    options: LocalOptions,
    horizon: int,
    round: int,
    done: Tensor,
    work: Work,
    step_scale: np.ndarray | None,
) -> np.ndarray:
    """Return the learning rates of a round.

    Parameters
    ----------
    options : LocalOptions
        The section ``local``.
    horizon : int
        R of the schedules.
    round : int
        The round, from 1.
    done : Tensor
        Local epochs of each client before the round, int64 (clients,).
    work : Work
        Steps of each client.
    step_scale : numpy.ndarray or None
        Factors of the rates, (clients,); None for ones.

    Returns
    -------
    numpy.ndarray
        float64 (clients, most epochs of a client).
    """
    schedule, shape = SCHEDULES[options.lr_schedule], (len(done), int(work.epochs.max(initial=0)))
    if options.lr_clock == "round":
        rates = np.full(shape, options.lr * schedule(round - 1, horizon))
    else:
        factors = [[schedule(d + e, horizon) for e in range(shape[1])] for d in done.tolist()]
        rates = options.lr * np.array(factors).reshape(shape)
    return rates if step_scale is None else rates * step_scale[:, None]


def summed_rates(rates: np.ndarray, work: Work) -> np.ndarray:
    """Return the sum of the learning rates of all steps of a client.

    Parameters
    ----------
    rates : numpy.ndarray
        Those of each epoch, float64 (clients, epochs).
    work : Work
        Steps of each client.

    Returns
    -------
    numpy.ndarray
        float64 (clients,).

    Examples
    --------
    >>> work = Work(np.array([8]), np.array([3]), np.array([2]), np.array([8]))
    >>> summed_rates(np.array([[0.5, 0.25]]), work)  # two steps of the first epoch, one more
    array([1.25])
    """
    begun = work.per_epoch[:, None] * np.arange(rates.shape[1])
    steps = np.clip(work.steps[:, None] - begun, 0, work.per_epoch[:, None])
    # Exact sums: those of numpy depend on the number of columns, which differs between ranks.
    return np.array([math.fsum(row) for row in (steps * rates).tolist()])


__all__ = ["LocalSolver", "OptimizerState"]


class LocalSolver:
    """SGD with momentum and weight decay, Adam or AdamW on each client's samples.

    One step of SGD on row (t, m) with minibatch I, where q = 1 without sample weights:
        g = (1 / |I|) sum_{i in I} q_i(m) grad l(theta; s_i) + adjustments + weight_decay theta
        v <- momentum v + g;   theta <- theta - lr v

    Parameters
    ----------
    model : Model
        What is trained.
    options : LocalOptions
        The section ``local`` of the configuration.
    horizon : int
        R of the schedules, unless ``options.lr_horizon`` is set.
    longest : int
        Largest shard of all clients, on any rank, in samples.
    device : torch.device
        Where the models are trained.
    purpose : str
        Name of the stream from which minibatches are drawn.
    epochs_field : str
        Where the epochs come from, for messages.

    Attributes
    ----------
    n_trained : int
        Numbers of a row that have a gradient; buffers come after them.

    Raises
    ------
    InputError
        If memory cannot hold the minibatches of a round.
    """

    def __init__(
        self,
        model: Model,
        options: LocalOptions,
        horizon: int,
        longest: int,
        device: torch.device,
        purpose: str = "minibatches",
        epochs_field: str = "local.epochs",
    ) -> None:
        self.model, self.options = model, options
        self.device, self.purpose = device, purpose
        self.horizon, self.longest = options.lr_horizon or horizon, longest
        width = min(options.batch_size, longest)
        self.width = -(-width // LANES) * LANES
        check_plan(options, longest, self.width, epochs_field)
        self.rule = RULES[options.optimizer](options)
        self.n_trained = model.n_parameters - model.n_buffers
        chosen = model.stepping if options.stepping == "auto" else options.stepping
        together = BLOCK_BYTES if device.type == "cpu" else GPU_BLOCK_BYTES
        block_bytes = together if chosen == "stacked" else 0
        self.stacked: Stacked | None = None
        if (chosen == "stacked" or model.same_bits) and not model.n_buffers:
            self.stacked = Stacked(
                model, self.rule, options.batch_size, self.width, block_bytes, device
            )

    def variant(
        self,
        purpose: str,
        epochs_field: str = "local.epochs",
        model: Model | None = None,
        **options: Any,
    ) -> LocalSolver:
        """Return a solver with other options, for another phase of a method.

        Parameters
        ----------
        purpose, epochs_field
            As for the class.
        model : Model, optional
            What it trains; None is the same model.
        **options
            Fields of ``LocalOptions`` that differ.
        """
        changed = dataclasses.replace(self.options, **options)
        shared = self.horizon, self.longest, self.device
        return LocalSolver(model or self.model, changed, *shared, purpose, epochs_field)

    @property
    def keeps_buffers(self) -> bool:
        """Whether running statistics stay with the clients."""
        return self.options.buffers == "local" and self.model.n_buffers > 0

    def init(self, n_clients: int, components: int, dtype: torch.dtype) -> OptimizerState:
        """Return the state before the first step.

        Parameters
        ----------
        n_clients : int
            Clients hosted here.
        components : int
            Models that each client trains.
        dtype : torch.dtype
            Floating-point type of models.

        Returns
        -------
        OptimizerState
        """
        zeros = torch.zeros(0, dtype=dtype, device=self.device)
        begun = self.rule.init(n_clients, components, self.n_trained, zeros)
        if not self.keeps_buffers:
            return begun
        return WithBuffers(begun, zeros.new_zeros(n_clients, components, self.model.n_buffers))

    def own(self, models: Tensor, optimizer: OptimizerState) -> Tensor:
        """Return models with the buffers that their clients keep.

        Parameters
        ----------
        models : Tensor
            (components, P) for all clients, or (clients, components, P).
        optimizer : OptimizerState
            The clients' state.

        Returns
        -------
        Tensor
            (clients, components, P) under ``local.buffers: local``, else ``models`` as it is.
        """
        if not isinstance(optimizer, WithBuffers):
            return models
        kept = optimizer.buffers
        rows = models.expand(len(kept), *models.shape[-2:]).clone()
        begun = (optimizer.rule.epochs > 0).to(kept.device)
        rows[begun, :, self.n_trained :] = kept[begun]
        return rows

    def __call__(
        self,
        start: Tensor,
        optimizer: OptimizerState,
        clients: Clients,
        draws: Draws,
        weights: Tensor | None = None,
        step_scale: np.ndarray | None = None,
        adjustments: Sequence[Adjustment] = (),
        mask: Tensor | None = None,
        coupling: Coupling | None = None,
        steps: int | None = None,
    ) -> tuple[Tensor, OptimizerState]:
        """Train every row of ``start`` on its client's shard."""
        options, kept = self.options, without_buffers(optimizer)
        work = self._work(clients, steps)
        rates = learning_rates(options, self.horizon, draws.round, kept.epochs, work, step_scale)
        keys = draws.client_keys(self.purpose, clients.ids)
        moments = self.rule.moments(kept)
        if options.reset_momentum:
            moments = tuple(torch.zeros_like(moment) for moment in moments)
        count = sequences(start, coupling)
        task = Steps(
            clients.shards.train,
            draw_orders(keys, clients.starts, work, count, options.sampling),
            work,
            rates,
            self.rule.steps(kept),
            weights,
            tuple(adjustments),
            None if mask is None else Mask(mask[: self.n_trained].to(self.device)),
            coupling,
        )
        start = self.own(start, optimizer)
        if self.stacked is not None:
            trained, moments = self.stacked(start, moments, clients, task)
        else:
            noise = draws.client_keys(f"{self.purpose} noise", clients.ids)
            trained, moments = step_one_by_one(
                self.model, self.rule, options.batch_size, start, moments, noise, task, clients.ids
            )
        taken = work.steps * (1 if coupling is None else coupling.steps)
        after = self.rule.after(kept, moments, taken, work.epochs)
        if isinstance(optimizer, WithBuffers):
            models = optimizer.buffers.shape[1]
            return trained, WithBuffers(after, trained[:, :models, self.n_trained :].clone())
        return trained, after

    def total_rates(
        self,
        optimizer: OptimizerState,
        clients: Clients,
        draws: Draws,
        step_scale: np.ndarray | None = None,
        steps: int | None = None,
    ) -> Tensor:
        """Return the sum of the learning rates of a client's steps in a round.

        With K steps at one rate it is K lr. A move of SGD without momentum divided by it is the
        mean of the gradients along which the client stepped.

        Parameters
        ----------
        optimizer : OptimizerState
            State before the round.
        clients : Clients
            The participants hosted here; late ones take fewer steps.
        draws : Draws
            Random numbers of the round, for its number.
        step_scale : numpy.ndarray, optional
            Factors of the learning rate, (clients,).
        steps : int, optional
            As in a call of the solver.

        Returns
        -------
        Tensor
            float64 (clients,), positive, on the solver's device.
        """
        options, kept = self.options, without_buffers(optimizer)
        work = self._work(clients, steps)
        rates = learning_rates(options, self.horizon, draws.round, kept.epochs, work, step_scale)
        return torch.from_numpy(summed_rates(rates, work)).to(self.device)

    def _work(self, clients: Clients, steps: int | None = None) -> Work:
        """Steps of each client in a round; ``steps`` are in place of those of the options."""
        options = self.options
        steps = options.steps if steps is None else steps
        work = work_of(clients.n_train, options.batch_size, options.epochs, steps, options.sampling)
        return work if clients.effort is None else work.shortened(clients.effort)


# The name of the class in earlier versions.
LocalSGD = LocalSolver
