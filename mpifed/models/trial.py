"""One batch through a user's torch module, before a run begins: what it needs and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from mpifed.errors import InputError, text_of
from mpifed.models.diagnosis import (
    Ending,
    cause_of_failure,
    changed_in_place,
    ending_of,
    listed,
    unregistered,
)
from topologies.inputs import raised_at

# Samples in the batch that is tried.
BATCH = 2


@dataclass(frozen=True)
class Trial:
    """What a module does in training."""

    deterministic: bool
    changing: frozenset[str]
    idle: tuple[str, ...] = ()
    ending: Ending | None = None


def try_module(
    module: nn.Module,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> Trial:
    """Train a module on one batch of ones."""
    module.train()
    x = torch.ones(BATCH, *input_shape, dtype=dtype)
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    shared, trained = _sharing(module), [p.requires_grad for p in module.parameters()]
    outputs, random = _seeded_outputs(module, x)
    _refuse_unshaped(module)
    if trained != [p.requires_grad for p in module.parameters()]:
        raise InputError(
            "model: the module changes requires_grad in forward; set it where the module is built"
        )
    _check_outputs(outputs, output_shape)
    ending, idle = ending_of(outputs), _differentiate(module, outputs)
    changing = _changed(module, before) | _statistics(module)
    for pair in shared:
        if changing.intersection(pair):
            raise InputError(
                f"model: buffers '{pair[0]}' and '{pair[1]}' share memory and change in training; "
                "register one of them, and compute the other in forward"
            )
    mixes = _mixes_samples(module, x, outputs.detach(), before)
    _try_other_batches(module, x, output_shape)
    _restore(module, before)
    return Trial(not (random or changing or mixes), frozenset(changing), idle, ending)


def _refuse_unshaped(module: nn.Module) -> None:
    """Refuse lazy layers that a batch has not reached."""
    names = [name for name, tensor in module.named_parameters() if is_lazy(tensor)]
    if names:
        raise InputError(
            f"model: {listed(names)} have no shape, since forward never calls this lazy layer; "
            "call it, or leave it out"
        )


def _restore(module: nn.Module, before: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])


def _changed(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Return the names of the buffers that are not as they were."""
    now = dict(module.named_buffers())
    for name in {*now, *before}:
        if name not in now or name not in before or now[name].shape != before[name].shape:
            raise InputError(
                f"model: buffer '{name}' comes, goes or changes its shape in forward; register it "
                "where the module is built, with the shape that it keeps"
            )
    return {name for name, tensor in now.items() if not torch.equal(tensor, before[name])}


def _seeded_outputs(module: nn.Module, x: Tensor) -> tuple[Tensor, bool]:
    """Return the outputs of a batch, and whether torch's global generator was drawn from."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        state = torch.get_rng_state()
        return outputs_of(module, x), not torch.equal(state, torch.get_rng_state())


def _mixes_samples(
    module: nn.Module, x: Tensor, outputs: Tensor, before: dict[str, Tensor]
) -> bool:
    """Return whether a sample's outputs depend on the other samples of its batch."""

    def again(x: Tensor) -> Tensor:
        _restore(module, before)
        return _seeded_outputs(module, x)[0].detach()

    # Another kernel may round differently; what is drawn or remembered differs by more.
    if not torch.allclose(again(x), outputs, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            "model: the module gives other outputs for the same batch the second time; draw random "
            "numbers from torch's global generator (nn.Dropout, torch.rand), which follows the "
            "run's seed, and keep what changes in buffers"
        )
    other = x.clone()
    other[1:] = 0
    if any(isinstance(part, _BatchNorm) for part in module.modules()):
        return True
    return not torch.allclose(again(other)[0], outputs[0], rtol=1e-3, atol=1e-5, equal_nan=True)


def _sharing(module: nn.Module) -> list[tuple[str, str]]:
    """Return pairs of names of buffers that are views of the same memory."""
    first: dict[int, str] = {}
    pairs = []
    for prefix, part in module.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            whole = f"{prefix}.{name}" if prefix else name
            known = first.setdefault(buffer.untyped_storage().data_ptr(), whole)
            if known != whole and buffer.numel():
                pairs.append((known, whole))
    return pairs


def _statistics(module: nn.Module) -> set[str]:
    """Return the names of all running statistics of normalisation layers."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        if isinstance(part, _NormBase)
        for name, _ in part.named_buffers(recurse=False)
    }


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """Return a module's outputs for a batch; raise ``InputError`` where there are none."""
    try:
        # The module may change its inputs, which are tried again.
        outputs = module(x.clone())
    except InputError:
        raise
    except Exception as error:
        where = raised_at(error)
        raise InputError(
            f"model: the module cannot take a batch of shape {tuple(x.shape)}, {len(x)} "
            f"{'samples' if len(x) > 1 else 'sample'} of {_numbers(x)}, shaped as the data"
            f"{where and ','}{where}: {cause_of_failure(module, x) or text_of(error)}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"model: the module returns {type(outputs).__name__}; it must return one tensor"
        )
    return outputs


def _numbers(x: Tensor) -> str:
    return "ones" if bool((x == 1).all()) else "ones and zeros"


def _try_other_batches(module: nn.Module, x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a module that takes batches of ``BATCH`` samples only."""
    module.eval()
    with torch.no_grad():
        for batch in (x[:1], torch.cat([x, x[:1]])):
            _check_outputs(outputs_of(module, batch), shape, len(batch))


def _check_outputs(outputs: Tensor, shape: tuple[int, ...], batch: int = BATCH) -> None:
    wanted = (batch, *shape)
    if tuple(outputs.shape) != wanted or not outputs.is_floating_point():
        raise InputError(
            f"model: the module gives outputs of shape {tuple(outputs.shape)} and type "
            f"{outputs.dtype} for a batch of {batch} samples; the data need floating-point "
            f"{wanted}: one output for two labels, else one for each label, tag or target"
        )


def _differentiate(module: nn.Module, outputs: Tensor) -> tuple[str, ...]:
    """Return the names of the parameters that get no gradient."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        hidden = "; layers in lists need nn.ModuleList" if unregistered(module) else ""
        raise InputError(
            f"model: the module has no parameters that are trained (requires_grad){hidden}"
        )
    if not outputs.requires_grad:
        raise InputError(
            "model: the module's outputs have no gradient, so that no parameter would be trained; "
            "leave out torch.no_grad, torch.inference_mode and .detach() in forward"
        )
    try:
        found = torch.autograd.grad(outputs.sum(), list(trained.values()), allow_unused=True)
    except Exception as error:
        raise InputError(
            f"model: the module cannot be differentiated: {changed_in_place(module, error)}"
        ) from error
    for gradient in found:
        if gradient is not None and gradient.layout != torch.strided:
            raise InputError(
                "model: a layer has sparse gradients, which cannot be added to a row; use "
                "Embedding with sparse=False"
            )
    return tuple(name for name, one in zip(trained, found, strict=True) if one is None)


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
