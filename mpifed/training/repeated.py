"""A user's own schedules and data sets, asked twice: results need the same answer every time."""

from __future__ import annotations

import time
from functools import partial

import torch

from mpifed.components.registry import find
from mpifed.data.base import Shards
from mpifed.errors import InputError
from mpifed.mpi.agreement import agree
from mpifed.training.build import Setup
from mpifed.training.mistakes import told_as_input
from mpifed.training.samples import Held, Samples
from topologies import TopologyError
from topologies.inputs import within
from topologies.schedules.sequences import Schedule

# Entries of the matrices of a user's schedule that are checked, in a second at most; two matrices
# in any case.
ENTRIES = 10**6

# Whether samples differ by no more than rounding, as those do not that were drawn anew.
_same = partial(torch.allclose, rtol=1e-3, atol=1e-5, equal_nan=True)


def wrong_schedule(schedule: Schedule, rounds: int, name: str, where: str) -> str | None:
    """Return why a user's schedule has no matrix in one of the first rounds, or has two
    for one.
    """
    began = time.monotonic()
    try:
        first = schedule.matrix(1)
        for number in range(2, min(rounds, max(2, ENTRIES // schedule.n**2)) + 1):
            if number > 2 and time.monotonic() - began > 1:
                break
            schedule.matrix(number)
        again = schedule.matrix(1)
    except TopologyError as error:
        return f"exchange.schedule: {error}"
    if (first.to_sparse() != again.to_sparse()).nnz:
        return (
            f"exchange.schedule is '{name}', which gives another W for round 1 when it is asked "
            "again, so that a run could be neither repeated nor resumed; draw from a generator of "
            f"the round, as np.random.default_rng([seed, round]){where}"
        )
    return None


def refuse_changing_data(setup: Setup, samples: Samples | None) -> None:
    """Refuse a user's data set that gives a client other samples the second time; collective."""
    hosted = setup.federation.hosted
    if not len(hosted):
        return
    loaded = partial(setup.dataset.load, dtype=setup.dtype)
    first = samples.shards if isinstance(samples, Held) else loaded(hosted[-2:])
    again = loaded(hosted[-1:])
    if _same_samples(first, len(first.client_ids) - 1, again):
        return
    name = setup.configuration.data.name
    made = find("data", name)
    raise InputError(
        f"data.name is '{name}', which gives client {int(hosted[-1])} other samples when it is "
        "loaded again, alone, so that results would depend on the number of ranks; draw from a "
        "generator of the client, as np.random.default_rng([run_seed, int(client)])"
        f"{within(getattr(made, 'load', made)) or within(made)}"
    )


def check_data(setup: Setup, samples: Samples | None) -> None:
    """Call ``refuse_changing_data`` on all ranks together; collective."""
    check = told_as_input()(partial(refuse_changing_data, setup, samples))
    agree(setup.federation.communicator, check)


def _same_samples(first: Shards, row: int, again: Shards) -> bool:
    """Return whether the client at ``row`` has, up to rounding, the only samples of ``again``."""
    for one, other in zip(
        (first.train, first.val, first.test), (again.train, again.val, again.test), strict=True
    ):
        own = one.rows_of(row)
        x, y = one.x[own].cpu(), one.y[own].cpu()
        if x.shape != other.x.shape or y.shape != other.y.shape:
            return False
        if not _same(x, other.x) or not _same(y.double(), other.y.double()):
            return False
    return True
