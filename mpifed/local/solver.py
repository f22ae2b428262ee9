"""Local SGD over all clients of a rank at once (LocalSolver of Marfoq et al. 2021, Alg. 2 and 4).

Rows (client, component) are stacked and stepped together, block by block; a block is small enough
for its minibatches to stay in the processor's cache. Minibatches are padded to a width that all
ranks share, whatever the block, and a client's arithmetic does not depend on the other clients of
its block: the result is bit for bit the same for any blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mpifed import state
from mpifed.federation.clients import Clients, Draws
from mpifed.local.invariance import LANES, never_alone
from mpifed.local.minibatches import Plan, Work, draw_orders, plan, work_of
from mpifed.local.options import LocalOptions
from mpifed.local.schedule import SCHEDULES
from mpifed.memory import check_memory
from mpifed.models.base import Model
from mpifed.supervision import heartbeat

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

BLOCK_BYTES = 3 << 20
"""Bytes of inputs in one step of a block; near the size of a core's cache is fastest."""


SLOT_BYTES = 12
"""Least number of bytes of a sample in a minibatch: its place, int64, and its weight, float32."""


@dataclass(frozen=True)
class OptimizerState:
    """What SGD keeps on a client between rounds.

    Attributes
    ----------
    momentum : Tensor
        v, (clients, components, P); (clients, components, 0) without momentum.
    epochs : Tensor
        Local epochs done so far, int64 (clients,).
    """

    momentum: Tensor = state.client()
    epochs: Tensor = state.client()


def _check_plan(options: LocalOptions, longest: int, width: int, epochs_field: str) -> None:
    """Refuse more local steps than memory can hold minibatches of one client and model."""
    steps = options.steps
    what = f"local.steps is {steps}, which"
    if steps is None:
        steps = -(-longest // options.batch_size) * options.epochs
        what = f"{epochs_field} is {options.epochs}, which with {longest} samples of a client"
    check_memory(float(SLOT_BYTES) * steps * width, what)


class LocalSGD:
    """SGD with momentum and weight decay on each client's samples.

    One step on row (t, m) with minibatch I, where q = 1 without sample weights:
        g = (1 / |I|) sum_{i in I} q_i(m) grad l(theta; s_i) + weight_decay theta
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
        _check_plan(options, longest, self.width, epochs_field)
        self.block_bytes = BLOCK_BYTES
        self._plans: dict[tuple[bytes, int], Plan] = {}
        self._buffer: Tensor | None = None

    def init(self, n_clients: int, components: int, dtype: torch.dtype) -> OptimizerState:
        """Return zero buffers.

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
        size = self.model.n_parameters if self.options.momentum else 0
        return OptimizerState(
            torch.zeros(n_clients, components, size, dtype=dtype, device=self.device),
            torch.zeros(n_clients, dtype=torch.int64),
        )

    def __call__(
        self,
        start: Float[Tensor, "clients components size"],
        optimizer: OptimizerState,
        clients: Clients,
        draws: Draws,
        weights: Float[Tensor, "components samples"] | None = None,
        step_scale: Float[np.ndarray, " clients"] | None = None,
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
        components = start.shape[1]
        the_plan = self._plan(clients, work, components, start.dtype)
        keys = draws.client_keys(self.purpose, clients.ids)
        orders = draw_orders(keys, clients.starts, work, components, options.sampling)
        samples = orders.to(self.device).index_select(0, the_plan.place)
        scale = the_plan.scale
        if weights is not None:
            rows = samples.view(-1, components, self.width)
            offsets = torch.arange(components, device=self.device) * weights.shape[1]
            entries = (rows + offsets[:, None]).view(-1)
            scale = scale * weights.reshape(-1).index_select(0, entries)
        labels = clients.shards.train.y.index_select(0, samples)
        order = torch.from_numpy(the_plan.order).to(self.device)
        theta = start[order]
        momentum = optimizer.momentum[order]
        if options.reset_momentum:
            momentum = torch.zeros_like(momentum)
        rates = self._rates(draws.round, optimizer.epochs.numpy(), int(work.epochs.max(initial=0)))
        if step_scale is not None:
            rates = rates * step_scale[:, None]
        rates = np.repeat(rates[the_plan.order], components, axis=0)
        rate_of = torch.from_numpy(rates).to(theta)
        per_epoch = np.repeat(work.per_epoch[the_plan.order], components)
        w_rows, v_rows = theta.flatten(0, 1), momentum.flatten(0, 1)
        with torch.no_grad():
            for step in the_plan.steps:
                heartbeat.step()
                part = slice(step.first * components, step.last * components)
                rate = rate_of[part]
                if rate.shape[1] > 1:
                    epoch = torch.from_numpy(step.number // per_epoch[part]).to(self.device)
                    rate = rate.gather(1, epoch[:, None])
                self._step(
                    w_rows[part],
                    v_rows[part],
                    rate,
                    self._inputs(clients.shards.train.x, samples[step.slots]),
                    labels[step.slots],
                    scale[step.slots],
                )
        epochs = optimizer.epochs + torch.from_numpy(work.epochs)
        return (
            torch.empty_like(theta).index_copy_(0, order, theta),
            OptimizerState(torch.empty_like(momentum).index_copy_(0, order, momentum), epochs),
        )

    def _step(
        self,
        w: Float[Tensor, "rows size"],
        v: Float[Tensor, "rows buffer"],
        rate: Float[Tensor, "rows 1"],
        x: Float[Tensor, "samples *inputs"],
        y: Shaped[Tensor, "samples *targets"],
        scale: Float[Tensor, " samples"],
    ) -> None:
        """One step of SGD on the rows ``w`` with buffers ``v`` and one minibatch each, in place."""
        options, shape = self.options, (len(w), self.width)
        inputs, targets = x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:])
        change = never_alone(self.model.gradient, w, inputs, targets, scale.view(shape))
        if options.weight_decay:
            change += options.weight_decay * w
        if options.momentum:
            v *= options.momentum
            v += change
            change = v
        w -= rate * change

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
