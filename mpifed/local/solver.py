"""Local steps of a rank's clients (LocalSolver of Marfoq et al. 2021, Alg. 2 and 4).

Two ways of stepping:

* ``stacked``: rows (client, component) step together, padded to one width;
* ``one_by_one``: each client and component alone, at its true batch size.

Either way the result of a client is the same bit for bit whichever clients share its rank.

Learning-rate schedules of the FedEM experiments, as factors of the base rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.adjustments import Adjustment, Coupling, Steps, sequences
from mpifed.local.invariance import LANES
from mpifed.local.minibatches import Work, check_plan, draw_orders, work_of
from mpifed.local.one_by_one import step_one_by_one
from mpifed.local.optimizers import RULES, Mask, OptimizerState, WithBuffers, without_buffers
from mpifed.local.options import LocalOptions
from mpifed.local.stacked import BLOCK_BYTES, GPU_BLOCK_BYTES, Stacked
from mpifed.models.base import Model

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


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


__all__ = ["LocalSGD", "OptimizerState"]


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
    ) -> LocalSGD:
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
        return LocalSGD(model or self.model, changed, *shared, purpose, epochs_field)

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
        mask: Bool[Tensor, " size"] | None = None,
        coupling: Coupling | None = None,
        steps: int | None = None,
    ) -> tuple[Float[Tensor, "clients components size"], OptimizerState]:
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
        step_scale: Float[np.ndarray, " clients"] | None = None,
        steps: int | None = None,
    ) -> Float[Tensor, " clients"]:
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
