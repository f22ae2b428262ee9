"""Local steps of a rank's clients (LocalSolver of Marfoq et al. 2021, Alg. 2 and 4).

Two ways of stepping:

* *stacked*: rows (client, component) step together, block by block; a block is small enough for its
  minibatches to stay in the processor's cache. Minibatches are padded to a width that all ranks
  share, whatever the block, and a client's arithmetic does not depend on the others of its block.
* *one by one* (``one_by_one``): each client and component alone, at its true batch size.

Either way the result of a client is the same bit for bit whichever clients share its rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Adjustment
from mpifed.local.invariance import LANES, never_alone
from mpifed.local.minibatches import Plan, Work, draw_orders, plan, work_of
from mpifed.local.one_by_one import Steps, step_one_by_one
from mpifed.local.optimizers import (
    RULES,
    AdamState,
    Moments,
    OptimizerState,
    SgdState,
    WithBuffers,
)
from mpifed.local.options import LocalOptions
from mpifed.local.schedule import SCHEDULES
from mpifed.models.base import Model
from mpifed.supervision import heartbeat

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

__all__ = ["LocalSGD", "OptimizerState"]

EVERY = slice(None)

BLOCK_BYTES = 3 << 20
"""Bytes of inputs in one step of a block; near the size of a core's cache is fastest."""


class LocalSGD:
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
    """

    def __init__(
        self,
        model: Model,
        options: LocalOptions,
        horizon: int,
        longest: int,
        device: torch.device,
        purpose: str = "minibatches",
    ) -> None:
        self.model, self.options = model, options
        self.device, self.purpose = device, purpose
        self.horizon, self.longest = options.lr_horizon or horizon, longest
        width = min(options.batch_size, longest)
        self.width = -(-width // LANES) * LANES
        self.block_bytes = BLOCK_BYTES
        self.rule = RULES[options.optimizer](options)
        chosen = model.stepping if options.stepping == "auto" else options.stepping
        self.is_stacked = chosen == "stacked" or model.same_bits
        if model.same_bits and chosen == "one_by_one":
            self.block_bytes = 0
        self.n_trained = model.n_parameters - model.n_buffers
        self._plans: dict[tuple[bytes, int], Plan] = {}
        self._buffer: Tensor | None = None

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
        start: Float[Tensor, "clients components size"],
        optimizer: OptimizerState,
        clients: Clients,
        draws: Draws,
        weights: Float[Tensor, "components samples"] | None = None,
        step_scale: Float[np.ndarray, " clients"] | None = None,
        adjustments: Sequence[Adjustment] = (),
        mask: Float[Tensor, " size"] | None = None,
    ) -> tuple[Float[Tensor, "clients components size"], OptimizerState]:
        """Train every row of ``start`` on its client's shard.

        Parameters
        ----------
        start : Tensor
            First parameters, (clients, components, P).
        optimizer : OptimizerState
            State after the client's last round.
        clients : Clients
            The participants hosted here.
        draws : Draws
            Random numbers of the round.
        weights : Tensor, optional
            q, (components, hosted training samples). None is ones.
        step_scale : numpy.ndarray, optional
            Factors of the learning rate, (clients,).
        adjustments : sequence of Adjustment
            Terms that are added to the gradients.
        mask : Tensor, optional
            1 for numbers of a row that are trained, 0 for others, (P,). None is ones.

        Returns
        -------
        tuple of Tensor and OptimizerState
            The trained rows, (clients, components, P), and the new state.
        """
        options = self.options
        work = work_of(
            clients.n_train, options.batch_size, options.epochs, options.steps, options.sampling
        )
        if clients.effort is not None:
            work = work.shortened(clients.effort)
        kept = optimizer.rule if isinstance(optimizer, WithBuffers) else optimizer
        assert isinstance(kept, SgdState | AdamState)
        rates = self._rates(draws.round, kept.epochs.numpy(), int(work.epochs.max(initial=0)))
        if step_scale is not None:
            rates = rates * step_scale[:, None]
        keys = draws.client_keys(self.purpose, clients.ids)
        moments = self.rule.moments(kept)
        if options.reset_momentum:
            moments = tuple(torch.zeros_like(moment) for moment in moments)
        steps = Steps(
            clients.shards.train,
            draw_orders(keys, clients.starts, work, start.shape[1], options.sampling),
            work,
            rates,
            self.rule.steps(kept),
            weights,
            tuple(adjustments),
            None if mask is None else mask[: self.n_trained],
        )
        start = self.own(start, optimizer)
        if self.is_stacked:
            trained, moments = self._step_stacked(start, moments, clients, steps)
        else:
            noise = draws.client_keys(f"{self.purpose} noise", clients.ids)
            trained, moments = step_one_by_one(
                self.model, self.rule, options.batch_size, start, moments, noise, steps
            )
        after = self.rule.after(kept, moments, work.steps, work.epochs)
        if isinstance(optimizer, WithBuffers):
            return trained, WithBuffers(after, trained[..., self.n_trained :].clone())
        return trained, after

    def _step_stacked(
        self, start: Tensor, moments: Moments, clients: Clients, steps: Steps
    ) -> tuple[Tensor, Moments]:
        """Train all rows in blocks; the trained rows and their moments."""
        work, train, components = steps.work, steps.train, start.shape[1]
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
        theta = start[order]
        moving = tuple(moment[order] for moment in moments)
        adjustments = [term.reordered(order) for term in steps.adjustments]
        rates = np.repeat(steps.rates[the_plan.order], components, axis=0)
        rate_of = torch.from_numpy(rates).to(theta)
        before = torch.from_numpy(np.repeat(steps.done[the_plan.order], components)).to(theta)
        per_epoch = np.repeat(work.per_epoch[the_plan.order], components)
        w_rows = theta.flatten(0, 1)
        flat = tuple(moment.flatten(0, 1) for moment in moving)
        with torch.no_grad():
            for step in the_plan.steps:
                heartbeat.step()
                part = slice(step.first * components, step.last * components)
                rate = rate_of[part]
                if rate.shape[1] > 1:
                    epoch = torch.from_numpy(step.number // per_epoch[part]).to(self.device)
                    rate = rate.gather(1, epoch[:, None])
                w = w_rows[part]
                change = self._gradient(
                    w,
                    self._inputs(train.x, samples[step.slots]),
                    labels[step.slots],
                    scale[step.slots],
                )
                for term in adjustments:
                    shape = (step.last - step.first, components, self.n_trained)
                    term.add_to(
                        change.view(shape), w.view(shape), slice(step.first, step.last), EVERY
                    )
                number = before[part, None] + (step.number + 1)
                self.rule.step(w, change, tuple(m[part] for m in flat), rate, number, steps.mask)
        return (
            torch.empty_like(theta).index_copy_(0, order, theta),
            tuple(torch.empty_like(moment).index_copy_(0, order, moment) for moment in moving),
        )

    def _gradient(
        self,
        w: Float[Tensor, "rows size"],
        x: Float[Tensor, "samples *inputs"],
        y: Shaped[Tensor, "samples *targets"],
        scale: Float[Tensor, " samples"],
    ) -> Float[Tensor, "rows size"]:
        """The gradient of the rows ``w`` on one minibatch each."""
        shape = (len(w), self.width)
        inputs, targets = x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:])
        return never_alone(self.model.gradient, w, inputs, targets, scale.view(shape))

    def _inputs(self, x: Tensor, samples: Tensor) -> Tensor:
        """``x[samples]`` in memory that is used again, so that it stays in the cache."""
        if self._buffer is None or len(self._buffer) < len(samples):
            self._buffer = x.new_empty(len(samples), *x.shape[1:])
        return torch.index_select(x, 0, samples, out=self._buffer[: len(samples)])

    def _plan(self, clients: Clients, work: Work, components: int, dtype: torch.dtype) -> Plan:
        """The plan of these clients and this work; the last few are kept."""
        key = (clients.rows.tobytes() + work.steps.tobytes(), components)
        if key not in self._plans:
            if len(self._plans) >= 4:
                self._plans.clear()
            numbers = math.prod(clients.shards.train.x.shape[1:])
            client_bytes = components * self.width * numbers * dtype.itemsize
            block = max(1, self.block_bytes // max(1, client_bytes))
            self._plans[key] = plan(
                work, self.options.batch_size, self.width, components, block, dtype, self.device
            )
        return self._plans[key]

    def _rates(self, round: int, epochs_done: np.ndarray, epochs: int) -> np.ndarray:
        """Learning rates, float64 (clients, epochs of this round)."""
        schedule = SCHEDULES[self.options.lr_schedule]
        if self.options.lr_clock == "round":
            rate = self.options.lr * schedule(round - 1, self.horizon)
            return np.full((len(epochs_done), epochs), rate)
        rates = [
            [schedule(int(done) + epoch, self.horizon) for epoch in range(epochs)]
            for done in epochs_done
        ]
        return self.options.lr * np.array(rates).reshape(len(epochs_done), epochs)
