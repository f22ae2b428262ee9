"""What is likely to be a mistake in a user's torch module, although it may be trained as it is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.loss import _Loss

from mpifed.errors import InputError, text_of
from mpifed.models.losses import Loss

# What makes outputs probabilities.
Ending = Literal["softmax", "sigmoid"]

# Beginnings of the names under which autograd records operations that keep all numbers.
VIEWS = ("Squeeze", "Unsqueeze", "View", "Reshape", "Transpose", "Permute", "Clone", "Slice")

# Names in a sentence, at most.
SHOWN = 3


def ending_of(outputs: Tensor) -> Ending | None:
    """Return what makes outputs probabilities."""
    sums = outputs.detach().sum(-1)
    sum_to_one = torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
    if outputs.shape[-1] > 1 and sum_to_one and bool((outputs >= 0).all()):
        return "softmax"
    last = outputs.grad_fn
    while last is not None and last.name().startswith(VIEWS):
        last = last.next_functions[0][0]
    name = "" if last is None else last.name()
    if name.startswith("Softmax"):
        return "softmax"
    return "sigmoid" if name.startswith("Sigmoid") else None


def cause_of_failure(module: nn.Module, x: Tensor) -> str | None:
    """Return why a module fails for a batch, where the first of its layers tells."""
    found: list[str] = []

    def looks_at(name: str) -> Any:
        def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            said = f"layer '{name}'" if name else f"the {type(layer).__name__}"
            found.extend(_misfits(layer, said, inputs, x.dtype))

        return look

    hooks = [
        part.register_forward_pre_hook(looks_at(name))
        for name, part in module.named_modules()
        if any(True for _ in part.parameters())
    ]
    with contextlib.suppress(Exception):
        module(x.clone())
    for hook in hooks:
        hook.remove()
    return found[0] if found else None


def changed_in_place(module: nn.Module, error: Exception) -> str:
    """Return why a module cannot be differentiated: the end of a sentence, with the remedy."""
    text = text_of(error)
    if "modified by an inplace operation" not in text:
        return f"{text}; leave out operations in place on tensors that other layers need"
    made = re.search(r"is output \d+ of (?:\w+::)?(\w+?)(?:Backward\d*)?,", text)
    what = f"the output of {made[1].lower()}" if made else "a tensor"
    layers = [name for name, part in module.named_modules() if getattr(part, "inplace", False)]
    remedy = f"build {listed(layers)} with inplace=False, and " if layers else ""
    return (
        f"{what} is changed in place, but the backward pass needs it as it was; {remedy}write "
        "x = x + 1 for x += 1"
    )


def _misfits(
    layer: nn.Module, said: str, inputs: tuple[Any, ...], dtype: torch.dtype
) -> Iterator[str]:
    """Yield what is wrong with the inputs of a layer."""
    for tensor in _tensors(inputs):
        if not tensor.is_floating_point():
            continue
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            yield f"{said} is given {_short(tensor.dtype)}, and needs whole numbers: x.long()"
        elif tensor.dtype != dtype:
            yield (
                f"{said} is given {_short(tensor.dtype)}, but the run computes in {_short(dtype)}; "
                "leave out casts such as .double() and .bfloat16(), and set dtype=float64 or "
                "local.autocast=bfloat16 where wanted"
            )
        if isinstance(layer, nn.Conv2d) and tensor.dim() == 3:
            yield f"{said} convolves samples without an axis of channels; begin with x.unsqueeze(1)"
        elif isinstance(layer, nn.Conv2d) and tensor.dim() == 4:
            first, last = tensor.shape[1], tensor.shape[3]
            if first != layer.in_channels == last:
                yield f"{said} is given channels last; begin with x.movedim(-1, 1)"
    if inputs and isinstance(inputs[0], Tensor):
        yield from _wrong_width(layer, said, inputs[0])


def _wrong_width(layer: nn.Module, said: str, x: Tensor) -> Iterator[str]:
    """Yield a sentence where a layer was built for samples of another size."""
    if isinstance(layer, nn.Linear):
        takes, what, axis = layer.in_features, "numbers", -1
    elif isinstance(layer, nn.RNNBase):
        takes, what, axis = layer.input_size, "numbers", -1
    elif isinstance(layer, _ConvNd):
        takes, what, axis = layer.in_channels, "channels", 1
    elif isinstance(layer, _NormBase):
        takes, what, axis = layer.num_features, "channels", 1
    else:
        return
    given = x.shape[axis] if x.dim() > 1 else takes
    if given == takes:
        return
    if isinstance(layer, nn.Linear) and x[0].numel() == takes:
        remedy = "begin with nn.Flatten()"
    else:
        remedy = f"make it nn.{type(layer).__name__}({given}, ...)"
        if isinstance(layer, nn.Linear) and x.dim() > 2:
            remedy += f", or begin with nn.Flatten() and nn.Linear({x[0].numel()}, ...)"
    yield f"{said} takes {takes} {what} and is given {given}; {remedy}"


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def unregistered(module: nn.Module) -> list[str]:
    """Return the attributes whose layers and tensors a module does not know to be its own."""
    found = []
    own = {id(inner) for inner in (*module.modules(), *module.parameters())}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            held = list(value.values()) if isinstance(value, dict) else value
            parts = held if isinstance(held, (list, tuple)) else [value]
            if any(id(inner) not in own and _can_learn(inner) for inner in parts):
                found.append(f"{prefix}.{name}" if prefix else name)
    return found


def _can_learn(value: Any) -> bool:
    """Return whether a value has parameters, or is a tensor that its author may mean as one."""
    if isinstance(value, nn.Module):
        return any(True for _ in value.parameters())
    return isinstance(value, Tensor) and value.is_leaf and value.requires_grad


def remarks_on(
    module: nn.Module, loss: Loss, idle: tuple[str, ...], ending: Ending | None
) -> tuple[str, ...]:
    """Return lines for the log about a module that may not do what its author wants."""
    lines = []
    own = getattr(module, "loss", None)
    if ending is not None and loss.measure is not None and not isinstance(own, Loss):
        lines.append(
            f"model: the module's outputs are probabilities ({ending}), but the loss takes them as "
            f"logits; leave the {ending} out of forward"
        )
    foreign = unregistered(module)
    if foreign:
        lines.append(
            f"model: {listed(foreign)} is not trained, since the module does not know it as a "
            "part; use nn.ModuleList, nn.ModuleDict and nn.Parameter"
        )
    unread = [name for name, part in module.named_children() if isinstance(part, _Loss)]
    if own is not None and not isinstance(own, (Loss, _Loss)):
        unread.append("loss")
    if unread:
        lines.append(
            f"model: the module's {listed(unread)} is not read: clients are trained on the loss "
            f"of the task ({loss.name}), or on a loss attribute of type mpifed.models.losses.Loss"
        )
    if idle:
        lines.append(
            f"model: no gradient reaches {listed(idle)}: unused in forward, or behind .detach() "
            "or torch.no_grad(); set requires_grad=False where that is wanted"
        )
    return tuple(lines)


def converted(module: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """Return a line for the log where a module was built in an unusual floating-point type."""
    for name, tensor in module.named_parameters():
        if tensor.is_complex():
            raise InputError(f"model: '{name}' is {_short(tensor.dtype)}; allowed: real parameters")
    usual = (torch.get_default_dtype(), dtype)
    names = [
        name
        for name, tensor in module.named_parameters()
        if tensor.is_floating_point() and tensor.dtype not in usual
    ]
    if not names:
        return ()
    types = {_short(dict(module.named_parameters())[name].dtype) for name in names}
    return (
        f"model: {listed(names)} was built in {' and '.join(sorted(types))} and is trained in "
        f"{_short(dtype)}, the run's dtype",
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def listed(names: Iterable[str]) -> str:
    """Return names in quotes, the first few of them."""
    quoted = [f"'{name}'" for name in names]
    more = len(quoted) - SHOWN
    return ", ".join(quoted[:SHOWN]) + (f" and {more} more" if more > 0 else "")
