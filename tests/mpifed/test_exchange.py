from __future__ import annotations

import numpy as np
import pytest
import torch

import mpifed
import topologies
from mpifed.algorithms.fedavg.fedavg import FedAvg
from mpifed.errors import CodeError, RunError
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.server import Server
from mpifed.federation.clients import Draws, Federation
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.method import initial_models
from mpifed.models.linear import linear
from mpifed.mpi.communicator import Alone


def federation(n, unseen=()):
    ids = np.arange(n)
    return Federation(Alone(), 0 * ids, np.isin(ids, unseen), ids + 1)


def rows(n, width=4, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=generator, dtype=dtype)


EVERYONE = np.ones(6, bool)


def make_gossip(where, seed=0, **options):
    n = len(where.training)
    named = {"topology": "erdos_renyi", "weights": "fmmc", "schedule": "static", **options}
    return Gossip(where, seed, Gossip.prepare(where.communicator, n, seed, named), **named)


def gossip(n=6, unseen=(), **options):
    named = {"topology": "ring", "weights": "metropolis_hastings", **options}
    return make_gossip(federation(n, unseen), **named)


def matrix_of(exchange, round=1):
    return exchange.schedule.matrix(round)


def test_the_server_averages_participants_with_their_weights():
    server, x = Server(federation(6), 0), rows(3)
    active = np.array([True, False, True, True, False, False])
    weights = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
    mean = server.at(1, active).average(x, weights, before=torch.zeros(4))
    assert torch.allclose(mean, (x * weights[:, None]).sum(0).float() / 0.6, atol=1e-7)
    assert server.ledger.up_bits == 3 * 4 * 32 and server.ledger.down_bits == 0
    assert server.at(1, active).broadcast(mean).shape == (3, 4)
    assert server.ledger.down_bits == 3 * 4 * 32


def test_the_complete_graph_is_uniform_server_averaging(make_clients):
    clients, description = make_clients([12] * 5, dtype=torch.float32)
    solver = LocalSolver(
        linear(description), LocalOptions(lr=0.5, momentum=0.9), 10, 12, torch.device("cpu")
    )
    algorithm = FedAvg(solver.model, solver, gossip_step_scale="none")
    everyone, ends = np.ones(5, bool), []
    for exchange in (
        Server(clients.federation, 0),
        make_gossip(clients.federation, topology="complete", weights="metropolis_hastings"),
    ):
        state = algorithm.init(clients, exchange, Draws(0, 0), torch.float32)
        for k in range(1, 4):
            state = algorithm.round(state, clients, exchange.at(k, everyone), Draws(0, k))
        ends.append(state.model)
    for row in ends[1]:
        assert torch.allclose(row, ends[0], rtol=0, atol=2e-7)


def test_a_client_that_does_not_take_part_keeps_its_row_and_gives_back_its_weights():
    exchange, x = gossip(topology="complete"), rows(6)
    active = np.array([True, True, False, True, False, True])
    mixed = exchange.at(1, active).average(x[active], torch.ones(4), x[active])
    w = matrix_of(exchange).to_dense()
    expected = x[active].double().numpy()
    for t, row in enumerate(np.flatnonzero(active)):
        others = [s for s in np.flatnonzero(active) if s != row]
        expected[t] = (1 - w[row, others].sum()) * x[row].double().numpy()
        expected[t] += w[row, others] @ x[others].double().numpy()
    assert np.allclose(mixed, expected, atol=1e-6)
    assert torch.allclose(mixed.mean(0), x[active].mean(0), atol=1e-6)


def test_a_client_without_neighbours_keeps_its_row_to_the_bit():
    exchange = gossip(topology="star")
    x = rows(6) * torch.logspace(-12, 3, 4)
    active = np.array([False, True, True, True, False, False])  # the leaves alone
    assert torch.equal(exchange.at(1, active).average(x[1:4], torch.ones(3), x[1:4]), x[1:4])
    assert exchange.ledger.up_bits == 0


def test_consensus_distance_is_the_mean_square_distance_to_the_mean():
    x, y = rows(6), rows(6, 3, seed=1)
    expected = ((x - x.mean(0)) ** 2).sum() / 6 + ((y - y.mean(0)) ** 2).sum() / 6
    assert gossip().consensus_distance([x, y]) == pytest.approx(float(expected), rel=1e-5)
    assert Server(federation(6), 0).consensus_distance([x[0]]) is None


def test_unseen_clients_are_no_nodes():
    exchange = gossip(unseen=[0, 3])
    assert matrix_of(exchange).n == 4
    x = rows(6)
    assert torch.allclose(exchange.mean(x), x[[1, 2, 4, 5]].mean(0), atol=1e-6)


def test_gossip_contracts_as_the_spectral_gap_says():
    exchange = gossip(30, topology="erdos_renyi", weights="fmmc")
    x, everyone = rows(30, 8, torch.float64), np.ones(30, bool)
    rate = topologies.slem(matrix_of(exchange)) ** 2
    before = exchange.consensus_distance([x])
    for k in range(1, 6):
        x = exchange.at(k, everyone).average(x, torch.ones(30), x)
        after = exchange.consensus_distance([x])
        assert after <= before * rate * (1 + 1e-9)
        before = after


def test_a_stored_matrix_is_used_again_and_nothing_is_recomputed(monkeypatch):
    first = gossip(topology="erdos_renyi", weights="fmmc")
    monkeypatch.setattr(topologies, "build_graph", None)
    again = Gossip(federation(6), 5, first.arrays(), topology="erdos_renyi")
    assert matrix_of(again).sha256 == matrix_of(first).sha256


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_diverged_client_is_named_before_it_is_mixed(exchange):
    x = rows(6)
    x[4, 2] = float("nan")
    used = Server(federation(6), 0) if exchange == "server" else gossip()
    before = x[0] if exchange == "server" else x
    with pytest.raises(RunError, match="client 4 "):
        used.at(1, EVERYONE).average(x, torch.ones(6, dtype=torch.float64), before)


def test_consensus_distance_of_wide_rows_is_that_of_their_parts_together():
    x = rows(6, 150_001, torch.float64)
    expected = float(((x - x.mean(0)) ** 2).sum() / 6)
    assert gossip(unseen=[]).consensus_distance([x]) == pytest.approx(expected, rel=1e-12)
    seen = torch.cat([x, torch.full((1, 150_001), 1e6, dtype=torch.float64)])
    assert gossip(7, unseen=[6]).consensus_distance([seen]) == pytest.approx(expected, rel=1e-12)


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


@pytest.mark.parametrize("shape", [(4, 1, 1), (4, 1, 6), (3, 1, 5), (4, 5)])
def test_rows_of_another_form_than_the_shared_value_are_not_averaged(shape):
    n = np.ones(4, int)
    server = Server(Federation(Alone(), 0 * n, n < 0, n), 0).at(1, n > 0)
    weights, before = torch.full((4,), 0.25, dtype=torch.float64), torch.zeros(1, 5)
    for rows in (torch.ones(shape), torch.ones(4, 1, 5, dtype=torch.float64)):
        with pytest.raises(ValueError, match="shape"):
            server.average(rows, weights, before=before)


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


def test_links_count_the_matrices_that_join_two_clients():
    alone, named = Alone(), {"topology": None, "weights": None}
    options = {**named, "schedule": {"name": "one_peer_exponential"}}
    # Of 4 clients each sends to the next, then to the one opposite; both directions count.
    links = Gossip.links(4, 0, options, Gossip.prepare(alone, 4, 0, options)).toarray()
    assert links[0, 1] == links[0, 3] == 1 and links[0, 2] == 2
    options = {"topology": "path", "weights": "metropolis_hastings", "schedule": "static"}
    links = Gossip.links(4, 0, options, Gossip.prepare(alone, 4, 0, options)).toarray()
    joined = np.abs(np.subtract.outer(range(4), range(4))) == 1
    assert (links[~np.eye(4, dtype=bool)] == 2 * joined[~np.eye(4, dtype=bool)]).all()


def test_the_model_drawn_for_all_is_that_of_no_client(make_clients):
    clients, description = make_clients([3, 4, 5])
    model, server = linear(description), Server(clients.federation, 0)
    given = model, 2, clients, server, Draws(0, 0), torch.float64
    own, common = initial_models(*given, per_client=True), initial_models(*given, per_client=False)
    every = torch.cat([own.flatten(0, 1), common.reshape(2, -1)])
    assert len(every.unique(dim=0)) == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights", ["fmmc", "metropolis_hastings", "best_constant"])
@pytest.mark.parametrize("topology", ["ring", "star", "complete", "erdos_renyi"])
def test_gossip_multiplies_by_w(topology, weights, dtype):
    exchange, x = gossip(topology=topology, weights=weights), rows(6, 5, dtype)
    mixed = exchange.at(1, EVERYONE).average(x, torch.ones(6), x)
    expected = torch.from_numpy(matrix_of(exchange).to_dense()) @ x.double()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    assert torch.allclose(mixed.double(), expected, rtol=0, atol=tolerance)
    assert torch.allclose(mixed.double().mean(0), x.double().mean(0), rtol=0, atol=tolerance)
