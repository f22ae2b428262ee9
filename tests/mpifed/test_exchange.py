"""Averages of a server and of neighbours: weights, absent clients, distances, and what diverges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from moves import LINEAR, moved, values

import mpifed
import topologies
from mpifed import state
from mpifed.errors import CodeError, RunError
from mpifed.method import Algorithm, Predictor
from mpifed.testing import run_rounds


def rows(n, width=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, width))


def neighbours(topology="ring", weights="metropolis_hastings", schedule="static"):
    return {"name": "gossip", "topology": topology, "weights": weights, "schedule": schedule}


def mixed(x, exchange, rounds=1, n=None, **options):
    """Rounds in which clients stay where they are, at the rows of x, and only mix."""
    return moved(lambda k, ids, at: 0 * at, len(x), x, rounds, exchange=exchange, **options)


def test_the_server_averages_participants_by_their_samples():
    samples = np.array([1, 4, 2, 8, 5, 7])
    data = [(np.ones((m, 4)), np.full(m, float(i))) for i, m in enumerate(samples)]
    options = {"participation": 0.5, "local": {"lr": 0.1, "steps": 1, "batch_size": 99}}
    model = {"name": "linear", "bias": False, "loss": "half_squared"}
    run = run_rounds("fedavg", data, rounds=0, model=model, **options)
    present, start = run.participants, run.state.model.numpy()[0]
    assert len(present) == 3
    ends = [start - 0.1 * (start.sum() - i) * np.ones(4) for i in present]
    mean = np.average(ends, axis=0, weights=samples[present])
    assert run.advance().state.model.numpy()[0] == pytest.approx(mean, abs=1e-14)
    sent = run.metrics
    assert sent["up_bits"] == sent["down_bits"] == 3 * 4 * 64


def test_the_complete_graph_is_uniform_server_averaging():
    options = {"local": {"lr": 0.5, "momentum": 0.9, "batch_size": 4}, "rounds": 3}
    data = [(rows(12, 5, i), np.arange(12) % 2) for i in range(5)]
    method = {"name": "fedavg", "gossip_step_scale": "none"}
    server, gossip = (
        run_rounds(method, data, exchange=exchange, **options).state.model
        for exchange in ("server", neighbours("complete"))
    )
    for row in gossip:
        assert torch.allclose(row, server, rtol=0, atol=1e-14)


def test_a_client_that_does_not_take_part_keeps_its_row_and_gives_back_its_weights():
    x = rows(6)
    run = mixed(x, neighbours("complete"), 0, participation=0.7)
    present = run.participants
    assert len(present) == 4
    w = topologies.mixing_matrix(topologies.build_graph("complete", 6), "metropolis_hastings")
    w, expected = w.to_dense(), x.copy()
    for i in present:
        others = [j for j in present if j != i]
        expected[i] = (1 - w[i, others].sum()) * x[i] + w[i, others] @ x[others]
    after = values(run.advance())
    assert after == pytest.approx(expected, abs=1e-14)
    assert after[present].mean(0) == pytest.approx(x[present].mean(0), abs=1e-14)


def test_a_client_without_neighbours_keeps_its_row_to_the_bit():
    x = rows(6) * np.logspace(-12, 3, 4)
    for seed in range(20):  # until the hub is absent
        run = mixed(x, neighbours("star"), 0, participation=0.5, seed=seed)
        if 0 not in run.participants:
            break
    run.advance()
    assert np.array_equal(values(run), x) and run.metrics["up_bits"] == 0


def test_consensus_distance_is_the_mean_square_distance_to_the_mean():
    for width in (4, 150_001):
        x = rows(6, width)
        distance = mixed(x, neighbours(), 0).metrics["consensus_distance"]
        assert distance == pytest.approx(np.square(x - x.mean(0)).sum() / 6, rel=1e-12)
    assert mixed(x[0][None] * np.ones((6, 1)), "server", 0).metrics["consensus_distance"] is None


def test_unseen_clients_are_no_nodes():
    x = rows(6, 8)
    run = mixed(x, neighbours("complete"), 1, evaluation={"unseen_fraction": 0.34})
    after = values(run)
    seen = np.abs(after - x).max(1) > 0
    assert seen.sum() == 4
    assert after[seen] == pytest.approx(np.tile(x[seen].mean(0), (4, 1)), abs=1e-14)
    distance = mixed(x, neighbours("complete"), 0, evaluation={"unseen_fraction": 0.34}).metrics
    among = np.square(x[seen] - x[seen].mean(0)).sum() / 4
    assert distance["consensus_distance"] == pytest.approx(among, rel=1e-12)


def test_gossip_contracts_as_the_spectral_gap_says():
    topology = {"name": "erdos_renyi", "p": 0.4, "seed": 3}
    w = topologies.mixing_matrix(topologies.build_graph("erdos_renyi", 30, 3, p=0.4), "fmmc")
    run = mixed(rows(30, 8), neighbours(topology, "fmmc"), 0)
    rate = topologies.slem(w) ** 2
    before = run.metrics["consensus_distance"]
    for _ in range(5):
        after = run.advance().metrics["consensus_distance"]
        assert 1e-9 < after <= before * rate * (1 + 1e-9)
        before = after


def test_a_stored_matrix_is_used_again_and_nothing_is_recomputed(monkeypatch):
    run = mixed(rows(6), neighbours("erdos_renyi", "fmmc"))
    monkeypatch.setattr(topologies, "build_graph", None)
    again = run.resumed()
    assert again.advance().digest == run.advance().digest


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_diverged_client_is_named_before_it_is_mixed(exchange):
    def move(k, ids, x):
        return np.where((ids == 4)[:, None], np.nan, 1.0) * np.ones_like(x)

    with pytest.raises(RunError, match="client 4 "):
        moved(move, 6, np.zeros(3), exchange=exchange)


def test_no_matrix_is_made_for_an_algorithm_that_sends_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(topologies, "prepare_schedule", None)
    small = {"clients": 4, "rounds": 2, "data.n_test": 5, "data.dimension": 8}
    digests = []
    for exchange in ("gossip", "server"):
        options = {**small, "algorithm": "local", "exchange": exchange}
        run = mpifed.run("synthetic-fedem", output=tmp_path / exchange, **options)
        digests.append(run.summary["state_digest"])
    assert digests[0] == digests[1]
    with pytest.raises(CodeError, match="TypeError"):
        mpifed.run("synthetic-fedem", output=tmp_path / "fedem", exchange="gossip", **small)


@dataclass(frozen=True)
class State:
    """A vector."""

    x: torch.Tensor = state.shared()


class Misshapen(Algorithm):
    """Averages ones of another form than what it shares."""

    sent = torch.ones(())

    def __init__(self, model, local) -> None:
        self.model = model

    def init(self, clients, exchange, draws, dtype):
        return State(exchange.spread(torch.zeros(1, 5, dtype=dtype)))

    def round(self, state, clients, channel, draws):
        return State(channel.average(Misshapen.sent, clients.weights, before=state.x))

    def deploy(self, state, clients, draws):
        return Predictor(state.x)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((4, 1, 1), "float64"), ((4, 1, 6), "float64"), ((3, 1, 5), "float64")),
        *(((4, 5), "float64"), ((4, 1, 5), "float32")),
    ],
)
def test_rows_of_another_form_than_the_shared_value_are_not_averaged(shape, dtype):
    data = [(np.ones((1, 5)), [0])] * 4
    Misshapen.sent = torch.ones(shape, dtype=getattr(torch, dtype))
    with pytest.raises(ValueError, match=r"shape .*4, 1, 5"):
        run_rounds(Misshapen, data, model=LINEAR)
    Misshapen.sent = torch.ones(4, 1, 5, dtype=torch.float64)
    assert run_rounds(Misshapen, data, model=LINEAR).state.x.tolist() == [[1] * 5]


def test_a_graph_that_is_kept_disconnected_is_warned_of_in_a_sentence(tmp_path):
    topology = {"name": "erdos_renyi", "p": 0.1, "on_disconnected": "keep"}
    small = {"clients": 10, "rounds": 1, "data.n_test": 5, "exchange": "gossip"}
    options = {**small, "exchange.topology": topology}
    run = mpifed.run("synthetic-fedem", output=tmp_path / "run", **options)
    said = (run.directory / "log.txt").read_text().splitlines()
    (warning,) = [line for line in said if line.startswith("warning: ")]
    assert "disconnected" in warning and "components" in warning
    assert not set("{}[]") & set(warning)
    assert run.summary["predicted_contraction"]["p"] == 0


def test_the_model_drawn_for_all_is_that_of_no_client():
    data = [(rows(3), [0, 1, 0])] * 3
    drawn = [
        run_rounds({"name": "fedem", "component_init": init}, data, exchange="gossip", rounds=0)
        for init in ("per_client", "shared")
    ]
    own, common = (run.state.components for run in drawn)
    every = torch.cat([own.flatten(0, 1), common[0]])
    assert len(every.unique(dim=0)) == 3 * 3 + 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weights", ["fmmc", "metropolis_hastings", "best_constant"])
@pytest.mark.parametrize("topology", ["ring", "star", "complete", "erdos_renyi"])
def test_gossip_multiplies_by_w(topology, weights, dtype):
    x = rows(6, 5)
    seeded = {"p": 0.6, "seed": 3} if topology == "erdos_renyi" else {}
    graph = topologies.build_graph(topology, 6, 3, **({"p": 0.6} if seeded else {}))
    w = topologies.mixing_matrix(graph, weights).to_dense()
    after = values(mixed(x, neighbours({"name": topology, **seeded}, weights), dtype=dtype))
    tolerance = 1e-6 if dtype == "float32" else 1e-14
    assert after == pytest.approx(w @ x, abs=tolerance)
    assert after.mean(0) == pytest.approx(x.mean(0), abs=tolerance)
