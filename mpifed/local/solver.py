"""Local steps of a rank's clients (LocalSolver of Marfoq et al. 2021, Alg. 2 and 4).

Two ways of stepping:

* ``stacked``: rows (client, component) step together, padded to one width;
* ``one_by_one``: each client and component alone, at its true batch size.

Either way the result of a client is the same bit for bit whichever clients share its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Adjustment
from mpifed.local.invariance import LANES
from mpifed.local.minibatches import draw_orders, work_of
from mpifed.local.one_by_one import step_one_by_one
from mpifed.local.optimizers import RULES, AdamState, OptimizerState, SgdState, WithBuffers
from mpifed.local.options import LocalOptions
from mpifed.local.schedule import SCHEDULES
from mpifed.local.stacked import BLOCK_BYTES, Stacked
from mpifed.local.steps import Steps
from mpifed.memory import check_memory
from mpifed.models.base import Model

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["LocalSGD", "OptimizerState"]

SLOT_BYTES = 12
"""Least number of bytes of a sample in a minibatch: its place, int64, and its weight, float32."""


def _check_plan(options: LocalOptions, longest: int, width: int, epochs_field: str) -> None:
    """Refuse more local steps than memory can hold minibatches of one client and model."""
    steps = options.steps
    what = f"local.steps is {steps}, which"
    if steps is None:
        steps = -(-longest // options.batch_size) * options.epochs
        what = f"{epochs_field} is {options.epochs}, which with {longest} samples of a client"
    check_memory(float(SLOT_BYTES) * steps * width, what)


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
        self.rule = RULES[options.optimizer](options)
        self.n_trained = model.n_parameters - model.n_buffers
        chosen = model.stepping if options.stepping == "auto" else options.stepping
        block_bytes = BLOCK_BYTES if chosen == "stacked" else 0
        self.stacked: Stacked | None = None
        if chosen == "stacked" or model.same_bits:
            self.stacked = Stacked(
                model, self.rule, options.batch_size, self.width, block_bytes, device
            )

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
        if self.stacked is not None:
            trained, moments = self.stacked(start, moments, clients, steps)
        else:
            noise = draws.client_keys(f"{self.purpose} noise", clients.ids)
            trained, moments = step_one_by_one(
                self.model, self.rule, options.batch_size, start, moments, noise, steps
            )
        after = self.rule.after(kept, moments, work.steps, work.epochs)
        if isinstance(optimizer, WithBuffers):
            return trained, WithBuffers(after, trained[..., self.n_trained :].clone())
        return trained, after

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
