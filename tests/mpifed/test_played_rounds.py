"""Rounds that one rank of many plays, in which some clients take no part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from on_ranks import SMALL

from mpifed.config.configuration import resolve
from mpifed.config.experiments import apply_overrides, read_experiment
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Alone
from mpifed.mpi.played import Operation, Played
from mpifed.state import tensors
from mpifed.training import played_rounds
from mpifed.training.forecast import forecast
from mpifed.training.network import Network
from mpifed.training.played_rounds import Measured, loads_of, measured, played, traded, turn

FAST = Network(latency=1e-6, overhead=1e-6, bandwidth=1e10)


def configuration(**overrides):
    return resolve(apply_overrides(read_experiment("synthetic-fedem"), {**SMALL, **overrides}))


@pytest.mark.parametrize("algorithm", ["fedem", "fedavg", "scaffold", "ditto", "mocha", "fedmm"])
def test_a_rank_without_participants_is_played(algorithm, monkeypatch):
    monkeypatch.setattr(played_rounds, "ROUNDS", 3)
    experiment = "fedmm-homogeneous" if algorithm == "fedmm" else "synthetic-fedem"
    given_ = {"clients": 20, "participation": 0.05, "rounds": 50}
    if algorithm != "fedmm":
        given_ = {**SMALL, "local.momentum": 0, **given_, "algorithm": algorithm}
    made = resolve(apply_overrides(read_experiment(experiment), given_))
    engine, rank = played(made, 20, 20)
    found = measured(engine, rank)
    assert found.busiest > 0 and found.average > 0
    assert len(found.operations) == len(found.idle) == 3
    for _, tensor, _ in tensors(engine.state, engine.setup.exchange.shared_is_rows):
        assert np.isfinite(tensor.numpy()).all()


@pytest.mark.parametrize("participation", [{"name": "bernoulli", "p": 0.02}, 0.3])
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_forecast_of_few_participants_is_finite(participation, exchange, monkeypatch):
    monkeypatch.setattr(played_rounds, "ROUNDS", 2)
    made = configuration(clients=30, participation=participation, exchange=exchange)
    for ranks in (1, 2, 30):
        one = forecast(made, ranks, 8, 8, FAST)
        assert 0 < one.work <= one.total < 60
        assert one.moved >= 0


def test_a_round_is_played_again_without_participants():
    engine, rank = played(configuration(clients=12, participation=0.25), 12, 12)
    for _ in range(5):
        one, idle = turn(engine, rank)
        assert one.participants == 1 and idle.participants == 0
        assert one.own > 0 == idle.own
        assert one.operations == idle.operations
    assert engine.round == 5
    assert not rank._kept and not rank._repeated


def test_every_round_is_played_as_it_is_where_all_take_part():
    engine, rank = played(configuration(clients=12), 4, 4)
    one, idle = turn(engine, rank)
    assert idle is None and one.participants == len(engine.setup.federation.hosted)
    assert rank.answering == 0


@pytest.mark.parametrize("participation", [1.0, 0.25])
def test_a_rank_that_hosts_unseen_clients_alone_is_not_played(participation):
    made = {"clients": 12, "participation": participation, "evaluation.unseen_fraction": 0.75}
    engine, rank = played(configuration(**made), 12, 12)
    federation = engine.setup.federation
    assert not federation.unseen[federation.hosted].any()
    loads = np.delete(loads_of(federation, ~federation.unseen), 0)
    own, others = federation.n_train[federation.hosted].sum(), loads[loads > 0]
    if participation < 1:
        assert own >= others.max()
    else:
        mean = np.mean([own, *others])
        assert abs(own - mean) <= np.abs(others - mean).min()
    turn(engine, rank)


def test_what_a_round_sends_is_a_mean_over_rounds(monkeypatch):
    monkeypatch.setattr(played_rounds, "ROUNDS", 8)
    made = {"clients": 60, "exchange": "gossip", "exchange.topology": "ring"}
    whole, half = (
        forecast(configuration(**made, participation=share), 30, 30, 30, FAST).moved
        for share in (1.0, 0.5)
    )
    # Two neighbours elsewhere get a row each, where both they and the sender take part.
    assert 0 < half < whole
    rank = Played(30, 30)
    monkeypatch.setattr("mpifed.training.forecast.measured", lambda *_: alternating(rank))
    one = forecast(configuration(clients=60), 30, 30, 30, FAST)
    assert one.moved == 50
    assert one.network == pytest.approx((FAST.seconds(LARGE, 30, 30) + 0) / 2)


LARGE = Operation("neighbours", 100, 100, 2)


def alternating(rank):
    return Measured(1e-3, 1e-3, [[LARGE], []], [], 1.0, 2)


def test_seconds_go_with_the_samples_of_the_participants():
    def a_round(seconds, own, most=30.0, mean=10.0):
        return played_rounds._Round(seconds, [], own, most, mean, 1)

    found = played_rounds._together([a_round(5.0, 20.0), a_round(7.0, 30.0)], [a_round(1.0, 0.0)])
    assert found.busiest == pytest.approx(1 + 0.2 * 30)
    assert found.average == pytest.approx(1 + 0.2 * 10)
    assert found.share == pytest.approx(1 / 3)
    # A round in which nobody takes part is over at once.
    rare = played_rounds._together(
        [a_round(5.0, 20.0), a_round(0.0, 0.0, 0.0, 0.0)], [a_round(1.0, 0.0)]
    )
    assert rare.busiest == pytest.approx((1 + 0.2 * 30) / 2)
    # Where all take part nothing is known of a rank without, and seconds go with samples alone.
    whole = played_rounds._together([a_round(6.0, 20.0)], [])
    assert (whole.busiest, whole.average) == (pytest.approx(9.0), pytest.approx(3.0))


@given(
    st.lists(st.integers(1, 100), min_size=2, max_size=30),
    st.integers(2, 8),
    st.randoms(use_true_random=False),
)
def test_the_played_rank_gets_about_as_many_samples_as_the_busiest(n_train, ranks, random):
    owner = np.sort(np.arange(len(n_train)) * min(ranks, len(n_train)) // len(n_train))
    alone = Alone()
    alone.size = ranks
    made = Federation(alone, owner, np.zeros(len(n_train), bool), np.array(n_train))
    active = np.array([random.random() < 0.5 for _ in n_train])
    found = traded(made, active)
    before, after = loads_of(made, active), loads_of(made, found)
    if before[0] == before.max():
        assert np.array_equal(found, active)
        return
    assert after[0] > 0
    own = made.n_train[made.hosted_of(0)]
    assert abs(after[0] - before.max()) <= max(own.max(), before.max() - own.sum())
    busiest = int(before.argmax())
    elsewhere = ~np.isin(owner, [0, busiest])
    assert np.array_equal(found[elsewhere], active[elsewhere])
