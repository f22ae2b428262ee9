"""Evaluation between rounds: scores, measures, learnt results and the digest of the state.

All functions but ``columns_of`` are collective, and none changes the run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mpifed import state as states
from mpifed.algorithms import returned
from mpifed.config.configuration import ClientWeights
from mpifed.federation.clients import Clients, Draws
from mpifed.local.options import unread
from mpifed.training.build import Setup
from mpifed.training.growing import with_growth
from mpifed.training.run_directory import COLUMNS, UNSEEN_COLUMNS
from mpifed.training.scores import (
    VALIDATION_COLUMNS,
    ClientResults,
    score_clients,
    summarise,
    task_columns,
)
from mpifed.training.simulated import COLUMN, is_simulated
from mpifed.training.stability import step_warnings


def columns_of(setup: Setup) -> list[str]:
    """Return the columns of this run's metrics.csv, in order.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    """
    unseen = UNSEEN_COLUMNS if setup.federation.unseen.any() else []
    validates = setup.configuration.evaluation.validates
    validation = VALIDATION_COLUMNS if validates else []
    return [
        *COLUMNS,
        *([COLUMN] if is_simulated(setup) else []),
        *unseen,
        *validation,
        *task_columns(setup.model, setup.algorithm.deploys_mixtures, validates),
        *setup.algorithm.columns,
    ]


@dataclass(frozen=True)
class Appraisal:
    """The evaluation of a state.

    Attributes
    ----------
    results : ClientResults or None
        Scores of every client, on rank 0.
    digest : str or None
        SHA-256 of the state, on rank 0.
    distance : float or None
        The consensus distance under gossip; see ``Exchange.consensus_distance``.
    measured : dict of str to (float or None)
        Columns that the algorithm adds to metrics.csv.
    learnt : dict of str to ndarray
        Results of the algorithm that belong to no client.
    """

    results: ClientResults | None
    digest: str | None
    distance: float | None
    measured: dict[str, float | None]
    learnt: dict[str, np.ndarray]

    def row(self, client_weights: ClientWeights = "scored") -> dict[str, Any]:
        """Return the values of a row of metrics.csv by column; on rank 0.

        Parameters
        ----------
        client_weights : {'scored', 'train', 'uniform'}
            Weights of averages over clients; see ``summarise``.
        """
        assert self.results is not None
        return {
            **summarise(self.results, client_weights),
            "consensus_distance": self.distance,
            "state_digest": self.digest,
            **self.measured,
        }


def appraise(
    setup: Setup, state: states.RunState, training: Clients, unseen: Clients, draws: Draws
) -> Appraisal:
    """Evaluate the state after a round.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    state : RunState
        The state after the round.
    training, unseen : Clients
        The hosted clients of each kind.
    draws : Draws
        The random numbers of this evaluation.
    """
    shared, trained = states.shared_tensors(state.algorithm), of_trained(setup, state, training)
    return Appraisal(
        score(setup, state, trained, training, unseen, draws),
        digest(setup, state),
        setup.exchange.consensus_distance(shared) if shared else None,
        measure(setup, trained, training, draws),
        _learnt(setup, trained),
    )


def digest(setup: Setup, state: states.RunState) -> str | None:
    """Return the SHA-256 over the digests of the server's and each client's state, in order.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    state : RunState
        The state of the server and of all hosted clients.

    Returns
    -------
    str or None
        64 hexadecimal digits on rank 0, independent of the number of ranks; None elsewhere.
    """
    is_rows, federation = setup.exchange.shared_is_rows, setup.federation
    own = states.client_digests(state, is_rows, len(federation.hosted))
    gathered = federation.communicator.gather_object(own)
    if gathered is None:
        return None
    total = hashlib.sha256(states.server_digest(state, is_rows))
    by_client: list[bytes] = [b""] * federation.n_clients
    for rank, digests in enumerate(gathered):
        for client, found in zip(federation.hosted_of(rank), digests, strict=True):
            by_client[client] = found
    for found in by_client:
        total.update(found)
    return total.hexdigest()


def remarks(setup: Setup, state: states.RunState, training: Clients) -> list[str]:
    """Return lines for the log: the algorithm's own, and options of ``local`` that it ignores.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    state : RunState
        The state before the first round of this part.
    training : Clients
        The hosted clients in training.
    """
    algorithm = setup.algorithm
    own = algorithm.remarks(state.algorithm, training, setup.exchange)
    own = returned.checked_remarks(algorithm, own)
    return [*_unread(setup), *own, *step_warnings(setup, training)]


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


def score(
    setup: Setup,
    state: states.RunState,
    trained: Any,
    training: Clients,
    unseen: Clients,
    draws: Draws,
) -> ClientResults | None:
    """Score every client with the predictors of this round.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    state : RunState
        The state, from which unseen clients adapt.
    trained : Any
        The algorithm's state of the clients in ``training``; see ``of_trained``.
    training, unseen : Clients
        The hosted clients of each kind.
    draws : Draws
        The random numbers of this evaluation.

    Returns
    -------
    ClientResults or None
        On rank 0; None elsewhere.
    """
    algorithm = setup.algorithm
    deployed = algorithm.deploy(trained, training, draws)
    served = [(training, returned.checked_predictor(algorithm, "deploy", deployed))]
    if setup.federation.unseen.any():
        adapted = algorithm.adapt(state.algorithm, unseen, setup.exchange, draws)
        predictor = returned.checked_predictor(algorithm, "adapt", adapted)
        configuration = setup.configuration
        if configuration.evaluation.unseen_shares and draws.round == configuration.rounds:
            predictor = with_growth(setup, state.algorithm, unseen, predictor, draws)
        served.append((unseen, predictor))
    return score_clients(
        setup.federation, setup.model, served, setup.configuration.evaluation.validates
    )


def measure(setup: Setup, trained: Any, training: Clients, draws: Draws) -> dict[str, float | None]:
    """Return what the algorithm adds to metrics.csv, by column.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    trained : Any
        The algorithm's state of the clients in ``training``; see ``of_trained``.
    training : Clients
        The hosted clients in training.
    draws : Draws
        The random numbers of this evaluation.
    """
    measured = setup.algorithm.measure(trained, training, setup.exchange, draws)
    return returned.checked_measures(setup.algorithm, measured)


def _learnt(setup: Setup, trained: Any) -> dict[str, np.ndarray]:
    """Return the results of the algorithm that belong to no client, by name."""
    made = setup.algorithm.learnt(trained, setup.exchange)
    found = returned.checked_learnt(setup.algorithm, made)
    return {name: torch.as_tensor(part).detach().cpu().numpy() for name, part in found.items()}


def of_trained(setup: Setup, state: states.RunState, training: Clients) -> Any:
    """Return the algorithm's state without the rows of unseen clients.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    state : RunState
        The state of all hosted clients.
    training : Clients
        The hosted clients in training.
    """
    if len(training) == len(setup.federation.hosted):
        return state.algorithm
    rows = torch.from_numpy(training.rows)
    return states.select(state.algorithm, rows, setup.exchange.shared_is_rows)
