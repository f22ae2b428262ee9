"""Attacks: what malicious clients train on and send, and which aggregates bear it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from commands import TINY, call
from commands import rows as metrics_of
from moves import LINEAR, moved, values
from on_ranks import SMALL, run, same_after_a_resume, unlike_one_rank_though_resumed
from small_runs import CASES, PLAIN, problem

from mpifed import state
from mpifed.errors import InputError
from mpifed.method import Algorithm, Predictor, ServerChannel
from mpifed.testing import find_item, run_rounds

NAMED = {"clients": [1, 3]}


def numbers(k, ids, x):
    """Client i moves by i + 1 in each of three coordinates."""
    return np.repeat(ids[:, None] + 1.0, 3, axis=1)


def test_flipped_signs_are_those_of_the_named_clients_alone():
    attack = {"name": "sign_flip", "scale": 2.0, **NAMED}
    mean = values(moved(numbers, 4, np.zeros(3), attack=attack))
    assert mean == pytest.approx([(1 - 2 * 2 + 3 - 2 * 4) / 4] * 3)


def test_a_replaced_model_is_the_mean_where_the_others_do_not_move():
    def move(k, ids, x):
        return np.isin(ids, NAMED["clients"])[:, None] * np.array([[1.0, 2.0, 3.0]])

    attack = {"name": "model_replacement", **NAMED}
    assert values(moved(move, 6, np.ones(3), attack=attack)) == pytest.approx([2, 3, 4])


@dataclass(frozen=True)
class Messages:
    """What has arrived of each client."""

    model: torch.Tensor = state.shared()
    averaged: torch.Tensor = state.client()
    plain: torch.Tensor = state.client()
    some: torch.Tensor = state.client()


class Sends(Algorithm[ServerChannel]):
    """Client i sends i + 1 to be averaged, as it is, and to be averaged among the last two."""

    def __init__(self, model, local) -> None:
        self.model = model

    def init(self, clients, exchange, draws, dtype):
        zeros = torch.zeros(len(clients), 1, dtype=dtype)
        return Messages(exchange.spread(torch.zeros(1, 1, dtype=dtype)), zeros, zeros, zeros)

    def round(self, state, clients, channel, draws):
        rows = torch.from_numpy(clients.ids + 1.0)[:, None]
        last = clients.ids >= 2
        some = torch.zeros_like(rows)
        some[last] = channel.among(np.arange(4) >= 2).send(rows[last])
        plain = channel.send(rows, uncompressed=True)
        return Messages(state.model, channel.send(rows), plain, some)

    def deploy(self, state, clients, draws):
        return Predictor(state.model)


def test_messages_that_are_sent_to_be_averaged_are_attacked_and_plain_ones_are_not():
    data = [(np.ones((1, 1)), np.zeros(1))] * 4
    attack = {"name": "sign_flip", **NAMED}
    arrived = run_rounds(Sends, data, model=LINEAR, attack=attack).state
    assert arrived.averaged[:, 0].tolist() == [1, -2, 3, -4]
    assert arrived.plain[:, 0].tolist() == [1, 2, 3, 4]
    assert arrived.some[:, 0].tolist() == [0, 0, 3, -4]


def test_neighbours_receive_what_an_attacker_sends():
    complete = {"name": "gossip", "topology": "complete", "weights": "uniform"}
    attack = {"name": "sign_flip", **NAMED}
    options = {"exchange": complete, "attack": attack, "participation": 0.7}
    run = moved(numbers, 6, np.zeros(3), 0, **options)
    present = run.participants
    assert len(present) == 4 and {*present} & {1, 3}
    sent = np.where(np.isin(np.arange(6), NAMED["clients"]), -1.0, 1.0) * np.arange(1, 7)
    # Edges of the two absent return to both ends.
    expected = sent[present].sum() / 6 + sent[present] / 3
    assert values(run.advance())[present] == pytest.approx(np.repeat(expected[:, None], 3, 1))


SHARDS = []


class Looks(Sends):
    """Shows the samples that its clients have."""

    def init(self, clients, exchange, draws, dtype):
        SHARDS.append(clients.shards)
        return super().init(clients, exchange, draws, dtype)


def shards_under(attack):
    data = PLAIN["data"]
    SHARDS.clear()
    run_rounds(Looks, data, clients=4, attack=attack, rounds=0)
    return SHARDS[-1]


def test_trials_of_first_components_are_attacked_as_rounds_are():
    method = {"name": "fedem", "restarts": 2, "restart_rounds": 1}
    attack = {"name": "sign_flip", "clients": [1], "scale": 1e3}
    honest, attacked = (
        run_rounds(method, rounds=0, attack=each).state.components for each in ("none", attack)
    )
    assert not torch.equal(attacked, honest)


def test_labels_are_reversed_or_exchanged_and_only_for_training():
    other = shards_under("none")
    for options, naive in (
        ({}, lambda y: 1 - y),
        ({"source": 0, "target": 1}, np.ones_like),
    ):
        own = shards_under({"name": "label_flip", **NAMED, **options})
        for client in range(4):
            y = other.train.of_client(client).y.numpy()
            expected = naive(y) if client in NAMED["clients"] else y
            assert np.array_equal(own.train.of_client(client).y, expected)
            assert np.array_equal(own.test.of_client(client).y, other.test.of_client(client).y)
        assert torch.equal(own.train.x, other.train.x)


def test_attackers_are_scored_on_their_true_labels():
    attacked, plain = (
        run_rounds("fedavg", PLAIN["data"], clients=4, attack=attack, rounds=0).metrics
        for attack in ({"name": "label_flip", **NAMED}, "none")
    )
    for name in ("train_accuracy", "train_loss", "test_accuracy", "test_loss"):
        assert attacked[name] == plain[name]


def test_a_fraction_is_drawn_once_from_the_seed():
    attack = {"name": "sign_flip", "fraction": 0.2}

    def flipped(seed, rounds):
        options = {"attack": attack, "seed": seed, "evaluation": {"unseen_fraction": 0.25}}
        run = moved(lambda k, ids, x: np.eye(40)[ids], 40, np.zeros(40), rounds, **options)
        return np.sign(values(run))

    signs = [flipped(seed, rounds) for seed, rounds in ((0, 1), (0, 3), (1, 1))]
    assert np.array_equal(signs[0], signs[1]) and not np.array_equal(signs[0], signs[2])
    assert all(((each < 0).sum(), (each > 0).sum()) == (6, 24) for each in signs)


RUN = {
    "algorithm": "fedavg",
    "data": {"name": "digits", "partition": "iid"},
    "clients": 10,
    "rounds": 10,
    "evaluation.every": 10,
    "local": {"lr": 0.1, "batch_size": 32},
}


def accuracy(tmp_path, name, **more):
    run("synthetic-fedem", {**RUN, **more}, tmp_path / name)
    return float(metrics_of(tmp_path / name)[-1]["test_accuracy"])


def test_the_median_holds_where_the_mean_does_not(tmp_path):
    attack = {"attack": {"name": "sign_flip", "clients": [2, 5], "scale": 20.0}}
    honest = accuracy(tmp_path, "honest")
    mean = accuracy(tmp_path, "mean", **attack)
    median = accuracy(tmp_path, "median", **attack, **{"exchange.aggregator": "median"})
    assert honest > 0.7 and median > honest - 0.1
    assert mean < 0.2  # ten labels


def test_a_run_without_attackers_does_not_mention_attacks(capfd):
    plain, attacked = (
        json.loads(call([*TINY, attack, "--dry-run", "--json"], capfd).out)["configuration"]
        for attack in ("attack=none", "attack={name: sign_flip, clients: [1, 3]}")
    )
    assert "attack" not in plain
    assert attacked["attack"] == {"name": "sign_flip", "scale": 1.0, **NAMED, "fraction": None}


SENDING = [case for case in CASES if find_item("algorithm", case.values[0]).communicates]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exchange"), SENDING)
def test_every_method_that_sends_can_be_attacked(name, exchange):
    own = {"clients": [0]} if problem(name, exchange)["clients"] > 1 else {}

    def attacked(attack):
        words = {**problem(name, exchange), "attack": attack}
        return run_rounds(words.pop("algorithm"), words.pop("data"), **{**words, "rounds": 2})

    if exchange == "gossip" and find_item("algorithm", name).aggregates == "sums":
        with pytest.raises(InputError, match=name):
            attacked({"name": "sign_flip", **own})
        return
    flipped = {"name": "sign_flip", "scale": 0.5, **own}
    assert attacked("none").digest != attacked(flipped).digest


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
def test_more_attackers_than_an_aggregator_bears_are_warned_of(byzantine, warns, tmp_path):
    given = {**SMALL, "clients": 8, "rounds": 1, "attack": {"name": "sign_flip", "fraction": 0.2}}
    given["exchange.aggregator"] = {"name": "meamed", "byzantine": byzantine}
    run("synthetic-fedem", {**given, "algorithm": "fedavg"}, tmp_path / "run")
    assert ("bears" in (tmp_path / "run" / "log.txt").read_text()) == warns
