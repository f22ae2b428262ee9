"""What is said of a run before its first round: the plan of ``--dry-run``, and remarks."""

from __future__ import annotations

import math

import numpy as np

from mpifed.errors import one_line
from mpifed.federation.clients import imbalance
from mpifed.training.build import Setup, sample_bytes
from mpifed.training.costs import work_for_balance
from mpifed.training.model import described
from mpifed.training.simulated import describe_clock


def plan_lines(setup: Setup) -> list[str]:
    """Return the lines of ``--dry-run``: clients per rank, memory, bytes of a round; collective."""
    federation, description = setup.federation, setup.dataset.description
    counts = np.bincount(federation.owner, minlength=federation.communicator.size)
    itemsize = setup.dtype.itemsize
    inputs = math.prod(description.input_shape)
    samples = description.n_train + description.n_val + description.n_test
    by_rank = np.bincount(federation.owner, weights=samples, minlength=len(counts))
    bytes_of_rank = by_rank * sample_bytes(setup.configuration, description)
    payload = setup.algorithm.payload() * itemsize
    participants = len(federation.training)
    idle = federation.communicator.job_size - int(np.count_nonzero(counts))
    spare = f"; {idle} rank{'s' * (idle > 1)} without clients" if idle else ""
    validation = ""
    if setup.configuration.evaluation.validates:
        validation = f", {int(description.n_val.sum()):,} validation"
    return [
        f"data        {one_line(description.source, 200)}: {description.n_clients} clients, "
        f"{int(description.n_train.sum()):,} training{validation} and "
        f"{int(description.n_test.sum()):,} test samples, {inputs} inputs, "
        f"{description.n_classes} classes",
        f"clients     {participants} in training, {int(federation.unseen.sum())} unseen; "
        f"per rank: {_range(counts)}{spare}",
        *_balance(setup),
        f"memory      {_range(bytes_of_rank)} bytes of samples per rank",
        f"model       {described(setup.model)}; a message has {payload:,} bytes",
        *setup.exchange.describe(payload, itemsize),
        *describe_clock(setup),
    ]


def _balance(setup: Setup) -> list[str]:
    """Return how equal the work of ranks is, where there are several."""
    federation, ranks = setup.federation, setup.federation.communicator.size
    if ranks == 1:
        return []
    work = work_for_balance(setup.configuration, setup.dataset.description)
    most = imbalance(work, federation.owner, ranks)
    return [f"work        the busiest rank has {most:.3f} times the mean of all ranks"]


def remarks(setup: Setup) -> list[str]:
    """Return lines for the log about data, model, weights and exchange, the same on every rank."""
    payload = setup.algorithm.payload()
    own = setup.exchange.remarks(payload, setup.configuration.rounds) if payload else []
    return [*setup.dataset.remarks(), *setup.model.remarks, *_of_weights(setup), *own]


def _of_weights(setup: Setup) -> list[str]:
    """Return a line where a server's weights may differ from what is expected."""
    configuration, federation = setup.configuration, setup.federation
    algorithm = setup.algorithm
    is_server = configuration.exchange.name == "server" and algorithm.communicates
    if not is_server or federation.inclusion == 1:
        return []
    by, over = algorithm.averages_by, configuration.exchange.options["average_over"]
    if by is None:
        if over == "participants":
            return []
        name = configuration.algorithm.name
        return [
            f"exchange.average_over={over} changes nothing: {name} adds the participants' "
            "messages with weights 1 / p, p being the probability to take part"
        ]
    n_train = federation.n_train[federation.training]
    plain = over == "participants" and not federation.is_unbiased
    if not plain or by != "samples" or n_train.min() == n_train.max():
        return []
    return [
        f"clients have {_range(n_train)} training samples and take part with probability "
        f"{federation.inclusion:.4g}: an average renormalised over participants counts large "
        "clients for less than their share of all samples; participation.weights=unbiased does not"
    ]


def _range(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
