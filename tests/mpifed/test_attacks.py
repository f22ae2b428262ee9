"""Attacks: what malicious clients train on and send, and which aggregates bear it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from commands import rows as metrics_of
from on_ranks import SMALL, run, same_after_a_resume, unlike_one_rank_though_resumed
from test_algorithms import CASES, PLAIN, prepared, problem

from mpifed.components.registry import find_algorithm
from mpifed.config.configuration import resolve, to_mapping
from mpifed.errors import InputError
from mpifed.exchange.attacks import attackers
from mpifed.federation.clients import Draws, Federation
from mpifed.mpi.communicator import Alone
from mpifed.testing import run_rounds
from mpifed.training import evaluation

NAMED = {"clients": [1, 3]}


def averaged(attack, exchange="server", **more):
    """The exchange's result of a round in which clients move from zero to their number."""
    engine = prepared("fedavg", exchange, attack=attack, **more)
    n, taking_part = engine.setup.federation.n_clients, np.arange(1, 5)
    channel = engine.setup.channel(1, np.isin(np.arange(n), taking_part))
    moved = torch.arange(1, 5, dtype=torch.float64)[:, None] * torch.ones(4, 3).double()
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    before = torch.zeros(4, 3) if channel.shared_is_rows else torch.zeros(3)
    return channel, channel.average(moved, weights, before.double())


EQUAL = {"clients": 6}


def test_flipped_signs_are_those_of_the_named_clients_alone():
    _, mean = averaged({"name": "sign_flip", "scale": 2.0, **NAMED}, **EQUAL)
    assert mean.tolist() == pytest.approx([(-2 * 1 + 2 - 2 * 3 + 4) / 4] * 3)


def test_a_replaced_model_is_the_mean_where_the_others_do_not_move():
    channel, _ = averaged({"name": "model_replacement", **NAMED}, **EQUAL)
    moved = torch.zeros(4, 3).double()
    moved[[0, 2]] = torch.tensor([[1.0, 2.0, 3.0]]).double()  # clients 1 and 3 of 1 to 4
    start = torch.ones(3).double()
    made = channel.average(start + moved, torch.full((4,), 0.25).double(), start)
    assert made.tolist() == pytest.approx([2, 3, 4])


def test_messages_that_are_sent_to_be_averaged_are_attacked_and_whole_ones_are_not():
    channel, _ = averaged({"name": "sign_flip", **NAMED}, **EQUAL)
    rows = torch.arange(1.0, 5)[:, None]
    assert channel.send(rows)[:, 0].tolist() == [-1, 2, -3, 4]
    assert channel.send(rows, uncompressed=True) is rows
    some = channel.among(np.isin(np.arange(6), [3, 4]))
    assert some.send(rows[2:])[:, 0].tolist() == [-3, 4]


def test_neighbours_receive_what_an_attacker_sends():
    ring = {"name": "gossip", "topology": "complete", "weights": "uniform"}
    _, mixed = averaged({"name": "sign_flip", **NAMED}, ring, **EQUAL)
    present = (-1 + 2 - 3 + 4) / 6  # edges of the two absent return to both ends
    for place, own in enumerate((-1, 2, -3, 4)):
        assert mixed[place].tolist() == pytest.approx([present + own / 3] * 3)


def test_trials_of_first_components_are_attacked_as_rounds_are():
    method = {"name": "fedem", "restarts": 2, "restart_rounds": 1}
    attack = {"name": "sign_flip", "clients": [1], "scale": 1e3}
    honest, attacked = (
        run_rounds(method, rounds=0, attack=each).state.components for each in ("none", attack)
    )
    assert not torch.equal(attacked, honest)


def test_labels_are_reversed_or_exchanged_and_only_for_training():
    plain = prepared("fedavg", "server")
    for options, naive in (
        ({}, lambda y: 1 - y),
        ({"source": 0, "target": 1}, np.ones_like),
    ):
        engine = prepared("fedavg", "server", attack={"name": "label_flip", **NAMED, **options})
        own, other = (each.shards.among_hosted(np.arange(4)).shards for each in (engine, plain))
        for client in range(4):
            y = other.train.of_client(client).y.numpy()
            wanted = naive(y) if client in NAMED["clients"] else y
            assert np.array_equal(own.train.of_client(client).y, wanted)
            assert np.array_equal(own.test.of_client(client).y, other.test.of_client(client).y)
        assert torch.equal(own.train.x, other.train.x)


def test_attackers_are_scored_on_their_true_labels():
    attacked = prepared("fedavg", "server", attack={"name": "label_flip", **NAMED})
    plain = prepared("fedavg", "server")
    found = [
        evaluation.evaluate(engine.setup, engine.shards, engine.state, Draws(0, 0)).results
        for engine in (attacked, plain)
    ]
    assert np.array_equal(found[0].train_accuracy, found[1].train_accuracy)
    assert np.array_equal(found[0].train_loss, found[1].train_loss)


def test_a_fraction_is_drawn_once_from_the_seed():
    owner = np.zeros(40, int)
    where = Federation(Alone(), owner, np.arange(40) < 10, owner + 1)
    section = resolve({**PLAIN, "attack": {"name": "sign_flip", "fraction": 0.2}}).attack
    found = [attackers(section, where, seed).who for seed in (0, 0, 1)]
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    assert all(who.sum() == 6 and not who[:10].any() for who in found)


RUN = {
    "algorithm": "fedavg",
    "data": {"name": "digits", "partition": "iid"},
    "clients": 10,
    "rounds": 10,
    "evaluation.every": 10,
    "local": {"lr": 0.1, "batch_size": 32},
}


def accuracy(tmp_path, name, **more):
    run("synthetic-fedem", {**RUN, **more}, tmp_path / name, Alone())
    return float(metrics_of(tmp_path / name)[-1]["test_accuracy"])


def test_the_median_holds_where_the_mean_does_not(tmp_path):
    attack = {"attack": {"name": "sign_flip", "clients": [2, 5], "scale": 20.0}}
    honest = accuracy(tmp_path, "honest")
    mean = accuracy(tmp_path, "mean", **attack)
    median = accuracy(tmp_path, "median", **attack, **{"exchange.aggregator": "median"})
    assert honest > 0.7 and median > honest - 0.1
    assert mean < 0.2  # ten labels


REFUSED = [
    ({"name": "sign_flip"}, {}, "both empty; one of them says which clients"),
    ({"name": "sign_flip", "clients": [1], "fraction": 0.1}, {}, "both given"),
    ({"name": "label_flip", "clients": [1], "source": 1}, {}, "attack.source and attack.target"),
    ({"name": "sign_flip", "clients": [1]}, {"algorithm": "local"}, "allowed: fedavg, "),
    ({"name": "sign_flop", "clients": [1]}, {}, "did you mean 'sign_flip'"),
    (
        {"name": "sign_flip", "clients": [1]},
        {"algorithm": "kgt", "exchange": "gossip", "local": {"batch_size": 16}},
        "the update of a model",
    ),
]
LATER = [
    ({"name": "sign_flip", "clients": [4]}, {}, "attack.clients has 4, which does not exist"),
    ({"name": "label_flip", "clients": [1], "source": 2, "target": 0}, {}, "attack.source is 2"),
]


@pytest.mark.parametrize(("attack", "more", "words"), REFUSED)
def test_what_does_not_go_with_an_attack_is_refused_in_a_sentence(attack, more, words):
    with pytest.raises(InputError, match=words) as refused:
        resolve({**PLAIN, "algorithm": "fedavg", **more, "attack": attack})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("attack", "more", "words"), LATER)
def test_attackers_that_the_data_do_not_have_are_refused_in_a_sentence(attack, more, words):
    with pytest.raises(InputError, match=words):
        prepared("fedavg", "server", attack=attack, **more)


def test_a_run_without_attackers_does_not_mention_attacks():
    assert "attack" not in to_mapping(resolve({**PLAIN, "attack": "none"}))
    stored = to_mapping(resolve({**PLAIN, "attack": {"name": "sign_flip", **NAMED}}))
    assert stored["attack"] == {"name": "sign_flip", "scale": 1.0, **NAMED, "fraction": None}


SENDING = [case for case in CASES if find_algorithm(case.values[0]).communicates]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exchange"), SENDING)
def test_every_method_that_sends_can_be_attacked(name, exchange):
    own = {"clients": [0]} if problem(name, exchange)["clients"] > 1 else {}
    if exchange == "gossip" and find_algorithm(name).aggregates == "sums":
        with pytest.raises(InputError, match="the update of a model"):
            prepared(name, exchange, attack={"name": "sign_flip", **own})
        return
    digests = set()
    for attack in ("none", {"name": "sign_flip", "scale": 0.5, **own}):
        engine = prepared(name, exchange, attack=attack)
        for _ in range(2):
            engine.advance()
        digests.add(engine.digest())
    assert len(digests) == 2


RANKS = {
    "label_flip": {"attack": {"name": "label_flip", "fraction": 0.3}},
    "sign_flip": {
        "attack": {"name": "sign_flip", "clients": [2, 6]},
        "participation": 0.6,
        "exchange.aggregator": "median",
    },
    "model_replacement": {
        "attack": {"name": "model_replacement", "fraction": 0.3},
        "exchange.aggregator": {"name": "krum", "selected": 2},
        "exchange.clip": 0.5,
    },
    "trimmed_mean": {"exchange.aggregator": "trimmed_mean", "compression": "quantise"},
    "geometric_median": {"exchange.aggregator": "geometric_median", "dtype": "float64"},
    "centred_clipping": {
        "exchange.aggregator": {"name": "centred_clipping", "radius": 0.2},
        "attack": {"name": "alie", "clients": [1, 6]},
        "participation": 0.7,
    },
    "nnm": {
        "exchange.pre_aggregator": "nnm",
        "exchange.aggregator": {"name": "krum", "selected": 2},
        "attack": {"name": "ipm", "fraction": 0.3, "epsilon": "search"},
    },
    "bucketing": {
        "exchange.pre_aggregator": "bucketing",
        "exchange.aggregator": {"name": "trimmed_mean", "trim": 0.34},
        "attack": {"name": "mimic", "clients": [2], "victim": 5},
    },
    "mda": {
        "exchange.aggregator": {"name": "mda", "byzantine": 0.3},
        "attack": {"name": "alie", "fraction": 0.3, "z": "search"},
        "exchange.clip": 0.5,
    },
    "monna": {"exchange.aggregator": {"name": "monna", "byzantine": 0.3, "trusted": 1}},
    "meamed": {
        "exchange.pre_aggregator": "nnm",
        "exchange.aggregator": {"name": "meamed", "byzantine": 0.3},
        "attack": {"name": "alie", "fraction": 0.3, "z": "formula"},
    },
    "clusters": {"algorithm": "ifca", "exchange.aggregator": "median"},
    "clipped gossip": {
        "exchange": "gossip",
        "exchange.correction": {"name": "clipped_gossip", "radius": 0.05},
        "attack": {"name": "sign_flip", "clients": [2], "scale": 9.0},
        "participation": 0.7,
    },
    "monna gossip": {
        "exchange": "gossip",
        "exchange.correction": {"name": "monna", "byzantine": 0.3},
        "attack": {"name": "sign_flip", "clients": [2], "scale": 9.0},
        "participation": 0.7,
    },
    "central": {
        "privacy": {"noise_multiplier": 1.0, "clip_norm": 0.5, "delta": 0.01},
        "participation": {"name": "bernoulli", "p": 0.6},
    },
    "local": {
        "privacy": {
            "noise_multiplier": 1.0,
            "clip_norm": 0.5,
            "where": "local",
            "delta": 0.01,
        },
        "participation": 0.6,
        "exchange.aggregator": "median",
    },
}


@pytest.mark.mpi
@pytest.mark.parametrize("way", RANKS)
def test_files_depend_neither_on_ranks_nor_on_resumes(way, tmp_path):
    assert unlike_one_rank_though_resumed({**SMALL, **RANKS[way]}, tmp_path) == []


@pytest.mark.parametrize("way", ["model_replacement", "central", "centred_clipping", "bucketing"])
def test_a_resumed_run_is_the_uninterrupted_one(way, tmp_path):
    assert same_after_a_resume({**SMALL, **RANKS[way]}, tmp_path)


@pytest.mark.parametrize(("byzantine", "warns"), [(0.2, True), (0.25, False)])
def test_more_attackers_than_an_aggregator_bears_are_warned_of(byzantine, warns):
    attack = {"name": "sign_flip", "fraction": 0.2}
    server = {"name": "server", "aggregator": {"name": "meamed", "byzantine": byzantine}}
    engine = prepared("fedavg", server, clients=8, attack=attack)
    lines = evaluation.remarks(engine.setup, engine.state, engine.shards)
    assert any("bears" in line for line in lines) == warns
