"""What a run shows of itself between rounds: scores, measures, what was learnt, and its digest.

All of it is collective, and none of it changes the run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mpifed import state as states
from mpifed.config.configuration import ClientWeights
from mpifed.federation.clients import Clients, Draws
from mpifed.local.options import unread
from mpifed.training.build import Setup
from mpifed.training.run_directory import COLUMNS, UNSEEN_COLUMNS
from mpifed.training.scores import (
    VALIDATION_COLUMNS,
    ClientResults,
    score_clients,
    summarise,
    task_columns,
)


def columns_of(setup: Setup) -> list[str]:
    """The columns of this run's metrics.csv."""
    unseen = UNSEEN_COLUMNS if setup.federation.unseen.any() else []
    validates = setup.configuration.evaluation.validates
    validation = VALIDATION_COLUMNS if validates else []
    return [
        *COLUMNS,
        *unseen,
        *validation,
        *task_columns(setup.model, setup.algorithm.deploys_mixtures, validates),
        *setup.algorithm.columns,
    ]


@dataclass(frozen=True)
class Appraisal:
    """``results`` of every client, on rank 0 alone; ``learnt`` and ``measured`` are the method's.

    ``digest`` is that of the state, on rank 0; ``distance`` the consensus distance under gossip.
    """

    results: ClientResults | None
    digest: str | None
    distance: float | None
    measured: dict[str, float | None]
    learnt: dict[str, np.ndarray]

    def row(self, client_weights: ClientWeights = "scored") -> dict[str, Any]:
        """What a row of metrics.csv has of it, averages by ``client_weights``; on rank 0."""
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
    """The state after a round; ``training`` and ``unseen`` are the hosted clients of each kind."""
    shared, trained = states.shared_tensors(state.algorithm), of_trained(setup, state, training)
    return Appraisal(
        score(setup, state, trained, training, unseen, draws),
        digest(setup, state),
        setup.exchange.consensus_distance(shared) if shared else None,
        measure(setup, trained, training, draws),
        _learnt(setup, trained),
    )


def digest(setup: Setup, state: states.RunState) -> str | None:
    """SHA-256 over the server's and each client's, in client order; on rank 0."""
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
    """What the algorithm says of itself before its rounds begin, and what it leaves unread."""
    own = setup.algorithm.remarks(state.algorithm, training, setup.exchange)
    return [*_unread(setup), *own]


def _unread(setup: Setup) -> list[str]:
    """A line for each option of ``local`` that is set and that the algorithm does not read."""
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
    """Every client's scores under the predictors of this round; on rank 0."""
    served = [(training, setup.algorithm.deploy(trained, training, draws))]
    if setup.federation.unseen.any():
        adapted = setup.algorithm.adapt(state.algorithm, unseen, setup.exchange, draws)
        served.append((unseen, adapted))
    return score_clients(
        setup.federation, setup.model, served, setup.configuration.evaluation.validates
    )


def measure(setup: Setup, trained: Any, training: Clients, draws: Draws) -> dict[str, float | None]:
    """What the algorithm adds to metrics.csv, from the state ``of_trained`` clients."""
    return dict(setup.algorithm.measure(trained, training, setup.exchange, draws))


def _learnt(setup: Setup, trained: Any) -> dict[str, np.ndarray]:
    """What the algorithm shows of its state in clients.h5, by name."""
    found = setup.algorithm.learnt(trained, setup.exchange)
    return {name: torch.as_tensor(part).detach().cpu().numpy() for name, part in found.items()}


def of_trained(setup: Setup, state: states.RunState, training: Clients) -> Any:
    """The algorithm's state, without the rows of unseen clients."""
    if len(training) == len(setup.federation.hosted):
        return state.algorithm
    rows = torch.from_numpy(training.rows)
    return states.select(state.algorithm, rows, setup.exchange.shared_is_rows)
