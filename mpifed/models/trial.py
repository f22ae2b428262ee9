"""One batch through a user's torch module, before a run begins: what it needs and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import UninitializedParameter

from mpifed.errors import InputError, text_of

Made = TypeVar("Made")
Build = Callable[[], nn.Module]
"""A user's function, with its arguments given."""

BATCH = 2
"""Samples in the batch that is tried."""


@dataclass(frozen=True)
class Trial:
    """What a module does in training.

    Attributes
    ----------
    deterministic : bool
        Whether outputs depend on the parameters and the sample alone: not on random numbers, nor
        on the other samples of a batch.
    changing : frozenset of str
        Names of the buffers that it changes.
    """

    deterministic: bool
    changing: frozenset[str]


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """Return ``make()`` with torch's global generator seeded; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def complete(module: object, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the module with the shapes of its lazy layers found.

    Parameters
    ----------
    module : object
        What a user's function returned.
    input_shape : tuple of int
        Shape of one sample.

    Raises
    ------
    InputError
        Where it is not a torch module, or cannot take a batch.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"model: the function returned {type(module).__name__}, not a module")
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        module.eval()
        with torch.no_grad():
            _outputs(module, torch.ones(BATCH, *input_shape))
    return module


def try_module(
    module: nn.Module, input_shape: tuple[int, ...], output_shape: tuple[int, ...]
) -> Trial:
    """Train a module on one batch of ones.

    Parameters
    ----------
    module : torch.nn.Module
        Its buffers change.
    input_shape, output_shape : tuple of int
        Shapes of one sample and of its outputs.

    Returns
    -------
    Trial

    Raises
    ------
    InputError
        Where the module does not take such a batch, gives outputs of another shape, changes its
        inputs, or cannot be differentiated.
    """
    module.train()
    # Batch normalisation needs samples that differ.
    x = torch.ones(BATCH, *input_shape)
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        state = torch.get_rng_state()
        outputs = _outputs(module, x)
        random = not torch.equal(state, torch.get_rng_state())
    if not torch.equal(x, torch.ones_like(x)):
        raise InputError(
            "model: the module changes its inputs in place, which are the data; leave out "
            "inplace=True before the first layer with parameters, or begin with x = x.clone()"
        )
    _check_outputs(outputs, output_shape)
    _differentiate(module, outputs)
    changing = {
        name for name, tensor in module.named_buffers() if not torch.equal(tensor, before[name])
    }
    changing |= _statistics(module)
    of_batches = any(isinstance(part, _BatchNorm) for part in module.modules())
    return Trial(not (random or changing or of_batches), frozenset(changing))


def _statistics(module: nn.Module) -> set[str]:
    """Return the names of all running statistics of normalisation layers."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        if isinstance(part, _NormBase)
        for name, _ in part.named_buffers(recurse=False)
    }


def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    try:
        outputs = module(x)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"model: the module cannot take a batch of shape {tuple(x.shape)}, {len(x)} samples of "
            f"the data: {text_of(error)}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"model: the module returns {type(outputs).__name__}; it must return one tensor"
        )
    return outputs


def _check_outputs(outputs: Tensor, shape: tuple[int, ...]) -> None:
    wanted = (BATCH, *shape)
    if tuple(outputs.shape) != wanted or not outputs.is_floating_point():
        raise InputError(
            f"model: the module gives outputs of shape {tuple(outputs.shape)} and type "
            f"{outputs.dtype} for a batch of {BATCH} samples; the data need floating-point "
            f"{wanted}: one output for two labels, else one for each label, tag or target"
        )


def _differentiate(module: nn.Module, outputs: Tensor) -> None:
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        raise InputError("model: the module has no parameters that are trained (requires_grad)")
    try:
        found = torch.autograd.grad(outputs.sum(), trained, allow_unused=True)
    except Exception as error:
        raise InputError(
            f"model: the module cannot be differentiated: {text_of(error)}; leave out operations "
            "in place on tensors that other layers need"
        ) from error
    for gradient in found:
        if gradient is not None and gradient.layout != torch.strided:
            raise InputError(
                "model: a layer has sparse gradients, which cannot be added to a row; use "
                "Embedding with sparse=False"
            )


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
