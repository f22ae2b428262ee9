"""Local steps of a rank's clients (LocalSolver of Marfoq et al. 2021, Alg. 2 and 4).

A model steps in one of two ways. Either way the result of a client is the same bit for bit,
whichever clients share its rank:

* ``stacked``: rows (client, component) step together, padded to one width;
* ``one_by_one``: each client and component steps alone, at its true batch size.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Split
from mpifed.errors import note
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.options import StepScale
from mpifed.local import optimizers
from mpifed.local.adjustments import Adjustment, Coupling, Minibatch, Shift, Steps, sequences
from mpifed.local.minibatches import (
    Minibatches,
    Work,
    check_plan,
    draw_orders,
    never_alone,
    plan_minibatches,
    work_of,
)
from mpifed.local.objective import row_norms
from mpifed.local.optimizers import (
    AdamRule,
    Mask,
    Moments,
    MuonRule,
    OptimizerState,
    Rule,
    SgdRule,
    WithBuffers,
    without_buffers,
)
from mpifed.local.options import LocalOptions
from mpifed.models.base import Gradient, Model, RowGradients
from mpifed.models.modules import seed_torch
from mpifed.random import bits_at
from mpifed.watchdog import heartbeat

# Bytes of inputs and parameters in one step of a block; near the size of a core's cache is fastest.
BLOCK_BYTES = 5 << 20

# Bytes of inputs on a GPU: all clients of a rank, as long as their activations fit.
GPU_BLOCK_BYTES = 16 << 20

# Bytes of the positions in plans of earlier rounds that are kept, but for the last plan.
PLANS_BYTES = 16 << 20

# Parameters above which a gradient of several rows leaves the cache: on a CPU, clients then step
# alone, which is faster from about 200,000 on (scripts/bench one_step).
LARGE = 1 << 18

# Factors of the learning rate after t of R rounds, or local epochs. After R the last one stays.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda t, R: 1.0,
    "multi_step": lambda t, R: 0.1 ** ((t >= R // 2) + (t >= 3 * (R // 4))),
    "sqrt": lambda t, R: 1 / math.sqrt(max(t, 1)),
    "linear": lambda t, R: 1 / max(t, 1),
    "cosine": lambda t, R: (1 + math.cos(math.pi * min(t, R) / R)) / 2,
}

# The update rules by ``local.optimizer``.
RULES: dict[str, type[Rule]] = {
    "sgd": SgdRule,
    "adam": AdamRule,
    "adamw": AdamRule,
    "muon": MuonRule,
}


# Inputs, targets and weights of the samples of a minibatch.
Batch = tuple[Tensor, Tensor, Tensor]


class Averaging(Protocol):
    """What averages the rows that a solver trains, as it bears on their steps: a ``Channel``."""

    def rates(self, weights: Tensor, rule: StepScale) -> np.ndarray | None:
        """Return factors of the learning rates, float64 (clients,); None for ones."""

    def duals(self, shared: Tensor) -> Tensor | None:
        """Return what all steps together take from ``shared``, by their rates; None for nothing."""


@dataclass
class Stacked:
    """Steps of stacked rows."""

    model: Model
    rule: Rule
    batch_size: int
    width: int
    block_bytes: int
    device: torch.device
    sam_radius: float = 0.0
    _plans: dict[tuple[bytes, int], Minibatches] = field(default_factory=dict)
    _buffer: Tensor | None = None

    @cached_property
    def alone(self) -> bool:
        """Whether each client steps alone, in the memory where its rows stay."""
        model = self.model
        return self.device.type == "cpu" and model.single_rows and model.n_parameters > LARGE

    def __call__(
        self, start: Tensor, moments: Moments, clients: Clients, steps: Steps
    ) -> tuple[Tensor, Moments]:
        """Train each client's models."""
        work, components = steps.work, sequences(start, steps.coupling)
        plan = self._plan(clients, work, components, start.dtype)
        samples = steps.samples.to(self.device).index_select(0, plan.positions)
        scale = plan.scale
        if steps.weights is not None:
            rows = samples.view(-1, components, self.width)
            offsets = torch.arange(components, device=self.device) * steps.weights.shape[1]
            entries = (rows + offsets[:, None]).view(-1)
            scale = scale * steps.weights.reshape(-1).index_select(0, entries)
        order = torch.from_numpy(plan.order).to(self.device)
        # In the order of the plan. A block's rows are copied at its first step, which leaves them
        # in the cache; under a server ``start`` is one row for all clients until then.
        sources = (start, *moments)
        moving = tuple(one.new_empty(one.shape) for one in sources)
        theta, *own_moments = moving
        terms = steps.adjustments
        if not plan.is_sorted:
            terms = tuple(term.reordered(order) for term in terms)
        rates = np.repeat(steps.rates[plan.order], components, axis=0)
        rate_of = torch.from_numpy(rates).to(theta)
        before = torch.from_numpy(np.repeat(steps.done[plan.order], components)).to(theta)
        per_epoch = np.repeat(work.per_epoch[plan.order], components)
        parts = (part.split(plan.sizes) for part in (samples, scale))
        splits = clients.shards.train_in_parts(clients.rows[plan.order], plan.firsts)
        starts, begin, end, block = clients.starts[plan.order], 0, 0, slice(0)
        compute: RowGradients = self.model.gradient
        if steps.mask is not None:
            compute = self.model.gradient_within(steps.mask.numbers)
        alike = steps.coupling is None and steps.mask is None
        descends = alike and not terms and not self.sam_radius and self.rule.plain
        # Under SGD, a client that steps alone reads its first model where it lies.
        mover = self.rule if alike and self.alone and isinstance(self.rule, SgdRule) else None
        mover = None if descends else mover
        with torch.no_grad():
            for one, source in zip(moving, sources, strict=True) if len(plan.idle) else ():
                one[plan.idle] = source[order[plan.idle]]
            for step, visited, shares in zip(plan.steps, *parts, strict=True):
                heartbeat.step()
                if step.first >= end:
                    begin = end
                    end, split, starts_there = next(splits)
                    shifts = starts_there - starts[begin:end]
                    lies_elsewhere, shift_of = shifts.any(), torch.from_numpy(shifts)
                if block != slice(step.first, step.last):
                    block = slice(step.first, step.last)
                    part = slice(step.first * components, step.last * components)
                    rows, rates_there, steps_before = (
                        theta[block],
                        rate_of[part],
                        before[part, None],
                    )
                    block_moments = tuple(moment[block] for moment in own_moments)
                if lies_elsewhere:
                    shift = shift_of[step.first - begin : step.last - begin, None].to(self.device)
                    visited = (visited.view(len(shift), -1) + shift).view(-1)
                first_move = mover if step.number == 0 else None
                if step.number == 0:
                    for one, source in list(zip(moving, sources, strict=True))[bool(first_move) :]:
                        torch.index_select(source, 0, order[block], out=one[block])
                rate = rates_there
                if rate.shape[1] > 1:
                    epoch = torch.from_numpy(step.number // per_epoch[part]).to(self.device)
                    rate = rate.gather(1, epoch[:, None])
                targets = split.y.index_select(0, visited)
                batch = self._inputs(split.x, visited), targets, shares
                w = start[block] if first_move else rows
                if steps.coupling is not None:
                    done = steps_before + step.number * steps.coupling.steps
                    gradient_of = partial(self._gradient_of, batch, self.model.gradient)
                    context = gradient_of, self.rule, block_moments, block, done, terms, steps.mask
                    steps.coupling.move(Minibatch(w, order[block], step.number, rate, *context))
                    continue
                if descends:
                    w = w.flatten(0, 1)
                    take_step = partial(optimizers.step, self.model, rate)
                    w.copy_(self._gradient_of(batch, take_step, w))
                    continue
                change = self._gradient_of(batch, compute, w.flatten(0, 1))
                for term in terms:
                    term.add_to(change.view_as(w), w, block, slice(None))
                number = steps_before + (step.number + 1) if self.rule.counts_steps else 1.0
                flat = tuple(moment.flatten(0, 1) for moment in block_moments)
                w = w.flatten(0, 1)
                if first_move:
                    first_move.move(w, theta[block].flatten(0, 1), change, flat, rate)
                else:
                    self.rule.masked_step(w, change, flat, rate, number, steps.mask)
        if not plan.is_sorted:
            moving = tuple(torch.empty_like(one).index_copy_(0, order, one) for one in moving)
        return moving[0], moving[1:]

    def _gradient_of(
        self, batch: Batch, compute: RowGradients, w: Tensor, model: int = 0
    ) -> Tensor:
        """The gradient of the rows ``w`` on one minibatch each, padded to ``width``, or what else
        ``compute`` returns of them.
        """
        shape = (len(w), self.width)
        x, y, scale = (part.view(*shape, *part.shape[1:]) for part in batch)
        gradient_of = compute if self.alone or len(w) > 1 else partial(never_alone, compute)
        gradient = gradient_of(w, x, y, scale)
        if not self.sam_radius:
            return gradient
        return gradient_of(ascended(w, gradient, self.sam_radius), x, y, scale)

    def _inputs(self, x: Tensor, samples: Tensor) -> Tensor:
        """``x[samples]`` in memory that is used again, so that it stays in the cache."""
        if self._buffer is None or len(self._buffer) < len(samples):
            self._buffer = x.new_empty(len(samples), *x.shape[1:])
        return torch.index_select(x, 0, samples, out=self._buffer[: len(samples)])

    def _plan(
        self, clients: Clients, work: Work, components: int, dtype: torch.dtype
    ) -> Minibatches:
        """The plan of these clients and this work; the last few are kept."""
        key = (b"".join(map(bytes, (clients.rows, work.steps, work.drawn))), components)
        if key not in self._plans:
            nbytes = sum(plan.positions.nbytes for plan in self._plans.values())
            if len(self._plans) >= 4 or nbytes > PLANS_BYTES:
                self._plans.clear()
            numbers = self.width * math.prod(clients.shards.input_shape)
            if self.device.type == "cpu":
                numbers += self.model.n_parameters
            client_bytes = components * numbers * dtype.itemsize
            block = 1 if self.alone else max(1, self.block_bytes // max(1, client_bytes))
            self._plans[key] = plan_minibatches(
                work, self.batch_size, self.width, components, block, dtype, self.device
            )
        return self._plans[key]


def ascended(points: Tensor, gradients: Tensor, radius: float) -> Tensor:
    """Return theta + radius g / ||g||, row by row (Foret et al. 2021, eq. 2)."""
    scale = radius / row_norms(gradients).clamp(min=torch.finfo(points.dtype).tiny)
    return points + gradients * scale[:, None].to(points)


def _sharpen(compute: Gradient, batch: Batch, row: Tensor, gradient: Tensor, radius: float) -> None:
    """Replace the gradient at ``row`` by that above it; running statistics are those at it."""
    saved, numbers = row.clone(), len(gradient)
    row[:numbers] = ascended(row[None, :numbers], gradient[None], radius)[0]
    compute(*batch)
    row.copy_(saved)


def step_one_by_one(
    model: Model,
    rule: Rule,
    start: Tensor,
    moments: Moments,
    noise: np.ndarray,
    steps: Steps,
    clients: Clients,
) -> tuple[Tensor, Moments]:
    """Train each client's models, one after the other."""
    trained = start.clone(memory_format=torch.contiguous_format)
    moments = tuple(moment.clone() for moment in moments)
    components = sequences(start, steps.coupling)
    gradient = start.new_empty(model.n_parameters - model.n_buffers)
    lengths = steps.work.drawn * steps.work.epochs
    begins = np.cumsum(lengths * components) - lengths * components
    train, batch_size = clients.shards.train, rule.options.batch_size
    samples = steps.samples.to(train.x.device)
    devices = [start.device] if start.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        for client in range(len(trained)):
            try:
                for m in range(components):
                    seed = bits_at(noise[client : client + 1], np.array([m]))
                    seed_torch(int(seed[0]))
                    begin = int(begins[client] + m * lengths[client])
                    positions = samples[begin : begin + int(lengths[client])]
                    batches = _minibatches(train, batch_size, positions, steps, (client, m))
                    at = (trained, moments, steps, client)
                    if steps.coupling is not None:
                        _couple(model, rule, batches, *at)
                    else:
                        _train(model, rule, batches, *at, m, gradient)
            except Exception as error:
                note(error, f"client {clients.ids[client]}")
                raise
    return trained, moments


def _train(
    model: Model,
    rule: Rule,
    batches: Iterable[tuple[int, float, Batch]],
    trained: Tensor,
    moments: Moments,
    steps: Steps,
    client: int,
    m: int,
    gradient: Tensor,
) -> None:
    """Train one model of one client in place."""
    w = trained[client, m, : len(gradient)]
    own_moments = tuple(moment[client, m] for moment in moments)
    part = (slice(client, client + 1), slice(m, m + 1))
    mask = None if steps.mask is None else steps.mask.numbers
    with model.training(trained[client, m], gradient, mask) as compute:
        for number, rate, batch in batches:
            compute(*batch)
            if rule.options.sam_radius:
                _sharpen(compute, batch, trained[client, m], gradient, rule.options.sam_radius)
            for term in steps.adjustments:
                term.add_to(gradient[None, None], w[None, None], *part)
            done = float(steps.done[client] + number + 1)
            rule.masked_step(w, gradient, own_moments, rate, done, steps.mask)


def _couple(
    model: Model,
    rule: Rule,
    batches: Iterable[tuple[int, float, Batch]],
    trained: Tensor,
    moments: Moments,
    steps: Steps,
    client: int,
) -> None:
    """Move the models of one client together, in place."""
    assert steps.coupling is not None
    block, where = slice(client, client + 1), torch.tensor([client]).to(trained.device)
    rows, own_moments = trained[block], tuple(moment[block] for moment in moments)
    for number, rate, batch in batches:
        done = float(steps.done[client] + number * steps.coupling.steps)
        gradient_of = partial(_gradient_alone, model, batch, rows, rule.options.sam_radius)
        context = gradient_of, rule, own_moments, block, done, steps.adjustments, steps.mask
        steps.coupling.move(Minibatch(rows, where, number, rate, *context))


def _gradient_alone(
    model: Model, batch: Batch, rows: Tensor, radius: float, points: Tensor, m: int
) -> Tensor:
    """The gradient at one point; running statistics are those of model ``m``."""
    trained = model.n_parameters - model.n_buffers
    gradient, buffers = points.new_empty(trained), rows[0, m, trained:]
    # Bound anew for every point: a module may put other tensors in place of its buffers.
    row = torch.cat([points[0, :trained], buffers])
    with model.training(row, gradient) as compute:
        compute(*batch)
        if radius:
            _sharpen(compute, batch, row, gradient, radius)
    buffers.copy_(row[trained:])
    return gradient[None]


def _minibatches(
    train: Split, batch_size: int, samples: Tensor, steps: Steps, which: tuple[int, int]
) -> Iterator[tuple[int, float, Batch]]:
    """Yield number, learning rate and samples of the minibatches of one model of one client;
    ``samples`` are its visits, epoch after epoch.
    """
    (client, m), work = which, steps.work
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
    shape = len(done), int(work.epochs.max(initial=0))

    def factor(t: int) -> float:
        rising = min(1.0, (t + 1) / options.lr_warmup) if options.lr_warmup else 1.0
        return rising * SCHEDULES[options.lr_schedule](t, horizon)

    if options.lr_clock == "round":
        rates = np.full(shape, options.lr * factor(round - 1))
    else:
        factors = [[factor(d + e) for e in range(shape[1])] for d in done.tolist()]
        rates = options.lr * np.array(factors).reshape(shape)
    return rates if step_scale is None else rates * step_scale[:, None]


def over_rates(moves: Tensor | float, rates: Tensor) -> Tensor:
    """Return moves divided by the learning rates of their steps; 0 where these are 0.

    There nothing has moved, and no gradient is known.
    """
    return moves / rates.where(rates > 0, torch.inf)


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
    """SGD with momentum and weight decay, Adam, AdamW or Muon on each client's samples.

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
    step_scale : {'paper', 'normalised', 'none'}
        How rates depend on a client's share of the samples under gossip; see ``Exchange.rates``.

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
        step_scale: StepScale = "normalised",
    ) -> None:
        self.model, self.options, self.step_scale = model, options, step_scale
        self.device, self.purpose = device, purpose
        self.horizon, self.longest = options.lr_horizon or horizon, longest
        width = min(options.batch_size, longest)
        self.width = -(-width // model.lanes) * model.lanes
        epochs = options.epochs if options.steps is None else None
        check_plan(self.work(np.array([longest])), epochs, self.width, epochs_field)
        self.rule = RULES[options.optimizer](options, model)
        self.n_trained = model.n_parameters - model.n_buffers
        chosen = model.stepping if options.stepping == "auto" else options.stepping
        together = BLOCK_BYTES if device.type == "cpu" else GPU_BLOCK_BYTES
        block_bytes = together if chosen == "stacked" else 0
        self.stacked: Stacked | None = None
        if (chosen == "stacked" or model.same_bits) and not model.n_buffers:
            settings = options.batch_size, self.width, block_bytes, device, options.sam_radius
            self.stacked = Stacked(model, self.rule, *settings)

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
        if options.get("lr_schedule") == "constant":
            options.setdefault("lr_warmup", 0)
        changed = dataclasses.replace(self.options, **options)
        shared = self.horizon, self.longest, self.device
        names = purpose, epochs_field, self.step_scale
        return LocalSolver(model or self.model, changed, *shared, *names)

    def tuner(self, epochs: int, lr: float | None) -> LocalSolver:
        """Return the solver of ``tune_epochs`` and ``tune_lr``, for ``tuned``."""
        rate = self.options.lr if lr is None else lr
        changes: dict[str, Any] = {"epochs": epochs, "steps": None, "lr": rate}
        field = "algorithm.tune_epochs"
        return self.variant("fine-tuning", field, lr_schedule="constant", **changes)

    def tuned(
        self, models: Tensor, clients: Clients, draws: Draws, mask: Tensor | None = None
    ) -> Tensor:
        """Return ``models`` (1, P) or (clients, 1, P), trained by every client from no momentum."""
        start = models.expand(len(clients), 1, models.shape[-1])
        fresh = self.init(len(clients), 1, models.dtype)
        return self(start, fresh, clients, draws, mask=mask)[0]

    def scaled(self, step_scale: StepScale) -> LocalSolver:
        """Return the same solver with another rule for the rates under gossip."""
        solver = copy.copy(self)
        solver.step_scale = step_scale
        return solver

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

    def with_statistics(self, models: Tensor, optimizer: OptimizerState) -> Tensor:
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
        buffers = optimizer.buffers
        rows = models.expand(len(buffers), *models.shape[-2:]).clone()
        begun = (optimizer.rule.epochs > 0).to(buffers.device)
        rows[begun, :, self.n_trained :] = buffers[begun]
        return rows

    def __call__(
        self,
        start: Tensor,
        optimizer: OptimizerState,
        clients: Clients,
        draws: Draws,
        channel: Averaging | None = None,
        *,
        weights: Tensor | None = None,
        step_scale: np.ndarray | None = None,
        adjustments: Sequence[Adjustment] = (),
        mask: Tensor | None = None,
        coupling: Coupling | None = None,
        steps: int | None = None,
    ) -> tuple[Tensor, OptimizerState]:
        """Train every row of ``start`` on its client's shard.

        Parameters
        ----------
        start : Tensor
            Where clients begin, (clients, models, P).
        optimizer : OptimizerState
            The clients' state.
        clients : Clients
            The participants hosted here; late ones take fewer steps.
        draws : Draws
            Random numbers of the round.
        channel : Channel, optional
            What averages the rows afterwards: steps then have its rates and take its duals. None
            for rows that stay with their clients.
        weights : Tensor, optional
            q, of each model on each hosted training sample, (models, samples).
        step_scale : numpy.ndarray, optional
            Factors of the learning rate, (clients,).
        adjustments : sequence of Adjustment
            Terms that are added to the gradients.
        mask : Tensor, optional
            Which numbers of a row are trained, bool (P,).
        coupling : Coupling, optional
            What moves the models of a client together; None trains them apart.
        steps : int, optional
            Steps of a client, in place of those of the section ``local``.

        Returns
        -------
        tuple of Tensor and OptimizerState
            Where clients end, and their state.
        """
        options, rule_state = self.options, without_buffers(optimizer)
        work = self._work(clients, steps)
        duals = None
        if channel is not None:
            duals = channel.duals(start)
            step_scale = channel.rates(clients.weights, self.step_scale)
        if not len(clients):
            return start, optimizer
        rates = learning_rates(
            options, self.horizon, draws.round, rule_state.epochs, work, step_scale
        )
        if duals is not None:
            total = torch.from_numpy(summed_rates(rates, work)).to(self.device)
            adjustments = (*adjustments, Shift(duals / total[:, None, None].to(duals)))
        keys = draws.client_keys(self.purpose, clients.ids)
        moments = self.rule.moments(rule_state)
        if options.reset_momentum:
            moments = tuple(torch.zeros_like(moment) for moment in moments)
        count = sequences(start, coupling)
        training = Steps(
            draw_orders(keys, clients.starts, work, count, options.sampling),
            work,
            rates,
            self.rule.steps(rule_state),
            weights,
            tuple(adjustments),
            self._mask_of(mask),
            coupling,
        )
        start = self.with_statistics(start, optimizer)
        if self.stacked is not None:
            trained, moments = self.stacked(start, moments, clients, training)
        else:
            noise = draws.client_keys(f"{self.purpose} noise", clients.ids)
            trained, moments = step_one_by_one(
                self.model, self.rule, start, moments, noise, training, clients
            )
        taken = work.steps * (1 if coupling is None else coupling.steps)
        after = self.rule.after(rule_state, moments, taken, work.epochs)
        if isinstance(optimizer, WithBuffers):
            models = optimizer.buffers.shape[1]
            return trained, WithBuffers(after, trained[:, :models, self.n_trained :].clone())
        return trained, after

    def _mask_of(self, trained: Tensor | None) -> Mask | None:
        """The mask of what is trained; None where it is everything, of which steps are quicker."""
        if trained is None or bool(trained[: self.n_trained].all()):
            return None
        return Mask(trained[: self.n_trained].to(self.device))

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
            float64 (clients,), on the solver's device; 0 of clients that a schedule has brought to
            rest. ``over_rates`` divides by it.
        """
        options, rule_state = self.options, without_buffers(optimizer)
        work = self._work(clients, steps)
        rates = learning_rates(
            options, self.horizon, draws.round, rule_state.epochs, work, step_scale
        )
        return torch.from_numpy(summed_rates(rates, work)).to(self.device)

    def work(self, n_train: np.ndarray, steps: int | None = None) -> Work:
        """Return the steps of clients that take part in full.

        Parameters
        ----------
        n_train : numpy.ndarray
            Training samples of each client.
        steps : int, optional
            Steps in place of those of the options.
        """
        options = self.options
        steps = options.steps if steps is None else steps
        return work_of(n_train, options.batch_size, options.epochs, steps, options.sampling)

    def _work(self, clients: Clients, steps: int | None = None) -> Work:
        """Steps of each client in a round; ``steps`` are in place of those of the options."""
        work = self.work(clients.n_train, steps)
        return work if clients.effort is None else work.shortened(clients.effort)
