"""Update rules of local steps: SGD with momentum, Adam, AdamW and Muon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mpifed import state
from mpifed.errors import InputError
from mpifed.local.options import LocalOptions
from mpifed.models.base import Model
from mpifed.models.heads import last_layer


@dataclass(frozen=True)
class Mask:
    """A mask of the parameters of a row."""

    numbers: Tensor

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """The runs of trained numbers."""
        padded = np.pad(self.numbers.cpu().numpy(), 1).astype(np.int8)
        edges = np.flatnonzero(np.diff(padded))
        return tuple(slice(int(a), int(b)) for a, b in edges.reshape(-1, 2))


Rate = Tensor | float


@dataclass(frozen=True)
class OptimizerState:
    """What local steps keep on a client between rounds; one class for each kind."""


@dataclass(frozen=True)
class SgdState(OptimizerState):
    """What SGD keeps."""

    momentum: Tensor = state.client()
    epochs: Tensor = state.client()


@dataclass(frozen=True)
class AdamState(OptimizerState):
    """What Adam keeps."""

    first: Tensor = state.client()
    second: Tensor = state.client()
    steps: Tensor = state.client()
    epochs: Tensor = state.client()


@dataclass(frozen=True)
class WithBuffers(OptimizerState):
    """What a rule keeps, and running statistics that stay with the client."""

    rule: SgdState | AdamState = state.inline()
    buffers: Tensor = state.client()


RuleState = SgdState | AdamState


def without_buffers(state: OptimizerState) -> RuleState:
    """Return what the update rule keeps, without buffers."""
    rule_state = state.rule if isinstance(state, WithBuffers) else state
    assert isinstance(rule_state, RuleState)
    return rule_state


Moments = tuple[Tensor, ...]


def unwritten(like: Tensor, *shape: int) -> Tensor:
    """Return zeros that take no memory on a CPU before something is written to them."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    # torch writes its zeros; numpy asks the system for pages, which are zero until written to.
    return torch.from_numpy(np.zeros(shape, like.numpy().dtype))


class Rule(ABC):
    """An update rule of the parameters of ``model``; ``options`` is the section ``local``."""

    # Whether a step depends on its number.
    counts_steps: bool = True

    # Whether a step is the gradient times the learning rate, and keeps nothing.
    plain: bool = False

    def __init__(self, options: LocalOptions, model: Model) -> None:
        self.options = options

    @abstractmethod
    def init(self, clients: int, components: int, size: int, zeros: Tensor) -> RuleState:
        """Return the state before the first step; ``zeros`` has the type and device of models."""

    def moments(self, state: RuleState) -> Moments:
        """Return the tensors that steps change in place, (clients, components, P) each."""
        return (state.momentum,) if isinstance(state, SgdState) else (state.first, state.second)

    def steps(self, state: RuleState) -> np.ndarray:
        """Return the number of steps before this round, int64 (clients,), where it matters."""
        if isinstance(state, SgdState) or self.options.reset_momentum:
            return np.zeros(len(state.epochs), np.int64)
        return state.steps.numpy()

    def after(
        self, state: RuleState, moments: Moments, steps: np.ndarray, epochs: np.ndarray
    ) -> RuleState:
        """Return the state with other moments, after the steps and epochs of a round."""
        begun = state.epochs + torch.from_numpy(epochs)
        if isinstance(state, SgdState):
            return SgdState(moments[0], begun)
        done = torch.from_numpy(self.steps(state) + steps)
        return AdamState(moments[0], moments[1], done, begun)

    @abstractmethod
    def step(self, w: Tensor, change: Tensor, moments: Moments, rate: Rate, number: Rate) -> None:
        """Take one step in place."""

    def masked_step(
        self,
        w: Tensor,
        change: Tensor,
        moments: Moments,
        rate: Rate,
        number: Rate,
        mask: Mask | None,
    ) -> None:
        """Take one step of some coordinates; the others, and their moments, stay as they are."""
        if mask is None:
            self.step(w, change, moments, rate, number)
            return
        for span in mask.spans:
            # Without momentum, SGD's has no coordinates.
            parts = tuple(m[..., span] if m.shape[-1] else m for m in moments)
            self.step(w[..., span], change[..., span], parts, rate, number)


def decay(change: Tensor, w: Tensor, strength: float, rate: Rate) -> None:
    """Add ``strength * w`` to ``change`` in place."""
    if strength:
        if isinstance(rate, float):
            # One rounding, as in torch.optim; rows have two, as they always had.
            change.add_(w, alpha=strength)
        else:
            change += strength * w


class SgdRule(Rule):
    """v <- momentum v + g + weight_decay theta;  theta <- theta - lr v."""

    counts_steps = False

    def __init__(self, options: LocalOptions, model: Model) -> None:
        super().__init__(options, model)
        self.plain = not (options.momentum or options.weight_decay)

    def init(self, clients: int, components: int, size: int, zeros: Tensor) -> SgdState:
        width = size if self.options.momentum else 0
        momentum = unwritten(zeros, clients, components, width)
        return SgdState(momentum, torch.zeros(clients, dtype=torch.int64))

    def step(self, w: Tensor, change: Tensor, moments: Moments, rate: Rate, number: Rate) -> None:
        self.move(w, w, change, moments, rate)

    def move(self, start: Tensor, w: Tensor, change: Tensor, moments: Moments, rate: Rate) -> None:
        """Step from ``start``, and write where that leads into ``w``."""
        (v,) = moments
        decay(change, start, self.options.weight_decay, rate)
        if self.options.momentum:
            v *= self.options.momentum
            v += change
        if isinstance(rate, float):
            torch.add(start, v if self.options.momentum else change, alpha=-rate, out=w)
        else:
            torch.sub(start, rate * v if self.options.momentum else change.mul_(rate), out=w)


def step(model: Model, rates: Tensor, w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return rows after a step of plain gradient descent, which a model takes in place."""
    model.descend(w, x, y, weights, rates)
    return w


def adam_step(
    w: Tensor,
    gradient: Tensor,
    moments: Moments,
    decays: tuple[float, float],
    size: Rate,
    scale: Rate,
    epsilon: float,
) -> None:
    """Take a step of Adam (Kingma and Ba 2015, section 2, last paragraph) in place.

    With the decays beta1 and beta2 of the moments m and v, and alpha the learning rate, step t has

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2
        w <- w - size m / (v^(1/2) / scale + epsilon)
        size = alpha / (1 - beta1^t),    scale = (1 - beta2^t)^(1/2)

    Parameters
    ----------
    w, gradient : Tensor
        The parameters, changed in place, and their gradient g.
    moments : tuple of Tensor
        m and v, changed in place.
    decays : tuple of float
        beta1 and beta2.
    size, scale : Tensor or float
        As above; tensors have a number for each row.
    epsilon : float
        What is added to the root.
    """
    (first, second), (beta1, beta2) = moments, decays
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (second.sqrt() / scale).add_(epsilon)
    if isinstance(size, float):
        w.addcdiv_(first, root, value=-size)
    else:
        w -= size * first / root


class AdamRule(Rule):
    """Adam (Kingma and Ba 2015, Algorithm 1); AdamW decays weights apart from the gradient."""

    def init(self, clients: int, components: int, size: int, zeros: Tensor) -> AdamState:
        first, second = (unwritten(zeros, clients, components, size) for _ in range(2))
        steps, epochs = (torch.zeros(clients, dtype=torch.int64) for _ in range(2))
        return AdamState(first, second, steps, epochs)

    def step(self, w: Tensor, change: Tensor, moments: Moments, rate: Rate, number: Rate) -> None:
        options = self.options
        if options.optimizer == "adam":
            decay(change, w, options.weight_decay, rate)
        elif options.weight_decay:
            w *= 1 - rate * options.weight_decay
        decays = options.beta1, options.beta2
        size = rate / (1 - options.beta1**number)
        scale = (1 - options.beta2**number) ** 0.5
        adam_step(w, change, moments, decays, size, scale, options.epsilon)


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return nearly U V' of a matrix U S V', by the Newton-Schulz iteration of Jordan et al. 2024.

    Singular values above 0.01 ||S|| are between 0.68 and 1.14 after its five steps.
    """
    x = matrix / (matrix.norm() + 1e-7)
    if len(x) > x.shape[1]:
        x = x.mT
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if x.shape == matrix.shape else x.mT


class MuonRule(AdamRule):
    """Muon on hidden matrices, AdamW on all else (Jordan et al. 2024; MuLoCo, Therien et al. 2025).

    For a matrix of r rows and c columns, with beta1 and the learning rate of AdamW,

        m <- beta1 m + (1 - beta1) g
        theta <- (1 - lr weight_decay) theta
                 - lr max(1, r / c)^(1/2) orthogonalised((1 - beta1) g + beta1 m)

    as in Jordan's code; configurations of MuLoCo's leave out the look-ahead. A kernel of a
    convolution is a matrix with a row for each output. Not hidden are the last layer and what has
    ``embed`` in its name. Products are in the type of the model, not in bfloat16.
    """

    def __init__(self, options: LocalOptions, model: Model) -> None:
        super().__init__(options, model)
        others = torch.ones(model.n_parameters - model.n_buffers, dtype=torch.bool)
        last = model.mask([last_layer(model)])
        self.matrices = [
            span
            for span in model.spans()
            if len(span.shape) > 1
            and span.end <= len(others)
            and not last[span.begin]
            and "embed" not in span.name
        ]
        if not self.matrices:
            raise InputError(
                "local.optimizer is 'muon', but the model has no matrix before its last layer; "
                "allowed: adamw, or a model with hidden layers, such as mlp"
            )
        for span in self.matrices:
            others[span.begin : span.end] = False
        self.others = Mask(others)

    def masked_step(
        self,
        w: Tensor,
        change: Tensor,
        moments: Moments,
        rate: Rate,
        number: Rate,
        mask: Mask | None,
    ) -> None:
        others, trained = self.others, self.matrices
        if mask is not None:
            others = Mask(mask.numbers.cpu() & others.numbers)
            trained = [span for span in trained if mask.numbers[span.begin]]
        super().masked_step(w, change, moments, rate, number, others)
        # One matrix after the other, so that products do not depend on who shares the block.
        tensors = [torch.atleast_2d(each) for each in (w, change, moments[0])]
        for row in range(len(tensors[0])):
            lr = rate if isinstance(rate, float) else rate[row]
            for span in trained:
                part, shape = slice(span.begin, span.end), (span.shape[0], -1)
                theta, gradient, first = (each[row, part].view(shape) for each in tensors)
                self._matrix_step(theta, gradient, first, lr)

    def _matrix_step(self, theta: Tensor, gradient: Tensor, first: Tensor, lr: Rate) -> None:
        options = self.options
        first.lerp_(gradient, 1 - options.beta1)
        if options.weight_decay:
            theta *= 1 - lr * options.weight_decay
        size = max(1.0, len(theta) / theta.shape[1]) ** 0.5
        theta -= lr * size * orthogonalised(gradient.lerp(first, options.beta1))
