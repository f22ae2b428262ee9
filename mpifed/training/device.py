"""Where a run computes, and how torch is set for it."""

from __future__ import annotations

import os
from collections.abc import Collection

import torch

from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator


def choose_device(
    name: str, supported: Collection[str], communicator: Communicator
) -> torch.device:
    """Return the CPU, or this rank's GPU: its number on the node modulo the visible GPUs."""
    if name == "cpu" or "cuda" not in supported:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if name == "cuda":
            raise InputError("device is 'cuda', but torch sees no GPU; allowed here: auto, cpu")
        return torch.device("cpu")
    device = torch.device("cuda", communicator.local_rank() % torch.cuda.device_count())
    compute_reproducibly()
    # Page-locked memory and random numbers belong to the current device.
    torch.cuda.set_device(device)
    return device


def compute_reproducibly() -> None:
    """Set torch so that a GPU repeats its results bit for bit, in full float32; for the
    process.
    """
    # Read by cuBLAS when it is first used: one workspace of a fixed size for each stream.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling fresh memory with NaN finds mistakes and costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # TF32 keeps 10 bits of a float32's fraction; local.autocast asks for less precision.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
