"""Torch modules as models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from mpifed.models.base import Gradient, Model, Stepping
from mpifed.models.building import Build, Builder, complete, seeded
from mpifed.models.diagnosis import converted, remarks_on
from mpifed.models.layout import Binding, Layout, Place, binding_of, layout_of
from mpifed.models.losses import CROSS_ENTROPY, Loss
from mpifed.models.stacking import SMALL, can_be_stacked, is_dense
from mpifed.models.trial import BATCH, running_statistics, try_module

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

# Samples scored together by networks with convolutions or recurrences.
SCORED = 64


@dataclass(frozen=True)
class ModuleModel(Model):
    """A ``torch.nn.Module`` as a ``Model``; see ``module_model``."""

    builder: Builder
    network: nn.Module
    layout: Layout
    deterministic: bool = True
    loss: Loss = CROSS_ENTROPY
    autocast: torch.dtype | None = None
    remarks: tuple[str, ...] = ()

    @property
    def n_parameters(self) -> int:
        """Numbers in a row: those of all trained parameters, then those of all buffers."""
        return self.layout.size

    @property
    def n_buffers(self) -> int:  # type: ignore[override]
        """Numbers of running statistics."""
        return self.layout.size - self.layout.trained

    @property
    def steppings(self) -> tuple[Stepping, ...]:  # type: ignore[override]
        """Both, or ``one_by_one`` alone where rows cannot be stacked."""
        return ("stacked", "one_by_one") if self._is_stackable else ("one_by_one",)

    @property
    def stepping(self) -> Stepping:  # type: ignore[override]
        """``stacked`` for small networks of dense layers, else ``one_by_one``."""
        small = self.layout.trained <= SMALL and is_dense(self.network)
        return "stacked" if small and self._is_stackable else "one_by_one"

    @cached_property
    def _is_stackable(self) -> bool:
        """Whether two rows can be computed at once."""
        if not self.deterministic or self.autocast is not None:
            return False
        dtype = self.builder.dtype
        x = torch.ones(2, BATCH, *self.builder.input_shape, dtype=dtype)
        return can_be_stacked(self.logits, torch.zeros(2, self.n_parameters, dtype=dtype), x)

    @property
    def stepping_on_gpu(self) -> Stepping:  # type: ignore[override]
        """``stacked`` wherever rows can be."""
        return "stacked" if self._is_stackable else "one_by_one"

    same_bits: bool = False

    @property
    def scored_together(self) -> int:  # type: ignore[override]
        """Few samples where activations would leave the cache, else many."""
        return 1024 if is_dense(self.network) else SCORED

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Build the module anew, with torch's global generator seeded from ``generator``."""
        fresh = self.builder.drawn(int(generator.integers(2**63)))
        self.builder.refuse_unlike(fresh, self.network, self.layout)
        return self.layout.row(fresh)

    def places(self) -> tuple[Place, ...]:
        """Return the places of parameters and running statistics, named as in the state dict."""
        return self.layout.places

    @cached_property
    def _binding(self) -> Binding:
        return binding_of(self.layout, self.network)

    def _binding_for(self, row: Tensor) -> Binding:
        """The binding, after the network was given the type and device of ``row``."""
        found = self.__dict__["_binding"] = self._binding.converted(row)
        return found

    @contextmanager
    def _bound(self, row: Tensor, gradient: Tensor | None = None) -> Iterator[nn.Module]:
        """The network with its parameters and buffers in ``row``."""
        self._binding_for(row).bind(row, gradient)
        try:
            yield self.network
        finally:
            self._binding.release()

    @contextmanager
    def training(
        self, parameters: Tensor, gradient: Tensor, mask: Tensor | None = None
    ) -> Iterator[Gradient]:
        kind, cast = parameters.device.type, self.autocast
        gradient.zero_()
        with self._bound(parameters, gradient) as network:
            self._binding.train(True)
            leaves, written = self._binding.trained_by(mask, gradient)

            def compute(x: Tensor, y: Tensor, weights: Tensor) -> None:
                for part in written:
                    part.zero_()
                single = len(x) == 1 and self.n_buffers > 0
                with torch.enable_grad():
                    with (
                        torch.autocast(kind, cast) if cast else nullcontext(),
                        running_statistics(network) if single else nullcontext(),
                    ):
                        outputs = network(self.layout.formatted(x))
                    samples = self.loss.samples(outputs.to(parameters.dtype), y)
                    total = (samples * weights).sum()
                if written:
                    # ``requires_grad`` stays as it is, since some layers choose kernels by it.
                    total.backward(inputs=leaves)

            yield compute
            self._binding.collect(parameters)

    def shared_logits(
        self, parameters: Float[Tensor, "models size"], x: Float[Tensor, "batch *inputs"]
    ) -> Float[Tensor, "models batch *outputs"]:
        self._binding.train(False)
        x, outputs = self.layout.formatted(x), []
        for row in parameters:
            with torch.no_grad(), self._bound(row) as network:
                # A copy, since a layer may change its inputs in place, and these are the data.
                outputs.append(network(x.clone()))
        return torch.stack(outputs)

    def logits(
        self, parameters: Float[Tensor, "rows size"], x: Float[Tensor, "rows batch *inputs"]
    ) -> Float[Tensor, "rows batch *outputs"]:
        def one(row: Tensor, x: Tensor) -> Tensor:
            return torch.func.functional_call(self.network, self.layout.views(row), (x.clone(),))

        self._binding_for(parameters).train(True)
        return torch.func.vmap(one)(parameters, x)

    def gradient(
        self,
        parameters: Float[Tensor, "rows size"],
        x: Float[Tensor, "rows batch *inputs"],
        y: Shaped[Tensor, "rows batch *targets"],
        weights: Float[Tensor, "rows batch"],
    ) -> Float[Tensor, "rows size"]:
        with torch.enable_grad():
            leaf = parameters.detach().requires_grad_()
            total = (self.loss.samples(self.logits(leaf, x), y) * weights).sum()
            return torch.autograd.grad(total, leaf)[0]

    def module(self, parameters: Tensor) -> nn.Module:
        found = self.builder.copy().to(parameters.device, parameters.dtype)
        binding_of(self.layout, found).fill(parameters.detach())
        return found.eval()


def module_model(
    build: Build,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    loss: Loss = CROSS_ENTROPY,
    *,
    seed: int = 0,
    autocast: torch.dtype | None = None,
    dtype: torch.dtype = torch.float32,
    network: nn.Module | None = None,
    said: str = "model",
    where: str = "",
) -> ModuleModel:
    """Turn a function that builds a module into a model."""
    if network is None:
        network = seeded(lambda: complete(build(), input_shape), seed)
    unusual = converted(network, dtype)
    trial = try_module(network.to(dtype), input_shape, output_shape, dtype)
    own = getattr(network, "loss", None)
    chosen = own if isinstance(own, Loss) else loss
    return ModuleModel(
        Builder(build, input_shape, dtype, seed, said, where),
        network,
        layout_of(network, trial.changing),
        trial.deterministic,
        chosen,
        autocast,
        (*unusual, *remarks_on(network, chosen, trial.idle, trial.ending)),
    )
