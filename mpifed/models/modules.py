"""Torch modules as models.

What is likely to be a mistake in a user's torch module, although it may be trained as it is.

One batch through a user's torch module, before a run begins: what it needs and what is wrong.

Torch modules as a user's function builds them: drawn from seeds, complete, in the run's type.

Which torch modules are stepped as stacked rows.
"""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.loss import _Loss
from torch.nn.parameter import is_lazy

from mpifed.errors import InputError, text_of
from mpifed.models.base import Gradient, Model, Stepping
from mpifed.models.layout import Binding, Layout, Place, binding_of, layout_of
from mpifed.models.losses import CROSS_ENTROPY, Loss
from topologies.places import raised_at

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


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


Made = TypeVar("Made")
# A user's function, with its arguments given.
Build = Callable[[], nn.Module]


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """Return ``make()`` with torch's global generator seeded; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def complete(module: object, input_shape: tuple[int, ...]) -> nn.Module:
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
    said: str = "model"
    where: str = ""

    def drawn(self, seed: int) -> nn.Module:
        """Return a module drawn from ``seed``; its warnings were heard with the first module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fresh = seeded(lambda: complete(self.build(), self.input_shape), seed)
        return fresh.to(self.dtype)

    def refuse_unlike(self, fresh: nn.Module, first: nn.Module, layout: Layout) -> None:
        """Refuse a module that is not trained as another one of the same function."""
        if fresh is first:
            raise self._refusal(
                "the function must build a new module in every call; it returned the same one twice"
            )
        shared = next((p.name for p in layout.places if _same_owner(fresh, first, p.name)), None)
        if shared is not None:
            part = shared.rpartition(".")[0]
            is_layer = part and fresh.get_submodule(part) is first.get_submodule(part)
            kind = type(fresh.get_submodule(part)).__name__
            what = f"layer '{part}' (a {kind})" if is_layer else f"parameter '{shared}'"
            raise self._refusal(
                f"the modules that the function returns share {what}, which was made once; every "
                "model of a run is drawn anew, so make it within the function"
            )
        found = layout_of(fresh, {place.name for place in layout.buffers})
        if found != layout:
            pairs = zip_longest(found.places, layout.places)
            now, before = next((a, b) for a, b in pairs if a != b)
            raise self._refusal(
                "the function builds modules of different shapes: it made "
                f"{_described(before)} in one call and {_described(now)} in another"
            )

    def _refusal(self, what: str) -> InputError:
        return InputError(f"{self.said}: {what}{self.where}")

    @cached_property
    def _unused(self) -> nn.Module:
        return self.drawn(self.seed)

    def copy(self) -> nn.Module:
        """Return a copy of the module of ``seed``, which has never computed anything."""
        kept = (t for part in self._unused.modules() for t in vars(part).values())
        products = (t for t in kept if isinstance(t, Tensor) and not t.is_leaf)
        return copy.deepcopy(self._unused, {id(t): t.detach().clone() for t in products})


def _same_owner(fresh: nn.Module, first: nn.Module, name: str) -> bool:
    """Return whether two modules have one layer, or one parameter, of this name."""
    part, _, tensor = name.rpartition(".")
    try:
        one, other = fresh.get_submodule(part), first.get_submodule(part)
    except AttributeError:
        return False
    own = one._parameters.get(tensor)
    return one is other or (own is not None and own is other._parameters.get(tensor))


def _described(place: Place | None) -> str:
    return "nothing more" if place is None else f"'{place.name}' of shape {place.shape}"


# Parameters up to which dense networks are stacked; see ``scripts/bench ways_of_stepping``.
SMALL = 1 << 15

# Layers whose stacked products are about as fast as single ones.
DENSE = (nn.Linear, nn.LayerNorm)


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
