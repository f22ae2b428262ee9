"""Runs in which few clients have a model: on quadratics, on ranks, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from engine_runs import engine_of, prepared
from gossip_exchange import Descent, exchange_of
from on_ranks import same_after_a_resume, unlike_one_rank
from quadratics import SEED, N, gradients

from mpifed.errors import InputError

TELEPORT = {"name": "teleport", "active": 3}
WALK = {"name": "random_walk"}


@pytest.mark.parametrize("schedule", [TELEPORT, WALK], ids=lambda given: given["name"])
def test_models_descend_along_the_gradients_of_their_holders(schedule):
    """y <- V (y - eta g(y)) for the models y alone, whoever has them."""
    given = {"topology": None, "weights": None} if schedule is TELEPORT else {}
    exchange = exchange_of("none", schedule=schedule, **given)
    everyone = np.ones(N, bool)
    descent = Descent(exchange, 0.05, present=lambda k: exchange.participants(k, everyone))
    models = np.zeros((len(exchange.schedule.holders(1)), 3))
    for k in range(1, 31):
        here = exchange.schedule.holders(k)
        x = np.zeros((N, 3))
        x[here] = models
        mixing = exchange.schedule.inner.matrix(k).to_dense()
        models = mixing @ (models - 0.05 * gradients(x)[here])
        after = descent.go(1)
        assert after[exchange.schedule.holders(k + 1)] == pytest.approx(models, abs=1e-12)
        taking_part = exchange.participants(k, everyone)
        assert np.flatnonzero(taking_part).tolist() == exchange.schedule.taking_part(k).tolist()
    assert exchange.seed == SEED


def gossip(schedule):
    given = {"name": "gossip", "schedule": schedule}
    if schedule is WALK:
        given |= {"topology": "ring", "weights": "metropolis_hastings"}
    return given


def test_only_what_moves_is_sent():
    engine = prepared("fedavg", gossip({"name": "teleport", "active": 1}))
    engine.advance()
    ledger, size = engine.setup.exchange.ledger, engine.setup.algorithm.payload()
    first, second = (engine.setup.exchange.schedule.holders(k) for k in (1, 2))
    assert ledger.up_floats == size * (first != second).sum()
    assert engine.active == len({*first.tolist(), *second.tolist()})


REFUSED = [
    ({"participation": 0.5}, {}, r"participation.* 0\.5.*'teleport'.* 1\.0"),
    (
        {"on_divergence": "drop"},
        {},
        r"on_divergence.*'drop'.*'teleport'",
    ),
    (
        {"compute": {"seconds": 1.0}},
        {"asynchrony": "wait_free"},
        r"exchange\.asynchrony.*'wait_free'.*'teleport'",
    ),
    ({}, {"schedule": {**TELEPORT, "drop_nodes": 0.1}}, r"exchange\.schedule\.drop_nodes.* 0\.1"),
    ({}, {"correction": "tracking"}, "exchange.correction.*'tracking'.*push_sum"),
    ({}, {"schedule": {**TELEPORT, "active": 9}}, r"teleport.*active.* 9.* 4.*\[1, 4\]"),
]


@pytest.mark.parametrize(("given", "exchange", "words"), REFUSED)
def test_what_loses_models_is_refused(given, exchange, words):
    with pytest.raises(InputError, match=words):
        engine_of("fedavg", {**gossip(TELEPORT), **exchange}, **given)


def of_ranks(schedule):
    given = {f"exchange.{key}": value for key, value in gossip(schedule).items()}
    given["exchange"] = given.pop("exchange.name")
    small = {"clients": 7, "rounds": 4, "data.n_test": 20, "data.dimension": 12}
    return {**small, "evaluation.every": 2, "checkpoint.every": 2, **given}


@pytest.mark.mpi
@pytest.mark.parametrize("schedule", [TELEPORT, WALK], ids=lambda given: given["name"])
def test_it_is_the_same_on_these_ranks_and_after_a_resume(schedule, tmp_path):
    assert unlike_one_rank(of_ranks(schedule), tmp_path) == []
    assert same_after_a_resume(of_ranks(schedule), tmp_path)
