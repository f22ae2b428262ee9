"""Sums node by node are those over all ranks at once, to the bit, whatever the nodes are."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

from mpifed.errors import RunError
from mpifed.exchange import reduction as grouping
from mpifed.exchange.compression import build
from mpifed.exchange.server import Server
from mpifed.federation.clients import Federation
from mpifed.mpi import node
from mpifed.mpi.communicator import Alone, world
from mpifed.mpi.over_mpi4py import Mpi

N, WIDTH = 13, 50
PARTITIONS = {
    "one node": lambda ranks: np.zeros(ranks, np.int64),
    "a node each": np.arange,
    "two nodes": lambda ranks: np.arange(ranks) // -(-ranks // 2),
    "in turn": lambda ranks: np.arange(ranks) % 2 if ranks > 2 else np.zeros(ranks, np.int64),
    "one beside many": lambda ranks: np.minimum(np.arange(ranks), 1),
}
WAYS = {
    "float32": {},
    "float64": {"dtype": torch.float64},
    "the absent": {"active": np.arange(N) % 3 != 0, "average_over": "all"},
    "error feedback": {"compression": "top_k"},
}


@pytest.fixture(params=PARTITIONS)
def nodes(request, monkeypatch):
    """The node of each rank, which the communicator then tells."""
    found = PARTITIONS[request.param](world().size)
    monkeypatch.setattr(Mpi, "nodes", lambda self: found)
    monkeypatch.setattr(grouping, "LARGE", 1)
    return found


def average(server, dtype=torch.float32, active=None, rounds=2):
    """What clients' averages are after some rounds."""
    active = np.ones(N, bool) if active is None else active
    hosted = server.federation.hosted[active[server.federation.hosted]]
    every = torch.randn(N, 2, WIDTH // 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = torch.linspace(0.01, 0.1, N, dtype=torch.float64)[hosted]
    model, memory = torch.zeros(2, WIDTH // 2, dtype=dtype), None
    if server.compressor is not None:
        memory = server.remember([model], len(hosted), dtype)
    for k in range(1, 1 + rounds):
        channel = server.at(k, active, memory)
        model = channel.average(every[hosted] / k, weights, before=model)
        memory = channel.memory
    return model


def server_on(communicator, reduction, compression=None, average_over="participants"):
    owner = np.arange(N) * communicator.size // N
    made = Federation(communicator, owner, np.zeros(N, bool), np.ones(N, np.int64))
    compressor = build(compression) if compression else None
    return Server(made, 0, {}, compressor, average_over=average_over, reduction=reduction)


@pytest.mark.mpi
@pytest.mark.parametrize("way", WAYS)
def test_an_average_is_that_of_one_rank(nodes, way):
    rounds = {key: WAYS[way][key] for key in ("dtype", "active") if key in WAYS[way]}
    made = {key: WAYS[way][key] for key in WAYS[way] if key not in rounds}
    alone = average(server_on(Alone(), "auto", **made), **rounds)
    many = server_on(world(), "hierarchical", **made)
    assert torch.equal(average(many, **rounds), alone)


@pytest.mark.mpi
def test_what_is_sent_is_booked_as_by_one_rank(nodes):
    many, alone = server_on(world(), "hierarchical"), server_on(Alone(), "auto")
    average(many)
    average(alone)
    assert vars(many.ledger) == vars(alone.ledger)


@pytest.mark.mpi
def test_integers_are_added_in_pieces_of_any_size(nodes):
    communicator = world()
    sums = communicator.node_sums(nodes)
    for columns in (1, 2, 7, 1000, 3):
        own = np.arange(2 * columns).reshape(2, columns) + 1000 * communicator.rank
        expected = communicator.sum(own)[:, sums.share(columns)]
        assert np.array_equal(sums.begin(own)(), expected)


@pytest.mark.mpi
def test_only_leaders_hand_sums_to_mpi(nodes):
    communicator = world()
    sums = communicator.node_sums(nodes)
    before = communicator.bytes_sent
    sums.begin(np.ones((1, 40), np.int64))()
    leads = np.flatnonzero(nodes == nodes[communicator.rank])[0] == communicator.rank
    several = len({*nodes}) > 1
    assert communicator.bytes_sent - before == (320 if leads and several else 0)


@pytest.mark.mpi
def test_ranks_of_a_node_share_the_average(nodes):
    communicator = world()
    model = average(server_on(communicator, "hierarchical"))
    first = np.flatnonzero(nodes == nodes[communicator.rank])[0]
    communicator.barrier()
    if communicator.rank == first:
        model.fill_(float(first))
    communicator.barrier()
    assert torch.equal(model, torch.full_like(model, float(first)))


@pytest.mark.mpi
def test_memory_is_used_again_once_no_rank_refers_to_it(nodes, monkeypatch):
    monkeypatch.setattr(node, "LONG_UNUSED", 8)
    communicator = world()
    sums = communicator.node_sums(nodes)
    kept = []
    for k in range(4):
        kept.append(sums.array((3,), np.float64))
        kept[-1][sums.share(3)] = k
        sums.filled()
    assert [list(one) for one in kept] == [[k] * 3 for k in range(4)]
    last = kept.pop()
    if communicator.rank != 0:
        del kept[:]
    communicator.barrier()
    other = sums.array((3,), np.float64)
    other[sums.share(3)] = 9
    sums.filled()
    assert list(last) == [3.0] * 3 and list(other) == [9.0] * 3
    if communicator.rank == 0:
        assert [list(one) for one in kept] == [[k] * 3 for k in range(3)]
        del kept[:]
    del last, other
    communicator.barrier()
    for size in range(1, 30):  # all sizes differ
        sums.array((size,), np.float32)
        communicator.barrier()
    assert len(sums._arrays) <= 12


@pytest.mark.mpi
def test_without_room_ranks_add_all_at_once_and_say_so(nodes, monkeypatch, caplog):
    monkeypatch.setattr(grouping, "room", lambda: 100)
    communicator = world()
    if communicator.size == 1:
        return
    with pytest.raises(RunError, match=r"needs .* bytes of shared memory, and a node has 100 in"):
        average(server_on(communicator, "hierarchical"))
    server = server_on(communicator, "auto")
    with caplog.at_level(logging.WARNING, "mpifed"):
        made = average(server)
    assert torch.equal(made, average(server_on(Alone(), "auto")))
    tried = server.grouping.goes_by_node(WIDTH)
    assert ("needs" in caplog.text) == (tried and communicator.rank == 0)


@pytest.mark.mpi
def test_on_one_node_ranks_without_room_add_all_at_once(monkeypatch, caplog):
    monkeypatch.setattr(grouping, "room", lambda: 100)
    monkeypatch.setattr(grouping, "LARGE", 1)
    monkeypatch.setattr(grouping, "LARGE_ON_ONE_NODE", WIDTH)
    server = server_on(world(), "auto")
    with caplog.at_level(logging.WARNING, "mpifed"):
        made = average(server)
    assert torch.equal(made, average(server_on(Alone(), "auto")))
    assert caplog.text == "" and not server.grouping.is_shared(WIDTH)
    assert server.grouping.goes_by_node(WIDTH) == (world().size > 1)


@pytest.mark.mpi
def test_auto_goes_by_node_where_a_node_has_several_ranks(nodes):
    grouped = server_on(world(), "auto").grouping
    several = np.bincount(nodes).max() > 1
    assert grouped.goes_by_node(WIDTH) == (several and len({*nodes}) > 1)
    assert grouped.goes_by_node(1 << 18) == several
    assert not server_on(world(), "flat").grouping.goes_by_node(1 << 18)


@pytest.mark.mpi
def test_ranks_of_one_node_add_wide_rows_in_shared_memory(monkeypatch):
    monkeypatch.setattr(grouping, "LARGE", 1)
    monkeypatch.setattr(grouping, "LARGE_ON_ONE_NODE", WIDTH)
    server = server_on(world(), "auto")
    assert torch.equal(average(server), average(server_on(Alone(), "auto")))
    assert server.grouping.is_shared(WIDTH) == (world().size > 1)
    assert not server.grouping.is_shared(WIDTH - 1)


@pytest.mark.mpi
def test_these_ranks_are_one_node():
    assert not world().nodes().any()


@pytest.mark.mpi
@pytest.mark.parametrize("algorithm", ["fedem", "scaffold"])
def test_a_run_is_that_of_one_rank(nodes, algorithm, tmp_path):
    chosen = {"exchange.reduction": "hierarchical", "algorithm": algorithm, "local.momentum": 0.0}
    assert unlike_one_rank({**SMALL, **chosen}, tmp_path) == []


@pytest.mark.mpi
def test_a_run_may_be_resumed(nodes, tmp_path):
    chosen = {"exchange.reduction": "hierarchical", "dtype": "float64", "participation": 0.6}
    assert same_after_a_resume({**SMALL, **chosen}, tmp_path)
