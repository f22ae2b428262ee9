"""A round with a user's own components before anything is written, so that mistakes are told then.

First every rank rehearses alone, with a few of its clients, few samples and one local step: the
state before round 1, an evaluation, the round, and an evaluation. Where that fails on any rank, the
same is done once more by all ranks with all that the run has. Only what fails then is refused, so
that a method which needs all its clients, say, is not refused because a few were tried.

All objects that a round changes are made for this and thrown away: the algorithm, the exchange,
their state and their ledger. The model, the data set and (the second time) the samples are those of
the run, which no round changes.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpifed.components.registry import Section
from mpifed.data.base import Shards, Split
from mpifed.errors import Diverged, InputError, PeerDiverged, PeerFailure, StopRequested
from mpifed.exchange.gossip import Gossip
from mpifed.federation.clients import Clients, Federation
from mpifed.mpi.agreement import agree
from mpifed.mpi.played import Unheard
from mpifed.supervision.heartbeat import at_round
from mpifed.supervision.stop_requests import stop_requests_from
from mpifed.training.asynchronous import taking_part, waits
from mpifed.training.build import Setup
from mpifed.training.clock import Clock
from mpifed.training.engine import Engine
from mpifed.training.mistakes import in_own_words, told_as_input
from mpifed.training.parts import make_algorithm, make_exchange
from mpifed.training.samples import Held, Samples, samples_of
from topologies import TopologyError

FEW = 3
"""Training clients of a rank that rehearse."""

FEWEST, MOST = 16, 256
"""Samples of each: those of two minibatches, within these bounds."""

ONE_STEP = 1e-12
"""A share of the local steps that rounds up to one."""

PATIENCE = 5.0
"""Seconds of ``Algorithm.prepare`` with a few clients, after which these do not rehearse."""

ACTING = ("data", "model", "algorithm", "exchange", "compression", "attack")
"""Sections whose components act in a round."""

ENTRIES = 10**6
"""Entries of the matrices of a user's schedule that are checked, in a second at most; two matrices
in any case."""

BEFORE = ("topology", "weights", "schedule")
"""Components within them that are asked before, when the mixing matrices are made."""


def has_own_parts(configuration: Any) -> bool:
    """Return whether components that act in a round are a user's own.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    """
    return any(_has_own(getattr(configuration, key)) for key in ACTING)


def is_users(section: Any) -> bool:
    """Return whether a section names a component that is not of mpifed."""
    if not isinstance(section, Section) or ":" not in section.name:
        return False
    return section.name.partition(":")[0].partition(".")[0] != "mpifed"


def _has_own(section: Section) -> bool:
    within = (option for key, option in section.options.items() if key not in BEFORE)
    return is_users(section) or any(_has_own(each) for each in within if isinstance(each, Section))


def _check_later_rounds(setup: Setup) -> None:
    """Refuse a user's schedule whose matrix of one of the first rounds is none; on rank 0."""
    if setup.federation.communicator.rank != 0 or not isinstance(setup.exchange, Gossip):
        return
    schedule, rounds = setup.exchange.schedule, setup.configuration.rounds
    began = time.monotonic()
    for number in range(1, min(rounds, max(2, ENTRIES // schedule.n**2)) + 1):
        if number > 2 and time.monotonic() - began > 1:
            break
        try:
            schedule.matrix(number)
        except TopologyError as error:
            raise InputError(f"exchange.schedule: {error}") from None


def rehearse(setup: Setup, samples: Samples | None, directory: Path) -> None:
    """Try a round, where components that act in it are a user's own; collective.

    Parameters
    ----------
    setup : Setup
        The objects of the run, which are as before when this returns.
    samples : Samples or None
        The samples of the hosted clients. None loads those of a few.
    directory : Path
        The run directory, which need not exist.

    Raises
    ------
    InputError
        If the first round, or an evaluation around it, fails or returns what it must not.
    """
    communicator = setup.federation.communicator
    sent = communicator.bytes_sent
    if is_users(setup.configuration.exchange.options.get("schedule")):
        agree(communicator, told_as_input()(partial(_check_later_rounds, setup)))
    if not has_own_parts(setup.configuration):
        return
    shards = agree(communicator, told_as_input()(partial(_few_shards, setup, samples)))
    with _undisturbed(setup):
        fails = np.array([float(_fails_with_few(setup, shards))])
        if communicator.max(fails)[0]:
            agree(communicator, partial(_try_with_all, setup, samples, directory))
    communicator.bytes_sent = sent
    at_round(0)


@contextmanager
def _undisturbed(setup: Setup) -> Iterator[None]:
    """Keep the log, and generators from which components of a user may draw, as they are."""
    log = logging.getLogger("mpifed")
    was_disabled, log.disabled = log.disabled, True
    devices = [setup.device] if setup.device.type == "cuda" else []
    own, numpy_own = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = was_disabled
        random.setstate(own)
        np.random.set_state(numpy_own)  # noqa: NPY002


def _fails_with_few(setup: Setup, shards: Shards) -> bool:
    """Return whether the round fails with the clients of ``shards``; not collective."""
    few = shards.client_ids[~setup.federation.unseen[shards.client_ids]]
    if not len(few):
        return False
    options = setup.configuration
    small = _made_anew(
        dataclasses.replace(
            setup,
            configuration=dataclasses.replace(
                options,
                evaluation=dataclasses.replace(options.evaluation, sample=1.0),
                storage=dataclasses.replace(options.storage, state="memory"),
            ),
        ),
        _federation_of(setup.federation, shards),
    )
    began = time.monotonic()
    try:
        with stop_requests_from(lambda: time.monotonic() - began > PATIENCE):
            _play(Engine(small, _OneStep(small.federation, shards), Clock()), few)
    except (KeyboardInterrupt, MemoryError):
        raise
    except (StopRequested, Diverged, PeerDiverged):
        return False
    except BaseException:  # a user's component may raise anything
        return True
    return False


def _try_with_all(setup: Setup, samples: Samples | None, directory: Path) -> None:
    """Run the first round as the run will; collective."""
    anew = _made_anew(setup, setup.federation)
    held = samples_of(setup) if samples is None else samples
    try:
        _play(Engine(anew, held, Clock(), directory))
    except (Diverged, PeerDiverged):  # which the run tells, with its numbers recorded
        return
    except (KeyboardInterrupt, MemoryError, PeerFailure, StopRequested, InputError):
        raise
    except BaseException as error:
        raise InputError(in_own_words(error)) from error


def _play(engine: Engine, few: np.ndarray | None = None) -> None:
    """Go through the first round; with ``few`` among the participants where they can be."""
    engine.prepare()
    engine.remarks()
    engine.appraised()
    engine.advance(None if few is None else _with_few(engine.setup, few))
    engine.agree(False)
    configuration = engine.setup.configuration
    if configuration.evaluation.every == 1 or configuration.rounds == 1:
        engine.appraised()


def _with_few(setup: Setup, few: np.ndarray) -> np.ndarray:
    """Return who takes part in round 1, with these clients, but one where not all ever do."""
    active = taking_part(setup, 1)
    if waits(setup):
        everyone = setup.federation.inclusion == 1
        active[few if everyone or len(few) == 1 else few[:-1]] = True
    return active


def _made_anew(setup: Setup, federation: Federation) -> Setup:
    """Return the objects of a run with an algorithm and an exchange of their own."""
    configuration, about = setup.configuration, setup.dataset.description
    algorithm = make_algorithm(configuration, about, setup.model, setup.horizon, setup.device)
    exchange = make_exchange(configuration, federation, setup.exchange.arrays(), algorithm)
    return dataclasses.replace(setup, federation=federation, exchange=exchange, algorithm=algorithm)


def _federation_of(federation: Federation, shards: Shards) -> Federation:
    """Return the federation as the owner of the clients of ``shards`` alone sees it."""
    ids, n_train = shards.client_ids, np.array(federation.n_train)
    n_train[ids] = shards.train.counts
    owner = np.ones(federation.n_clients, np.int32)
    owner[ids] = 0
    ranks = 2 if len(ids) < federation.n_clients else 1
    return dataclasses.replace(
        federation, communicator=Unheard(ranks, ranks), owner=owner, n_train=n_train
    )


def _few_shards(setup: Setup, samples: Samples | None) -> Shards:
    """Return a few samples of a few clients hosted here; collective where ``samples`` is None."""
    federation = setup.federation
    hosted, is_unseen = federation.hosted, federation.unseen[federation.hosted]
    rows = np.sort([*np.flatnonzero(~is_unseen)[:FEW], *np.flatnonzero(is_unseen)[:1]]).astype(int)
    if samples is None:
        owner = np.ones(federation.n_clients, np.int32)
        owner[hosted[rows]] = 0
        alone = dataclasses.replace(federation, communicator=Unheard(2, 2), owner=owner)
        loaded, rows = dataclasses.replace(setup, federation=alone).load(), np.arange(len(rows))
    else:
        clients = samples.clients(rows)
        loaded, rows = clients.shards, clients.rows
    most = int(np.clip(2 * setup.configuration.local.batch_size, FEWEST, MOST))
    train, val, test = (_cut(each, rows, most) for each in (loaded.train, loaded.val, loaded.test))
    return Shards(loaded.client_ids[rows], train, val, test, setup.dataset.fresh)


def _cut(split: Split, rows: np.ndarray, most: int) -> Split:
    """Return copies of the first samples of some clients."""
    starts, counts = split.offsets[:-1][rows], split.counts[rows].clip(max=most)
    chosen = [np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)]
    samples = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *chosen]))
    samples = samples.to(split.x.device)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Split(split.x[samples], split.y[samples], offsets)


class _OneStep(Held):
    """Samples of clients that take one local step."""

    def clients(self, rows: np.ndarray, effort: np.ndarray | None = None) -> Clients:
        return Clients(self.federation, self.shards, rows, np.full(len(rows), ONE_STEP))
