"""Local steps of many clients at once, as stacked rows (client, component)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients
from mpifed.local.adjustments import Adjustment, Minibatch, Steps, sequences
from mpifed.local.invariance import never_alone
from mpifed.local.minibatches import Plan, Work, plan
from mpifed.local.optimizers import Mask, Moments, Rule
from mpifed.models.base import Model, RowGradients
from mpifed.watchdog import heartbeat

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

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
        self,
        w: Float[Tensor, "rows size"],
        x: Float[Tensor, "samples *inputs"],
        y: Shaped[Tensor, "samples *targets"],
        scale: Float[Tensor, " samples"],
        compute: RowGradients | None = None,
    ) -> Float[Tensor, "rows size"]:
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
