"""Evaluation between rounds: scores, measures, learnt results and the digest of the state."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from mpifed import state as states
from mpifed.algorithms import returned
from mpifed.algorithms.base import Predictor
from mpifed.config.configuration import ClientWeights
from mpifed.federation.clients import Clients, Draws
from mpifed.io.yaml_files import as_text
from mpifed.local.options import unread
from mpifed.theory.accounting import EPSILON
from mpifed.training import channels
from mpifed.training.asynchronous import STALENESS, waits
from mpifed.training.averages import summarise
from mpifed.training.build import Setup
from mpifed.training.growing import with_growth
from mpifed.training.samples import Samples
from mpifed.training.scores import (
    COLUMNS,
    UNSEEN_COLUMNS,
    VALIDATION_COLUMNS,
    ClientResults,
    score_clients,
    scored_clients,
    task_columns,
)
from mpifed.training.simulated import COLUMN, is_simulated
from mpifed.training.stability import step_warnings


def columns_of(setup: Setup) -> list[str]:
    """Return the columns of this run's metrics.csv, in order."""
    unseen = UNSEEN_COLUMNS if setup.federation.unseen.any() else []
    validates = setup.configuration.evaluation.validates
    validation = VALIDATION_COLUMNS if validates else []
    return [
        *COLUMNS,
        *([COLUMN] if is_simulated(setup) else []),
        *([] if waits(setup) else STALENESS),
        *([EPSILON] if setup.configuration.privacy.is_asked_for else []),
        *unseen,
        *validation,
        *task_columns(setup.model, setup.algorithm.deploys_mixtures, validates),
        *setup.algorithm.columns,
    ]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a state."""

    results: ClientResults | None
    distance: float | None
    measured: dict[str, float | None]
    learnt: dict[str, np.ndarray]

    def row(self, client_weights: ClientWeights = "scored") -> dict[str, Any]:
        """Return the values of a row of metrics.csv by column; on rank 0."""
        assert self.results is not None
        return {
            **summarise(self.results, client_weights),
            "consensus_distance": self.distance,
            **self.measured,
        }


def evaluate(setup: Setup, samples: Samples, state: states.RunState, draws: Draws) -> Evaluation:
    """Evaluate the state after a round."""
    training = training_of(setup, samples)
    shared, trained = states.shared_tensors(state.algorithm), of_trained(setup, state, training)
    return Evaluation(
        score(setup, samples, state, training, trained, draws),
        setup.exchange.consensus_distance(shared) if shared else None,
        measure(setup, trained, training, draws),
        _learnt(setup, trained),
    )


def training_of(setup: Setup, samples: Samples) -> Clients:
    """Return the clients hosted here that take part in training."""
    federation = setup.federation
    return samples.among_hosted(np.flatnonzero(~federation.unseen[federation.hosted]))


def unseen_of(setup: Setup, samples: Samples) -> Clients:
    """Return the clients hosted here that take no part in training."""
    federation = setup.federation
    return samples.among_hosted(np.flatnonzero(federation.unseen[federation.hosted]))


def remarks(setup: Setup, state: states.RunState, samples: Samples) -> list[str]:
    """Return lines for the log: the algorithm's own, and options of ``local`` that it ignores."""
    algorithm = setup.algorithm
    training = training_of(setup, samples)
    own = algorithm.remarks(state.algorithm, training, setup.exchange)
    own = returned.checked_remarks(algorithm, own)
    ours = [*_unread(setup), *_unread_own(setup), *_of_sample(setup), *channels.remarks(setup)]
    return [*ours, *own, *step_warnings(setup, training)]


def _of_sample(setup: Setup) -> list[str]:
    """Return a line that says of how many clients the scores are, where it is not all."""
    share, federation = setup.configuration.evaluation.sample, setup.federation
    if share == 1:
        return []
    return [
        f"evaluation.sample is {share:g}: scores are averages over {count_scored(setup)} of the "
        f"{federation.n_clients} clients, drawn for each evaluation"
    ]


def _unread(setup: Setup) -> list[str]:
    """Return a line for each option of ``local`` that is set but not read by the algorithm."""
    read = setup.algorithm.local_options
    if read is None:
        return []
    name, what = setup.configuration.algorithm.name, ", ".join(read) or "nothing"
    return [
        f"local.{key}={value} changes nothing: of the section local, {name} reads {what}"
        for key, value in unread(setup.configuration.local, read).items()
    ]


def _unread_own(setup: Setup) -> list[str]:
    """Return a line for each option of the algorithm that is set but made moot by others."""
    chosen, name = setup.configuration.algorithm.options, setup.configuration.algorithm.name
    defaults = inspect.signature(type(setup.algorithm).__init__).parameters
    return [
        f"algorithm.{key}={as_text(chosen[key])} changes nothing: {name} reads it with "
        f"algorithm.{reader}"
        for key, reader in setup.algorithm.unread_options.items()
        if key in chosen and chosen[key] != defaults[key].default
    ]


def count_scored(setup: Setup) -> int:
    """Return how many clients an evaluation scores."""
    share, seed = setup.configuration.evaluation.sample, setup.configuration.seed
    return len(scored_clients(setup.federation, share, Draws(seed, 0)))


def score(
    setup: Setup,
    samples: Samples,
    state: states.RunState,
    training: Clients,
    trained: Any,
    draws: Draws,
) -> ClientResults | None:
    """Score clients with the predictors of this round."""
    algorithm, federation = setup.algorithm, setup.federation
    options, is_rows = setup.configuration.evaluation, setup.exchange.shared_is_rows
    if options.sample < 1:
        ids = scored_clients(federation, options.sample, draws)
        own = ids[federation.owner[ids] == federation.communicator.rank]
        here = np.searchsorted(federation.hosted, own)
    else:
        ids, here = None, np.arange(len(federation.hosted))
    is_unseen = federation.unseen[federation.hosted[here]]

    checked = partial(returned.checked_predictor, algorithm)
    size = setup.model.n_parameters

    def served() -> Iterator[tuple[Clients, Predictor]]:
        rows = here[~is_unseen]
        for block in samples.blocks(rows):
            clients, own = training, trained
            if len(rows[block]) < len(training):
                clients, chosen = samples.clients(rows[block]), torch.from_numpy(rows[block])
                own = states.select(state.algorithm, chosen, is_rows)
            deployed = algorithm.deploy(own, clients, draws)
            yield clients, checked("deploy", deployed, len(clients), size)
        if federation.unseen.any():
            unseen = samples.among_hosted(here[is_unseen])
            adapted = algorithm.adapt(state.algorithm, unseen, setup.exchange, draws)
            predictor = checked("adapt", adapted, len(unseen), size)
            if options.unseen_shares and draws.round == setup.configuration.rounds:
                predictor = with_growth(setup, state.algorithm, unseen, predictor, draws)
            yield unseen, predictor

    return score_clients(federation, setup.model, served(), options.validates, ids)


def measure(setup: Setup, trained: Any, training: Clients, draws: Draws) -> dict[str, float | None]:
    """Return what the algorithm adds to metrics.csv, by column."""
    measured = setup.algorithm.measure(trained, training, setup.exchange, draws)
    return returned.checked_measures(setup.algorithm, measured)


def _learnt(setup: Setup, trained: Any) -> dict[str, np.ndarray]:
    """Return the results of the algorithm that belong to no client, by name."""
    made = setup.algorithm.learnt(trained, setup.exchange)
    found = returned.checked_learnt(setup.algorithm, made)
    return {name: torch.as_tensor(part).detach().cpu().numpy() for name, part in found.items()}


def of_trained(setup: Setup, state: states.RunState, training: Clients) -> Any:
    """Return the algorithm's state without the rows of unseen clients."""
    if len(training) == len(setup.federation.hosted):
        return state.algorithm
    rows = torch.from_numpy(training.rows)
    return states.select(state.algorithm, rows, setup.exchange.shared_is_rows)
