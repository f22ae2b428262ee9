"""The memory that clients' models and samples take, known before a run."""

from __future__ import annotations

import math

import numpy as np
import torch

from mpifed.federation.federation import Federation
from mpifed.local.solver import LocalSolver
from mpifed.method.algorithm import Algorithm
from mpifed.models.base import Model, Parametrised
from mpifed.models.modules import ModuleModel


def state_bytes(
    federation: Federation,
    model: Parametrised,
    algorithm: Algorithm,
    solver: LocalSolver,
    dtype: torch.dtype,
    is_rows: bool,
) -> np.ndarray:
    """Return the bytes of weights, gradients and moments on each rank, at least.

    They are those of the shared models, of the models that participants have trained when a round
    ends, with their moments, of the moments that all clients keep between rounds, of one gradient,
    and of weights that are frozen. What a method keeps beside them is not counted, nor activations
    and the copies of a checkpoint.

    Parameters
    ----------
    federation : Federation
        Who is hosted where, and how many take part in a round.
    model : Parametrised
        The model of the run.
    algorithm : Algorithm
        The method.
    solver : LocalSolver
        What takes its local steps.
    dtype : torch.dtype
        Floating-point type of models.
    is_rows : bool
        Whether every client has a copy of what is shared, as under gossip.

    Returns
    -------
    numpy.ndarray
        float64 (ranks,); zeros for methods that train no predictor.
    """
    size = federation.communicator.size
    if not algorithm.uses_model() or not isinstance(model, Model) or not model.n_parameters:
        return np.zeros(size)
    hosted = np.bincount(federation.owner, minlength=size).astype(float)
    trained = float(model.n_parameters - model.n_buffers)
    shared = float(max(algorithm.payload(), model.n_parameters))
    total = shared * (hosted if is_rows else np.ones(size))
    if algorithm.local_options is None:
        # A mean of several models is of models that clients have trained.
        several = algorithm.aggregates == "mean"
        models = max(1, algorithm.payload() // model.n_parameters) if several else 1
        rule = solver.rule
        empty = rule.moments(rule.init(0, models, int(trained), torch.zeros(0)))
        lasting = models * sum(moment.shape[-1] for moment in empty)
        active = hosted * federation.inclusion
        total += active * (models * model.n_parameters + lasting) + hosted * lasting + trained
    if isinstance(model, ModuleModel):
        total += model.n_frozen
    return total * dtype.itemsize


def sample_bytes_by_rank(
    federation: Federation, samples: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype
) -> np.ndarray:
    """Return the bytes of the samples of the clients that each rank hosts, (ranks,).

    ``samples`` are those of all splits of each client, (clients,), each of ``shape``.
    """
    by_rank = np.bincount(federation.owner, weights=samples, minlength=federation.communicator.size)
    return by_rank * sample_bytes(shape, dtype)


def sample_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes of a sample and its label in memory."""
    return math.prod(shape) * dtype.itemsize + 8
