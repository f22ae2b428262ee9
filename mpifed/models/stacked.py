"""Any torch module as a model of stacked parameters.

``stack(module)`` turns a ``torch.nn.Module`` into a ``Model``: its parameters become one flat row,
and ``torch.func.vmap`` runs R rows with R batches at once. This is how a user's own network,
``model.name=package.module:build``, is trained; ``linear`` and ``mlp`` are written out instead.
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
    """``Model.gradient`` by automatic differentiation of ``logits``."""
    with torch.enable_grad():
        leaf = parameters.detach().requires_grad_()
        total = (loss.samples(logits(leaf, x), y) * weights).sum()
        return torch.autograd.grad(total, leaf)[0]


@dataclass(frozen=True)
class StackedModule(Model):
    """A ``torch.nn.Module`` without buffers, as a ``Model``; see ``stack``."""

    module: torch.nn.Module
    shapes: dict[str, torch.Size]
    loss: Loss = CROSS_ENTROPY

    @property
    def n_parameters(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """What the module's own ``reset_parameters`` draw, from a torch seed drawn here."""
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
    """``module`` as a model; refuses buffers (running statistics), which rows cannot hold."""
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise InputError(
            f"model: a module with buffers ({', '.join(buffers[:3])}) cannot be stacked; use "
            "layers without running statistics, such as GroupNorm for BatchNorm"
        )
    return StackedModule(module, {name: p.shape for name, p in module.named_parameters()}, loss)
