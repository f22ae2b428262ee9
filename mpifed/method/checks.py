"""What a method returned is checked where it comes back."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import PeerFailure, wrong_result
from mpifed.method.algorithm import Algorithm
from mpifed.method.predictor import Predictor
from mpifed.mpi.protocol import Communicator
from mpifed.state import on_host, server_digest, tensors


def check_state(algorithm: Algorithm, method: str, state: Any, before: Any = None) -> None:
    """Check a state that a method returned: tensors with owners, of the shapes that were given."""
    if not is_dataclass(state) or (before is not None and type(state) is not type(before)):
        expected = "a dataclass (mpifed.state)" if before is None else type(before).__name__
        raise wrong_result(algorithm, method, type(state).__name__, expected)
    for each in fields(state):
        value, name = getattr(state, each.name), each.name
        description = f"a state whose {name} is"
        if is_dataclass(value):
            check_state(algorithm, method, value, None if before is None else getattr(before, name))
            continue
        if "owner" not in each.metadata or not isinstance(value, Tensor):
            expected = f"{name}: Tensor = state.server(), client(), shared() or follows()"
            raise wrong_result(algorithm, method, f"{description} {type(value).__name__}", expected)
        example = value if before is None else getattr(before, name)
        storable = value.layout == torch.strided and value.dtype != torch.bfloat16
        if not storable or (value.dtype, value.shape) != (example.dtype, example.shape):
            remedy = "a dense tensor of a type that numpy has, as by .to_dense() or .float()"
            if before is not None and storable:
                same_shape = value.shape == example.shape
                remedy = f"{_form(example)}" + f", as by .to(state.{name})" * same_shape
            raise wrong_result(algorithm, method, f"{description} {_form(value)}", remedy)


def _form(tensor: Tensor) -> str:
    layout = "" if tensor.layout == torch.strided else f"{tensor.layout} ".removeprefix("torch.")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{layout}{dtype} of shape {tuple(tensor.shape)}"


def check_rows(algorithm: Algorithm, state: Any, n_clients: int, shared_is_rows: bool) -> None:
    """Check that what ``init`` returned has a row of each client where it must."""
    for name, tensor, is_rows in tensors(state, shared_is_rows):
        if is_rows and (not tensor.dim() or len(tensor) != n_clients):
            description = f"a state whose {name} has shape {tuple(tensor.shape)}"
            expected = f"a row for each of {n_clients} clients (exchange.spread gives shared ones)"
            raise wrong_result(algorithm, "init", description, expected)


def checked_server_digest(
    algorithm: Algorithm, state: Any, shared_is_rows: bool, communicator: Communicator
) -> bytes:
    """Return the digest of what the server owns; raise where it differs on a rank. Collective."""
    digest = server_digest(state, shared_is_rows)
    numbers = np.frombuffer(digest, np.uint8).astype(np.float64)
    largest, negated = np.split(communicator.max(np.concatenate([numbers, -numbers])), 2)
    if np.array_equal(largest, -negated):
        return digest
    forms = {
        name: (_form(tensor), hashlib.sha256(on_host(tensor).tobytes()).digest())
        for name, tensor, is_rows in tensors(state, shared_is_rows)
        if not is_rows
    }
    gathered = communicator.gather_object(forms)
    if gathered is None:
        raise PeerFailure
    name, rank = next(
        (name, rank)
        for name, of_first in forms.items()
        for rank, others in enumerate(gathered)
        if others[name] != of_first
    )
    raise wrong_result(
        algorithm,
        "init or round",
        f"a state whose {name} is {forms[name][0]} on rank 0 and other numbers, "
        f"{gathered[rank][name][0]}, on rank {rank}",
        "what the server owns the same on every rank, and declare rows of clients as "
        "state.shared(), follows() or client()",
    )


def checked_predictor(
    algorithm: object, method: str, predictor: Any, n_clients: int, n_parameters: int
) -> Predictor:
    """Return what ``deploy`` or ``adapt`` returned; ``TypeError`` unless its shapes fit."""
    if not isinstance(predictor, Predictor):
        raise wrong_result(algorithm, method, type(predictor).__name__, "a Predictor")
    if not n_clients:
        return predictor
    parameters, mixture = predictor.parameters, predictor.mixture
    if parameters is not None:
        shape, models = tuple(parameters.shape), parameters.shape[-2] if parameters.dim() > 1 else 0
        separate = (n_clients, models, n_parameters)
        fits = models > 0 and shape in ((models, n_parameters), separate)
        models += predictor.local_predictor is not None
        mixed = models == 1 if mixture is None else tuple(mixture.shape) == (n_clients, models)
        if not (fits and mixed):
            weights = "no mixture" if mixture is None else f"a mixture {tuple(mixture.shape)}"
            raise wrong_result(
                algorithm,
                method,
                f"parameters of shape {shape} and {weights} for {n_clients} clients",
                f"(M, {n_parameters}) for M models that all share, or ({n_clients}, M, "
                f"{n_parameters}) for each client's own, with a mixture ({n_clients}, M) unless "
                f"M = 1, or ({n_clients}, M + 1) with a predictor besides",
            )
    for name, values in predictor.results.items():
        if values.dim() == 0 or len(values) != n_clients:
            description = f"results '{name}' of shape {tuple(values.shape)}"
            raise wrong_result(
                algorithm, method, description, f"a row for each of {n_clients} clients"
            )
    return predictor
