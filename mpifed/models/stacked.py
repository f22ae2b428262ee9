"""Torch modules as models of stacked parameters.

``stack(module)`` turns a ``torch.nn.Module`` into a ``Model``: its parameters become one flat row,
and ``torch.func.vmap`` runs R rows with R batches at once. Networks of users,
``model.name=package.module:build``, are trained this way; ``linear`` and ``mlp`` have their own
formulas instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.losses import CROSS_ENTROPY, Loss

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


def autograd_gradient(
    logits: Callable[[Tensor, Tensor], Tensor],
    loss: Loss,
    parameters: Float[Tensor, "rows size"],
    x: Float[Tensor, "rows batch *inputs"],
    y: Shaped[Tensor, "rows batch *targets"],
    weights: Float[Tensor, "rows batch"],
) -> Float[Tensor, "rows size"]:
    """``Model.gradient`` by automatic differentiation of ``logits``.

    Parameters
    ----------
    logits : callable
        ``Model.logits``.
    loss : Loss
        Loss of each sample.
    parameters, x, y, weights : Tensor
        As for ``Model.gradient``.

    Returns
    -------
    Tensor
        (R, n_parameters).
    """
    with torch.enable_grad():
        leaf = parameters.detach().requires_grad_()
        total = (loss.samples(logits(leaf, x), y) * weights).sum()
        return torch.autograd.grad(total, leaf)[0]


@dataclass(frozen=True)
class StackedModule(Model):
    """A ``torch.nn.Module`` without buffers, as a ``Model``; see ``stack``.

    Attributes
    ----------
    module : torch.nn.Module
        The network, for one copy and one batch.
    shapes : dict of str to torch.Size
        Shapes of its parameters by name, in the order of the flat row.
    loss : Loss
        Training loss.
    """

    module: torch.nn.Module
    shapes: dict[str, torch.Size]
    loss: Loss = CROSS_ENTROPY

    @property
    def n_parameters(self) -> int:
        """Number of entries of all parameters of the module."""
        return sum(shape.numel() for shape in self.shapes.values())

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Draw by the ``reset_parameters`` of the module's parts, from a torch seed drawn here.

        Parameters
        ----------
        generator : numpy.random.Generator
            Draws the seed. Torch's global state is restored afterwards.

        Returns
        -------
        numpy.ndarray
            float64 (n_parameters,).
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator.integers(2**63)))
            for part in self.module.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        values = [p.detach().double().flatten() for p in self.module.parameters()]
        return torch.cat(values).numpy()

    def _one(self, parameters: Tensor, x: Tensor) -> Tensor:
        parts = parameters.split([shape.numel() for shape in self.shapes.values()])
        named = {
            name: part.view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        return torch.func.functional_call(self.module, named, (x,))

    def logits(
        self, parameters: Float[Tensor, "rows size"], x: Float[Tensor, "rows batch *inputs"]
    ) -> Float[Tensor, "rows batch outputs"]:
        return torch.func.vmap(self._one)(parameters, x)

    def shared_logits(
        self, parameters: Float[Tensor, "models size"], x: Float[Tensor, "batch *inputs"]
    ) -> Float[Tensor, "models batch outputs"]:
        return torch.func.vmap(self._one, in_dims=(0, None))(parameters, x)

    def gradient(
        self,
        parameters: Float[Tensor, "rows size"],
        x: Float[Tensor, "rows batch *inputs"],
        y: Shaped[Tensor, "rows batch *targets"],
        weights: Float[Tensor, "rows batch"],
    ) -> Float[Tensor, "rows size"]:
        return autograd_gradient(self.logits, self.loss, parameters, x, y, weights)


def stack(module: torch.nn.Module, loss: Loss = CROSS_ENTROPY) -> StackedModule:
    """Turn a module into a model.

    Parameters
    ----------
    module : torch.nn.Module
        The network, which takes a batch (B, *input_shape).
    loss : Loss
        Training loss.

    Returns
    -------
    StackedModule

    Raises
    ------
    InputError
        Where the module has buffers (running statistics), which rows cannot hold.

    Examples
    --------
    >>> stack(torch.nn.Linear(3, 2)).n_parameters
    8
    """
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise InputError(
            f"model: a module with buffers ({', '.join(buffers[:3])}) cannot be stacked; use "
            "layers without running statistics, such as GroupNorm for BatchNorm"
        )
    return StackedModule(module, {name: p.shape for name, p in module.named_parameters()}, loss)
