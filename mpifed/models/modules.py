"""Torch modules as models: what training does to them, how they are drawn, bound and stepped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils.stateless import _reparametrize_module

from mpifed.errors import InputError, note
from mpifed.models.base import Gradient, Model, Stepping
from mpifed.models.layout import RowLayout, Span, layout_of
from mpifed.models.loss import Loss
from mpifed.models.losses import CROSS_ENTROPY

# Samples in the batch that is tried.
BATCH = 2

# Parameters up to which dense networks are stacked; see ``scripts/bench ways_of_stepping``.
SMALL = 1 << 15

# Layers whose stacked products are about as fast as single ones.
DENSE = (nn.Linear, nn.LayerNorm)

# Samples scored together by networks with convolutions or recurrences.
SCORED = 64


def seed_torch(seed: int) -> None:
    """Seed torch's global generators."""
    # torch.manual_seed formats the stack for each kind of device that is absent: a millisecond.
    gpus = torch.cuda.is_available()
    (torch.manual_seed if gpus else torch.default_generator.manual_seed)(seed)


def find_changes(
    module: nn.Module,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> tuple[frozenset[str], bool]:
    """Return which buffers a batch changes, and whether outputs depend on the sample alone."""
    module.train()
    x = torch.ones(BATCH, *input_shape, dtype=dtype)
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        seed_torch(0)
        state = torch.get_rng_state()
        outputs = outputs_of(module, x)
        random = not torch.equal(state, torch.get_rng_state())
        after = dict(module.named_buffers())
        changing = {name for name in before if not torch.equal(after[name], before[name])}
        seed_torch(0)
        x[1:] = 0
        _restore(module, before)
        others = outputs_of(module, x)
        _restore(module, before)
    if tuple(outputs.shape) != (BATCH, *output_shape) or not outputs.is_floating_point():
        raise InputError(
            f"model: the module gives outputs of shape {tuple(outputs.shape)} and type "
            f"{outputs.dtype} for a batch of {BATCH} samples; the data need floating-point "
            f"{(BATCH, *output_shape)}: one output for two labels, else one for each label, tag "
            "or target"
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise InputError(
            "model: the module has no parameters that are trained (requires_grad); layers in lists "
            "need nn.ModuleList"
        )
    norms = [(name, part) for name, part in module.named_modules() if isinstance(part, _NormBase)]
    for name, part in norms:
        changing.update(
            f"{name}.{buffer}".lstrip(".") for buffer, _ in part.named_buffers(recurse=False)
        )
    # Another kernel may round differently; what is drawn or remembered differs by more.
    alone = torch.allclose(others[0], outputs[0], rtol=1e-3, atol=1e-5, equal_nan=True)
    mixes = not alone or any(isinstance(part, _BatchNorm) for _, part in norms)
    return frozenset(changing), not (random or changing or mixes)


def _restore(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """Return a module's outputs for a batch; an error of the module has a note of its shape."""
    try:
        # The module may change its inputs, which are tried again.
        outputs = module(x.clone())
    except Exception as error:
        note(error, f"a batch of shape {tuple(x.shape)}, shaped as the data")
        raise
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"model: the module returns {type(outputs).__name__}; it must return one tensor"
        )
    return outputs


@contextmanager
def running_statistics(module: nn.Module) -> Iterator[None]:
    """Let normalisation layers that get a single value per channel use their running statistics."""

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        layer.training = inputs[0].numel() > inputs[0].shape[1]

    layers = [
        part
        for part in module.modules()
        if isinstance(part, _NormBase) and part.training and part.track_running_stats
    ]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        yield
    finally:
        for layer, hook in zip(layers, hooks, strict=True):
            layer.training = True
            hook.remove()


Made = TypeVar("Made")
# A user's function, with its arguments given.
Build = Callable[[], nn.Module]


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """Return ``make()`` with torch's global generator seeded; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        return make()


def with_shapes(module: object, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the module with the shapes of its lazy layers found."""
    if not isinstance(module, nn.Module):
        raise InputError(f"model: the function returned {type(module).__name__}, not a module")
    lazy = [tensor for tensor in (*module.parameters(), *module.buffers()) if is_lazy(tensor)]
    if lazy:
        module.eval()
        with torch.no_grad():
            outputs_of(module, torch.ones(BATCH, *input_shape, dtype=lazy[0].dtype))
    return module


@dataclass(frozen=True)
class Builder:
    """Builds modules of one kind after the first."""

    build: Build
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int

    def drawn(self, seed: int) -> nn.Module:
        """Return a module drawn from ``seed``; its warnings were shown with the first module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fresh = seeded(lambda: with_shapes(self.build(), self.input_shape), seed)
        return fresh.to(self.dtype)


def validate_unshared(fresh: nn.Module, first: nn.Module) -> None:
    """Check that two modules of one function share no parameters."""
    trained = {id(parameter) for parameter in first.parameters() if parameter.requires_grad}
    if any(id(parameter) in trained for parameter in fresh.parameters()):
        raise InputError(
            "model: two modules that the function returned share a layer or parameter; every model "
            "of a run is drawn anew, so make all of it within the function"
        )


def is_dense(network: nn.Module) -> bool:
    """Return whether all parameters of a network belong to layers of ``DENSE``."""
    owners = (m for m in network.modules() if any(True for _ in m.parameters(recurse=False)))
    return all(isinstance(owner, DENSE) for owner in owners)


def can_be_stacked(logits: Callable[[Tensor, Tensor], Tensor], rows: Tensor, x: Tensor) -> bool:
    """Return whether rows can be computed at once; vmap refuses branches and changes in place."""
    leaf = rows.detach().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of vmap, about layers that it computes slowly
            torch.autograd.grad(logits(leaf, x).sum(), leaf)
    except Exception:
        return False
    return True


@dataclass(frozen=True)
class ModuleModel(Model):
    """A ``torch.nn.Module`` as a ``Model``; see ``module_model``."""

    builder: Builder
    network: nn.Module
    layout: RowLayout
    deterministic: bool = True
    loss: Loss = CROSS_ENTROPY
    autocast: torch.dtype | None = None

    @property
    def n_parameters(self) -> int:
        """Numbers in a row: those of all trained parameters, then those of all buffers."""
        return self.layout.size

    @property
    def n_frozen(self) -> int:
        """Numbers of the network's parameters that are not trained, and in no row."""
        return sum(p.numel() for p in self.network.parameters() if not p.requires_grad)

    @property
    def n_tokens(self) -> int | None:
        """What inputs are below as whole numbers; None where they are no tokens."""
        return getattr(self.network, "n_tokens", None)

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
        validate_unshared(fresh, self.network)
        return self.layout.row(fresh)

    def spans(self) -> tuple[Span, ...]:
        """Return the spans of parameters and running statistics, named as in the state dict."""
        return self.layout.spans

    def _network_for(self, row: Tensor, training: bool) -> nn.Module:
        """The network in a mode, what is not in rows with the type and device of ``row``."""
        if any(p.dtype != row.dtype or p.device != row.device for p in self.network.parameters()):
            self.network.to(row.device, row.dtype)
        return self.network.train(training)

    @contextmanager
    def training(
        self, parameters: Tensor, gradient: Tensor, mask: Tensor | None = None
    ) -> Iterator[Gradient]:
        kind, cast = parameters.device.type, self.autocast
        network = self._network_for(parameters, training=True)
        gradient.zero_()
        # Views share a count of changes, by which a second layer's statistics would seem to spoil
        # the first one's gradient; ``data`` does not.
        tensors = {name: view.data for name, view in self.layout.views(parameters).items()}
        leaves, written = [], []
        for span in self.layout.parameters:
            # All require gradients, also those without, since some layers choose kernels by it.
            leaf = tensors[span.name].requires_grad_()
            leaf.grad = span.view(gradient)
            if mask is None or mask[span.begin : span.end].any():
                leaves.append(leaf)
                written.append(leaf.grad)

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
            if leaves:
                total.backward(inputs=leaves)

        # Once for all steps, which ``torch.func.functional_call`` would do at every one.
        with _reparametrize_module(network, tensors, tie_weights=True):
            yield compute
        for span in self.layout.buffers:
            # A module may put other tensors in place of its buffers.
            span.view(parameters).copy_(tensors[span.name].detach())

    def shared_logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        network, outputs = self._network_for(parameters, training=False), []
        x = self.layout.formatted(x)
        for row in parameters:
            # Copies of what a layer may change in place: inputs, which are the data, and buffers.
            views = self.layout.views(row)
            views |= {p.name: p.view(row).clone() for p in self.layout.buffers}
            with torch.no_grad():
                outputs.append(torch.func.functional_call(network, views, (x.clone(),)))
        return torch.stack(outputs)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        def one(row: Tensor, x: Tensor) -> Tensor:
            return torch.func.functional_call(network, self.layout.views(row), (x.clone(),))

        network = self._network_for(parameters, training=True)
        return torch.func.vmap(one)(parameters, x)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = parameters.detach().requires_grad_()
            total = (self.loss.samples(self.logits(leaf, x), y) * weights).sum()
            return torch.autograd.grad(total, leaf)[0]

    def module(self, parameters: Tensor) -> nn.Module:
        network = self.builder.drawn(self.builder.seed).to(parameters.device, parameters.dtype)
        return self.layout.fill(network, parameters).eval()


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
) -> ModuleModel:
    """Turn a function that builds a module into a model."""
    if network is None:
        network = seeded(lambda: with_shapes(build(), input_shape), seed)
    changing, deterministic = find_changes(network.to(dtype), input_shape, output_shape, dtype)
    network_loss = getattr(network, "loss", None)
    return ModuleModel(
        Builder(build, input_shape, dtype, seed),
        network,
        layout_of(network, changing),
        deterministic,
        network_loss if isinstance(network_loss, Loss) else loss,
        autocast,
    )
