"""Tests whether this computer's kernels give equal digests on any number of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.fedmm.fedmm import FAILURES, FedMM, inputs_of
from mpifed.algorithms.global_model.maml import Maml
from mpifed.federation.clients import Clients, Draws
from mpifed.local.invariance import addresses_agree, blocks_agree, products_agree
from mpifed.local.linear_objective import objective_of
from mpifed.local.objective import Objective, Regulariser
from mpifed.local.solver import LocalSGD
from mpifed.models.icnn import DenseICNN
from mpifed.training.build import Setup
from mpifed.training.samples import Samples

# Rows of the largest block tried: enough for kernels that process 16 at a time.
ROWS = 20

# Largest count of parameters, or of inputs, in that block, which has 3 rows in any case.
NUMBERS = 1 << 21

# Largest product of parameters and scored samples; 64 samples are scored in any case.
PRODUCTS = 1 << 28

# Samples that are tried at a time, at most.
CHUNK = 8192

# The value of MKL_CBWR that the promise needs; ``mpifed/__init__.py`` sets it.
CBWR = "AUTO,STRICT"

# What is tried, in the plural, and a function that says whether its results agree.
Trial = tuple[str, Callable[[], bool]]

# Returns so many models, each drawn anew: (count, P).
Models = Callable[[int], Tensor]


def smallest_and_largest(setup: Setup, samples: Samples) -> Clients:
    """Return the clients hosted here with whose samples kernels are tried."""
    counts = setup.dataset.description.n_train[setup.federation.hosted]
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    return samples.clients(np.concatenate([order[:-1][:ROWS], order[-1:]]))


def warning_of_kernels(setup: Setup, clients: Clients, seed: int) -> str | None:
    """Return a warning if results of this run depend on which clients share a rank."""
    if setup.device.type != "cpu" or not len(clients):
        return None
    with torch.random.fork_rng(devices=[]):
        varying = [name for name, agrees in _trials(setup, clients, Draws(seed, 1)) if not agrees()]
    if not varying:
        return None
    return (
        f"on this computer {' and '.join(varying)} depend on which clients share a rank, so "
        f"digests may differ between numbers of ranks; {advice(products_agree(setup.dtype))}"
    )


def advice(
    products: bool,
    has_mkl: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return what to do where results depend on which clients share a rank."""
    if products:
        return (
            "layers of another kind or another dtype may be computed by kernels that do not; else "
            "compare digests of runs on the same number of ranks only"
        )
    if not (torch.backends.mkl.is_available() if has_mkl is None else has_mkl):
        return (
            "this torch was built without MKL, whose reproducible kernels are needed; install one "
            "with MKL, or compare digests of runs on the same number of ranks only"
        )
    value = environment.get("MKL_CBWR")
    if value != CBWR:
        return f"MKL_CBWR is '{value}': unset it, or set it to {CBWR}"
    return (
        "MKL had computed before mpifed was imported: import mpifed before torch computes anything,"
        f" or set MKL_CBWR={CBWR} before Python starts"
    )


def _trials(setup: Setup, clients: Clients, draws: Draws) -> Iterator[Trial]:
    """Yield the calls that results depend on; ``clients`` have samples, the smallest first."""
    algorithm, model = setup.algorithm, setup.model
    if isinstance(model, DenseICNN):
        yield "the potential's gradients", lambda: _potentials_agree(model, clients, draws)
    elif isinstance(algorithm, FedMM):
        yield "the surrogate's statistics", lambda: _statistics_agree(algorithm, clients, draws)
    elif not algorithm.uses_model:
        x = clients.shards.train.x.flatten(1).double()[:CHUNK]
        yield "matrix products", lambda: addresses_agree(lambda z: z.T @ z, x)
    else:
        models = _models(setup, draws)
        yield "the model's outputs", lambda: _outputs_agree(setup, clients, models)
        yield "the model's gradients", lambda: _gradients_agree(setup, clients, models, draws)


def _gradients_agree(setup: Setup, clients: Clients, models: Models, draws: Draws) -> bool:
    """Return whether local SGD, or the exact risks of methods without it, agree in any block."""
    model = setup.model
    inputs = int(clients.n_train[0]) * int(np.prod(clients.shards.train.x.shape[1:]))
    count = min(ROWS, max(3, NUMBERS // max(1, model.n_parameters, inputs)))
    # Clients of one size share a batch, so the smallest one goes in several times.
    rows = np.resize(clients.rows[: max(1, count // 4)], count)
    start = models(count)
    if setup.algorithm.local_options is None:
        # This share of a client's local steps rounds up to one step.
        some = Clients(clients.federation, clients.shards, rows, np.full(count, 1e-12))
        solver = _solver(setup)

        def step(part: slice) -> Tensor:
            own = _part(some, part)
            first = start[part, None]
            return solver(first, solver.init(len(own), 1, setup.dtype), own, draws)[0]

        return blocks_agree(step, count)
    some = Clients(clients.federation, clients.shards, rows)

    def risks(part: slice) -> tuple[Objective, Tensor]:
        return objective_of(model, _part(some, part), Regulariser()), start[part]

    def losses(part: slice) -> Tensor:
        objective, at = risks(part)
        return objective.losses(at)

    def gradients(part: slice) -> Tensor:
        objective, at = risks(part)
        return objective.gradients(at)

    def hessian_products(part: slice) -> Tensor:
        objective, at = risks(part)
        return objective.hessian_products(at, at)

    calls = [losses, gradients]
    if isinstance(setup.algorithm, Maml):
        calls.append(hessian_products)
    return all(blocks_agree(call, count) for call in calls)


def _outputs_agree(setup: Setup, clients: Clients, drawn: Models) -> bool:
    """Return whether a client's scores are the same at any address of its models and samples."""
    row, shards = clients.rows[-1], clients.shards
    split = shards.test if shards.test.counts[row] else shards.train
    models = drawn(setup.configuration.algorithm.options.get("n_components", 1))
    count = min(setup.model.scored_together, max(64, PRODUCTS // max(1, models.numel())))
    samples = split.rows_of(row)
    return addresses_agree(setup.model.shared_logits, models, split.x[samples][:count])


def _statistics_agree(algorithm: FedMM, clients: Clients, draws: Draws) -> bool:
    """Return whether a client's statistics are the same in a block with any other clients."""
    surrogate = algorithm.surrogate
    split = algorithm.samples(_part(clients, slice(0, 4)), draws)
    z, offsets = inputs_of(split, algorithm.with_target), split.offsets
    if len(offsets) == 2:
        # One client is divided into three, to be tried in a block with others.
        count = len(z)
        offsets = np.unique([0, count // 5, count // 2, count])
    theta = torch.from_numpy(surrogate.init(draws.stream("trial")))

    def statistics(part: slice) -> Tensor:
        cut = offsets[part.start : part.stop + 1]
        return surrogate.statistics(z[cut[0] : cut[-1]], theta, cut - cut[0])

    try:
        return blocks_agree(statistics, len(offsets) - 1)
    except FAILURES:
        # The run itself reports what cannot be computed at all.
        return True


def _potentials_agree(model: DenseICNN, clients: Clients, draws: Draws) -> bool:
    """Return whether gradients of a potential are the same at any address of its parameters."""
    x = clients.shards.train.x[slice(*clients.shards.train.offsets[clients.rows[0] :][:2])][:CHUNK]
    parameters = torch.from_numpy(model.init(draws.stream("trial"))).to(x)

    def gradients(parameters: Tensor, x: Tensor) -> Tensor:
        point = model.at(parameters, x)
        tangent = point.along(point.push())
        return torch.cat([point.value_gradient(1.0), tangent.gradient(1.0)])

    return addresses_agree(gradients, parameters, x)


def _models(setup: Setup, draws: Draws) -> Models:
    """Return a function that draws models, each of them once: large ones take a while."""
    rows: list[np.ndarray] = []

    def first(count: int) -> Tensor:
        while len(rows) < count:
            rows.append(setup.model.init(draws.stream(f"trial {len(rows)}")))
        return torch.from_numpy(np.stack(rows[:count])).to(setup.dtype)

    return first


def _solver(setup: Setup) -> LocalSGD:
    longest = int(setup.dataset.description.n_train.max())
    options = setup.configuration.local
    return LocalSGD(setup.model, options, setup.horizon, longest, setup.device)


def _part(clients: Clients, part: slice) -> Clients:
    effort = None if clients.effort is None else clients.effort[part]
    return Clients(clients.federation, clients.shards, clients.rows[part], effort)
