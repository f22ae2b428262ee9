"""What data, model and memory of a run must be, where its configuration alone does not tell."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mpifed.config.options import EvaluationOptions
from mpifed.data.base import Task
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from mpifed.method.algorithm import Algorithm, algorithm_classes
from mpifed.models.base import Model, Parametrised
from mpifed.mpi.communicator import Communicator

# Least number of copies of a model on a rank: the received one and the trained one.
COPIES = 2


def check_number(n_in_data: int, n_clients: int) -> None:
    """Refuse data of another number of clients."""
    if n_in_data != n_clients:
        raise InputError(f"clients is {n_clients}, but the data set holds {n_in_data} clients")


def check_validation(source: str, n_val: np.ndarray, evaluation: EvaluationOptions) -> None:
    """Refuse to score validation samples of data without any."""
    if evaluation.validates and not n_val.any():
        raise InputError(
            f"evaluation.validation_split is true, but '{source}' has no validation "
            "samples of its own; evaluation.validation_fraction holds some of the training out"
        )


def check_task(task: Task, data: str, algorithm: Algorithm, method: str) -> None:
    """Refuse data that an algorithm does not learn from."""
    if task not in algorithm.tasks:
        raise InputError(
            f"data.name is '{data}', whose task is {task}, but algorithm '{method}' "
            f"learns from: {', '.join(algorithm.tasks)}"
        )


def check_labels_of_data(task: str) -> None:
    """Refuse a schedule by the labels of data that have none."""
    if task != "classification":
        raise InputError(
            f"exchange.schedule.labels is 'data', but the task of the data is {task}; allowed: "
            "classification, or a CSV file of counts"
        )


def check_kind(built: Any, name: str, method: str) -> None:
    """Refuse what a model's name gives where the algorithm needs something else."""
    kinds = [each.model_type() for each in algorithm_classes(method)]
    if not isinstance(built, Parametrised):
        kinds = [Model, torch.nn.Module]
    if not isinstance(built, tuple(kinds)):
        raise InputError(
            f"model.name is '{name}', which gives a {type(built).__name__}, but algorithm "
            f"'{method}' needs a "
            f"{' or '.join(getattr(kind, '__name__', str(kind)) for kind in kinds)}"
        )


def check_autocast(autocast: str | None, model: str) -> None:
    """Refuse another precision of products for a model that has its own formulas."""
    if autocast:
        raise InputError(
            f"local.autocast is '{autocast}', but model '{model}' is computed by formulas of its "
            "own; allowed with networks (torch modules)"
        )


def check_stepping(stepping: str, autocast: str | None, model: Model) -> None:
    """Refuse a way of stepping that a model does not have."""
    if stepping == "auto" or stepping in model.steppings:
        return
    why = "has layers, branches or changes in place that torch.func.vmap does not take"
    if not model.deterministic:
        why = "has dropout, batch normalisation or buffers that change"
    elif autocast:
        why = f"computes in {autocast} (local.autocast)"
    raise InputError(
        f"local.stepping is '{stepping}', but the model {why}, so that its rows cannot be "
        "stacked; allowed: auto, one_by_one"
    )


def check_risks(model: Model, name: str, algorithm: Algorithm, method: str) -> None:
    """Refuse a model whose risk is random in a method that needs whole risks."""
    needs_risks = algorithm.uses_model() and algorithm.local_options is not None
    if needs_risks and not model.deterministic:
        raise InputError(
            f"model.name is '{name}', whose outputs in training depend on random numbers or on "
            f"other samples (dropout, batch normalisation), but algorithm '{method}' computes "
            "gradients of whole risks; use a network without them, such as one with GroupNorm"
        )


def check_statistics(
    model: Model, name: str, compression: str, unbiased: bool, stay_local: bool
) -> None:
    """Refuse running statistics in exchanges that do not average: a variance could be negative."""
    if not model.n_buffers or (compression in ("none", "identity") and not unbiased) or stay_local:
        return
    cause = "participation.weights is 'unbiased'"
    raise InputError(
        f"{cause if unbiased else f'compression.name is {compression!r}'}, but model '{name}' has "
        "running statistics, whose variances could become negative; allowed with "
        "local.buffers=local and without unseen clients, or use GroupNorm"
    )


def check_sums(model: Any, name: str, options: Mapping[str, Any]) -> None:
    """Refuse running statistics in exchanges that add updates up."""
    adds = options.get("correction") or options.get("asynchrony") == "pairwise"
    if adds and isinstance(model, Model) and model.n_buffers:
        raise InputError(
            f"the model {name} has running statistics, which are not the sum of updates; allowed: "
            "exchange.correction=none and exchange.asynchrony=wait_free, or a model without batch "
            "normalisation"
        )


def check_samples(
    samples: np.ndarray,
    shape: tuple[int, ...],
    data: str,
    bytes_by_rank: np.ndarray,
    communicator: Communicator,
) -> None:
    """Refuse samples, (clients,) of ``shape``, that do not fit into the memory of the hosts;
    collective.
    """
    host, bytes_on_host = sum_on_host(communicator, bytes_by_rank)
    check_memory(
        bytes_on_host,
        f"data.name '{data}' gives the clients on {host} "
        f"{int(samples.sum(dtype=np.float64))} samples of shape {shape}, which",
    )


def check_model_memory(model: Model, name: str, dtype: torch.dtype) -> None:
    """Refuse a model of which memory cannot hold the least number of copies."""
    check_memory(
        COPIES * model.n_parameters * dtype.itemsize,
        f"the model {name} has {model.n_parameters} parameters, which",
    )


def check_states(
    bytes_by_rank: np.ndarray, model: Model, name: str, optimizer: str, communicator: Communicator
) -> None:
    """Refuse states of clients that do not fit into the memory of the hosts; collective."""
    host, bytes_on_host = sum_on_host(communicator, bytes_by_rank)
    check_memory(
        bytes_on_host,
        f"the model {name} has {model.n_parameters} parameters, and with "
        f"local.optimizer={optimizer} what the clients on {host} train",
    )


def sum_on_host(communicator: Communicator, by_rank: np.ndarray) -> tuple[str, float]:
    """Return this host's name and the sum over its ranks of ``by_rank``, (ranks,); collective."""
    nodes = communicator.nodes()
    return socket.gethostname(), float(by_rank[nodes == nodes[communicator.rank]].sum())
