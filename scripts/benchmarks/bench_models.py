"""Benchmarks of networks: memory formats, bfloat16, malloc, and copies as grouped convolutions.

An action is a forward and a backward pass of one minibatch with the mean cross-entropy, in CPU
seconds of one thread. Figures are medians; the variants of a line are measured in turn.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from bench_figures import cpu_seconds, in_turn, report
from torch.nn.functional import conv2d, cross_entropy, max_pool2d

from mpifed.components.registry import find
from mpifed.data.base import Description

REPEATS = 5
LAST = torch.channels_last
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt in glibc's malloc.h."""


def network(name: str, shape: tuple[int, ...], n_classes: int, **options: Any) -> torch.nn.Module:
    """A shipped model for images of a shape, in training mode, without dropout."""
    n = np.array([1])
    torch.manual_seed(0)
    made = find("model", name)(Description("drawn", shape, n_classes, n, n, n), **options).train()
    for part in made.modules():
        if isinstance(part, torch.nn.Dropout):
            part.eval()
    return made


MODELS: dict[str, tuple[str, tuple[int, ...], int, dict[str, Any]]] = {
    "cnn": ("cnn", (1, 28, 28), 62, {}),
    "cnn published": ("cnn", (1, 28, 28), 62, {"variant": "published"}),
    "mobilenet_v2": ("mobilenet_v2", (3, 32, 32), 10, {}),
    "mobilenet_v2 cifar_stem": ("mobilenet_v2", (3, 32, 32), 10, {"cifar_stem": True}),
    "resnet18": ("resnet18", (3, 32, 32), 10, {}),
    "resnet18 cifar_stem": ("resnet18", (3, 32, 32), 10, {"cifar_stem": True}),
}


def step_of(
    made: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, bfloat16: bool = False
) -> Callable[[], None]:
    """Forward and backward pass of one minibatch."""
    parameters = list(made.parameters())

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = cross_entropy(made(x), y)
        torch.autograd.grad(loss, parameters)

    return step


def _in_formats(name: str, batch: int) -> None:
    model, shape, n_classes, options = MODELS[name]
    made = network(model, shape, n_classes, **options)
    moved = network(model, shape, n_classes, **options).to(memory_format=LAST)
    x, y = torch.rand(batch, *shape), torch.randint(0, n_classes, (batch,))
    last = x.contiguous(memory_format=LAST)
    measured = in_turn(
        {
            "contiguous": step_of(made, x, y),
            "channels_last_inputs": step_of(made, last, y),
            "channels_last": step_of(moved, last, y),
            "bfloat16": step_of(made, x, y, bfloat16=True),
            "bfloat16_channels_last": step_of(moved, last, y, bfloat16=True),
        },
        REPEATS,
        inner=5 if "cnn" in name and batch == 20 else 1,
    )
    medians = {variant: statistics.median(seconds) for variant, seconds in measured.items()}
    report(
        "memory_formats",
        round(medians["channels_last"] / medians["contiguous"], 3),
        "times the seconds of contiguous tensors, channels_last",
        model=name,
        batch=batch,
        milliseconds={variant: round(1000 * s, 1) for variant, s in medians.items()},
    )


def memory_formats() -> None:
    """Contiguous tensors against channels_last, and bfloat16 autocast of both."""
    torch.set_num_threads(1)
    for name in MODELS:
        for batch in (20,) if "cifar_stem" in name else (20, 64, 128):
            _in_formats(name, batch)


def grouped(copies: list[torch.nn.Module], x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One step of several copies of ``cnn``, whose convolutions are the groups of one.

    Parameters
    ----------
    copies : list of torch.nn.Module
        R copies.
    x, y : Tensor
        Minibatches of the copies, (R, B, 1, 28, 28) and (R, B).
    """
    rows, pools = len(copies), 2 if copies[0].conv1.kernel_size[0] == 5 else 1
    names = [name for name, _ in copies[0].named_parameters()]
    own = {
        name: torch.stack([copy.get_parameter(name).detach() for copy in copies]).requires_grad_()
        for name in names
    }

    def convolved(h: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = own[f"{name}.weight"], own[f"{name}.bias"]
        return torch.relu_(conv2d(h, weight.flatten(0, 1), bias.flatten(), groups=rows))

    def dense(h: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = own[f"{name}.weight"], own[f"{name}.bias"]
        return torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2))

    def step() -> None:
        h = convolved(x.transpose(0, 1).flatten(1, 2), "conv1")
        h = convolved(max_pool2d(h, 2) if pools == 2 else h, "conv2")
        h = max_pool2d(h, 2).unflatten(1, (rows, -1)).transpose(0, 1).flatten(2)
        z = dense(torch.relu_(dense(h, "hidden")), "output")
        loss = cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
        torch.autograd.grad(loss, list(own.values()))

    return step


def vmapped(copies: list[torch.nn.Module], x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One step of several copies by ``torch.func.vmap``; see ``grouped``."""
    own, _ = torch.func.stack_module_state(copies)

    def one(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(copies[0], parameters, (x,))

    def step() -> None:
        z = torch.func.vmap(one)(own, x)
        loss = cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
        torch.autograd.grad(loss, list(own.values()))

    return step


def _copies(variant: str, rows: int, batch: int) -> None:
    copies = [network("cnn", (1, 28, 28), 62, variant=variant) for _ in range(rows)]
    x, y = torch.rand(rows, batch, 1, 28, 28), torch.randint(0, 62, (rows, batch))
    alone = [step_of(copy, x[r], y[r]) for r, copy in enumerate(copies)]

    def one_by_one() -> None:
        for step in alone:
            step()

    measured = in_turn(
        {
            "one_by_one": one_by_one,
            "grouped": grouped(copies, x, y),
            "vmap": vmapped(copies, x, y),
        },
        REPEATS,
    )
    medians = {variant: statistics.median(seconds) for variant, seconds in measured.items()}
    report(
        "grouped_convolutions",
        round(medians["grouped"] / medians["one_by_one"], 3),
        "times the seconds of one copy after the other",
        variant=variant,
        copies=rows,
        batch=batch,
        milliseconds_of_a_copy={v: round(1000 * s / rows, 2) for v, s in medians.items()},
    )


def grouped_convolutions() -> None:
    """R copies of ``cnn``, each with a minibatch: one by one, as grouped convolutions, by vmap."""
    torch.set_num_threads(1)
    for variant in ("reddi", "published"):
        for batch in (20, 128):
            for rows in (4, 8, 16):
                _copies(variant, rows, batch)


def _step_seconds(kept: bool, batch: int) -> float:
    """CPU seconds of a step of ``cnn``, where malloc keeps what is freed, or does not."""
    torch.set_num_threads(1)
    if kept:
        libc = ctypes.CDLL(None)
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            assert libc.mallopt(parameter, 1 << 30) == 1
    made = network("cnn", (1, 28, 28), 62)
    x, y = torch.rand(batch, 1, 28, 28), torch.randint(0, 62, (batch,))
    return statistics.median(cpu_seconds(step_of(made, x, y), REPEATS, inner=max(1, 200 // batch)))


def kept_memory() -> None:
    """Memory of freed tensors kept by malloc against memory that goes back to the system."""
    for batch in (20, 128, 256):
        measured: dict[bool, list[float]] = {False: [], True: []}
        for kept in (False, True) * 3:
            # What mallopt changes cannot be changed back, so each figure has its own process.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                measured[kept].append(pool.apply(_step_seconds, (kept, batch)))
        medians = {kept: statistics.median(seconds) for kept, seconds in measured.items()}
        report(
            "kept_memory",
            round(medians[True] / medians[False], 3),
            "times the CPU seconds of a step of cnn where freed memory goes back",
            batch=batch,
            milliseconds_kept=[round(1000 * s, 1) for s in measured[True]],
            milliseconds_given_back=[round(1000 * s, 1) for s in measured[False]],
        )


BENCHMARKS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (memory_formats, kept_memory, grouped_convolutions)
}
