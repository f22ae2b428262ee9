"""The content of summary.json."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from mpifed.theory.accounting import EPSILON
from mpifed.training.build import Setup
from mpifed.training.engine import Engine
from mpifed.training.evaluation import count_scored
from mpifed.training.scores import VALIDATION_COLUMNS
from mpifed.training.simulated import COLUMN

# Keys that tell of the computer and of the ranks; all others follow from the configuration.
MEASURED = frozenset(
    ("ranks", "seconds", "peak_memory_bytes", "imbalance", "mpi_bytes_sent", "versions")
)


def of_diverged(setup: Setup, engine: Engine) -> dict[str, Any]:
    """Return the content of summary.json of a run that diverged; not collective."""
    configuration = setup.configuration
    return {
        "status": "diverged",
        "experiment": configuration.experiment,
        "algorithm": configuration.algorithm.name,
        "rounds": engine.round,
        "ranks": setup.federation.communicator.job_size,
        "clients": configuration.clients,
    }


def summary_of(setup: Setup, engine: Engine, status: str) -> dict[str, Any]:
    """Return the content of summary.json but the versions; collective."""
    configuration, communicator = setup.configuration, setup.federation.communicator
    seconds = dict(engine.clock.seconds)
    seconds["total"] = seconds["startup"] + seconds["data"] + engine.elapsed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    slowest = communicator.max(np.array([*seconds.values(), float(peak)]))
    local = communicator.gather_object(seconds["local"]) or [0.0]
    sent = int(communicator.sum(np.array([communicator.bytes_sent], np.int64))[0])
    digest, scores, ledger = engine.digest(), engine.scores, setup.exchange.ledger
    return {
        "status": status,
        "experiment": configuration.experiment,
        "algorithm": configuration.algorithm.name,
        "rounds": engine.round,
        "ranks": communicator.job_size,
        "clients": configuration.clients,
        "test_accuracy": scores.get("test_accuracy"),
        "test_accuracy_p10": scores.get("test_accuracy_p10"),
        "test_loss": scores.get("test_loss"),
        **{name: scores[name] for name in VALIDATION_COLUMNS if name in scores},
        **({"scored_clients": count_scored(setup)} if configuration.evaluation.sample < 1 else {}),
        "state_digest": digest,
        "seconds": {
            phase: round(float(value), 3)
            for phase, value in zip(seconds, slowest[:-1], strict=True)
        },
        "peak_memory_bytes": int(slowest[-1]),
        "imbalance": round(max(local) * len(local) / sum(local), 4) if sum(local) else None,
        "mpi_bytes_sent": sent,
        "up_bits": ledger.up_bits,
        "down_bits": ledger.down_bits,
        **({COLUMN: engine.simulated.seconds} if engine.simulated is not None else {}),
        **({EPSILON: engine.accountant(engine.round)} if engine.accountant is not None else {}),
        "predicted_contraction": _predicted_contraction(setup, engine),
    }


def _predicted_contraction(setup: Setup, engine: Engine) -> dict[str, float | int] | None:
    """Return the factor of averaging alone on ``consensus_distance``, where that is recorded."""
    if engine.scores.get("consensus_distance") is None:
        return None
    return setup.exchange.predicted_contraction(engine.round)
