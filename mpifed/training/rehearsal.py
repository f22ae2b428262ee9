"""A round with a user's own components before anything is written, so that mistakes are
told then.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpifed.components.registry import load
from mpifed.data.base import Shards
from mpifed.errors import (
    InputError,
    PeerFailure,
    StopRequested,
    text_of,
)
from mpifed.exchange.gossip import Gossip
from mpifed.federation.clients import Federation
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Alone
from mpifed.training.asynchronous import taking_part, waits
from mpifed.training.build import Setup
from mpifed.training.clock import Clock
from mpifed.training.engine import Engine
from mpifed.training.few_clients import FEW, OneStep, federation_of, few_shards
from mpifed.training.mistakes import in_own_words, told_as_input
from mpifed.training.not_finite import play_finitely
from mpifed.training.own_parts import has_own_parts, is_users
from mpifed.training.parts import make_algorithm, make_exchange
from mpifed.training.repeated import check_data, wrong_schedule
from mpifed.training.samples import Samples, samples_of
from mpifed.watchdog.heartbeat import at_round
from mpifed.watchdog.throwaway import Outcome, in_throwaway
from topologies.inputs import within

log = logging.getLogger("mpifed")

# What is said where nothing is known of components.
NOT_TRIED = (
    "components of your own were not tried before round 1: it took too long, or would have changed "
    "files or other programs"
)

# What is said where nothing is known of kernels.
KERNELS_NOT_TRIED = (
    "whether results depend on which clients share a rank was not tried with components of your "
    "own: it took too long, or would have changed files or other programs"
)

# How the remark on generators begins whose numbers depend on what else a rank has done.
DRAWS = "warning: components of your own draw from a generator of the whole process"

# Seconds that a copy may compute, and take, with a few clients and with all.
FEW_SECONDS, ALL_SECONDS = (5.0, 20.0), (60.0, 120.0)


def _check_schedule(setup: Setup) -> None:
    """Refuse a user's schedule whose matrix of one of the first rounds is none; on rank 0."""
    if setup.federation.communicator.rank == 0 and isinstance(setup.exchange, Gossip):
        name = setup.configuration.exchange.options["schedule"].name
        about = setup.configuration.rounds, name, within(load(name, "exchange.schedule.name"))
        of_run = partial(_told, wrong_schedule, setup.exchange.schedule, *about)
        _refuse(in_throwaway(of_run, *FEW_SECONDS))


def without_own_failures(test: Callable[[], str | None], setup: Setup) -> str | None:
    """Return what a test of this computer says; not collective."""
    if setup.device.type != "cpu" or not has_own_parts(setup.configuration):
        return test()
    found = in_throwaway(partial(_unless_it_fails, test), *ALL_SECONDS)
    return found.said if found.returned else KERNELS_NOT_TRIED


def _unless_it_fails(test: Callable[[], str | None]) -> str | None:
    torch.set_num_threads(1)  # threads of a pool are not in the copy
    try:
        return test()
    except Exception:  # a user's component may raise anything
        return None


def _refuse(found: Outcome) -> None:
    if found.said is not None:
        raise InputError(found.said)


def rehearse(setup: Setup, samples: Samples | None, directory: Path) -> list[str]:
    """Try a round, where components that act in it are a user's own; collective."""
    communicator = setup.federation.communicator
    sent = communicator.bytes_sent
    if is_users(setup.configuration.exchange.options.get("schedule")):
        agree(communicator, told_as_input()(partial(_check_schedule, setup)))
    if not has_own_parts(setup.configuration) or setup.device.type != "cpu":
        return []
    if is_users(setup.configuration.data):
        check_data(setup, samples)
    cut = partial(few_shards, setup, samples, is_users(setup.configuration.model))
    shards = agree(communicator, told_as_input()(cut))
    few = in_throwaway(partial(_told, _with_few, setup, shards), *FEW_SECONDS)
    remarks = [] if few.returned else [NOT_TRIED]
    if (said := few.said or "").startswith(DRAWS):
        few, remarks = Outcome(True, None), [said]
    if communicator.max(np.array([float(few.said is not None)]))[0]:
        if isinstance(communicator, Alone):
            remarks += agree(communicator, partial(_refuse_if_wrong, setup, samples, few))
        else:
            with _undisturbed():
                agree(communicator, partial(_try_with_all, setup, samples, directory))
    communicator.bytes_sent = sent
    at_round(0)
    return remarks


def _refuse_if_wrong(setup: Setup, samples: Samples | None, few: Outcome) -> list[str]:
    """Raise ``InputError`` where the first round fails with all clients, which are hosted here."""
    held = told_as_input()(samples_of)(setup) if samples is None else samples
    found = Outcome(False, None)
    if setup.configuration.storage.state == "memory":
        found = in_throwaway(partial(_told, _with_all, setup, held), *ALL_SECONDS)
    _refuse(found)
    return [] if found.returned else [f"warning: a round with {FEW} clients fails: {few.said}"]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the log, and generators from which components of a user may draw, as they are."""
    was_disabled, log.disabled = log.disabled, True
    own, numpy_own = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = was_disabled
        random.setstate(own)
        np.random.set_state(numpy_own)  # noqa: NPY002


def _with_few(setup: Setup, shards: Shards) -> str | None:
    """Go through the first round with the clients of ``shards``; not collective."""
    few = shards.client_ids[~setup.federation.unseen[shards.client_ids]]
    if not len(few):
        return None
    before = _of_generators()
    options = setup.configuration
    small = dataclasses.replace(
        setup,
        configuration=dataclasses.replace(
            options,
            evaluation=dataclasses.replace(options.evaluation, sample=1.0),
            storage=dataclasses.replace(options.storage, state="memory"),
        ),
    )
    federation = federation_of(setup.federation, shards)
    held = OneStep(federation, shards)
    play_finitely(
        lambda given: Engine(_made_anew(given, federation), held, Clock()),
        lambda engine: _play(engine, few),
        small,
    )
    after = _of_generators()
    drawn = " and ".join(name for name in before if before[name] != after[name])
    if not drawn:
        return None
    return (
        f"{DRAWS} ({drawn}): their numbers differ between numbers of ranks and after a resume; "
        "draws.stream(purpose, client) makes a generator of (seed, purpose, round, client)"
    )


def _of_generators() -> dict[str, object]:
    """Return the states of the generators that code draws from which names none."""
    own = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch's": torch.get_rng_state().numpy().tobytes(),
        "numpy's": (kind, np.asarray(keys).tobytes(), *rest),
        "Python's": own,
    }


def _with_all(setup: Setup, samples: Samples) -> str | None:
    """Go through the first round with all clients, which are hosted here."""
    play_finitely(
        lambda given: Engine(_made_anew(given, given.federation), samples, Clock()), _play, setup
    )
    return None


def _told(action: Callable[..., str | None], *arguments: Any) -> str | None:
    """Return why ``action`` fails, in a copy of the process."""
    torch.set_num_threads(1)  # threads of a pool are not in the copy
    try:
        return action(*arguments)
    except (StopRequested, MemoryError):
        return None
    except InputError as error:
        return text_of(error)
    except BaseException as error:  # a user's component may raise anything
        return in_own_words(error)


def _try_with_all(setup: Setup, samples: Samples | None, directory: Path) -> None:
    """Run the first round as the run will; collective."""
    held = samples_of(setup) if samples is None else samples

    def begin(given: Setup) -> Engine:
        return Engine(_made_anew(given, given.federation), held, Clock(), directory)

    try:
        play_finitely(begin, _play, setup)
    except (KeyboardInterrupt, MemoryError, PeerFailure, StopRequested, InputError):
        raise
    except BaseException as error:
        raise InputError(in_own_words(error)) from error


def _play(engine: Engine, few: np.ndarray | None = None) -> None:
    """Go through the first round; with ``few`` among the participants where they can be."""
    engine.prepare()
    engine.remarks()
    engine.appraised()
    engine.advance(None if few is None else _and_few(engine.setup, few))
    engine.agree(False)
    configuration = engine.setup.configuration
    if configuration.evaluation.every == 1 or configuration.rounds == 1:
        engine.appraised()


def _and_few(setup: Setup, few: np.ndarray) -> np.ndarray:
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
