"""FedPer, FedRep, FedBABU, PFedDST: what is shared, what stays, what each of them trains when."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, two_quadratics
from gossip_exchange import exchange_of
from numpy_mlp import BODY, HEAD, descended, present, regressions
from server_rounds import after

from mpifed.algorithms.fedavg.fedavg import FedAvg
from mpifed.algorithms.fedavg.fedavg_ft import FedAvgFineTuned
from mpifed.algorithms.global_model.local import Local
from mpifed.algorithms.shared_body.fedbabu import FedBABU
from mpifed.algorithms.shared_body.fedper import FedPer
from mpifed.algorithms.shared_body.fedrep import FedRep
from mpifed.algorithms.shared_body.pfeddst import PFedDST
from mpifed.exchange.server import Server
from mpifed.federation.clients import Clients, Draws
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.mlp import mlp

EVERY = (FedPer, FedRep, FedBABU)
WHOLE = {"lr": 0.3, "batch_size": 64}


def solver_of(model, longest=40, **options):
    return LocalSolver(model, LocalOptions(**options), 10, longest, torch.device("cpu"))


@pytest.mark.parametrize("method", [FedPer, FedRep])
def test_with_the_model_as_head_clients_end_at_their_own_minimisers(method):
    run = Run(method, two_quadratics(), local={"lr": 0.1, "epochs": 5}, head=["*"]).go(45)
    assert run.deployed()[:, 0] == pytest.approx([0, 4], abs=1e-9)


@pytest.mark.parametrize("method", EVERY)
def test_without_a_head_they_are_fedavg_bit_for_bit(method, make_clients):
    clients, description = make_clients([37, 9, 20], (6,), 4, dtype=torch.float32)
    model = mlp(description)
    solver = solver_of(model, batch_size=8, epochs=2, momentum=0.9)
    found = after(method(model, solver, head=[]), clients, 3, torch.float32)
    expected = after(FedAvg(model, solver), clients, 3, torch.float32)
    assert torch.equal(found.body, expected.model)
    assert torch.equal(found.optimizer.momentum, expected.optimizer.momentum)


def test_fedbabu_without_a_head_deploys_what_fedavg_with_fine_tuning_does(make_clients):
    clients, description = make_clients([37, 9, 20], (6,), 4)
    model, draws = mlp(description), Draws(0, 3)
    solver = solver_of(model, batch_size=8)
    rows = []
    for method in (FedBABU(model, solver, head=[]), FedAvgFineTuned(model, solver, tune_epochs=5)):
        state = after(method, clients, 3, torch.float64)
        rows.append(method.deploy(state, clients, draws).parameters)
    assert torch.equal(*rows)


def test_fedper_with_everything_as_head_is_local(make_clients):
    clients, description = make_clients([37, 9, 20], (6,), 4)
    model = mlp(description)
    solver = solver_of(model, batch_size=8, momentum=0.9)
    found = after(FedPer(model, solver, head=["*"]), clients, 3, torch.float64)
    alone = after(Local(model, solver, model_init="per_client"), clients, 3, torch.float64)
    assert torch.equal(found.heads, alone.models)


def written_out(method, data, body, heads, rounds, lr):
    """The rounds of a method in numpy: the body (|BODY|,) and the heads of all clients."""
    (clients, _), samples, _ = data
    body, heads = body.copy(), heads.copy()
    for round in range(1, rounds + 1):
        who, weights = present(clients, round)
        bodies = []
        for i in who:
            row = np.empty(len(BODY) + len(HEAD))
            row[BODY], row[HEAD] = body, heads[i]
            if method is FedPer:
                row = descended(row, *samples[i], lr, 2)
            elif method is FedRep:
                row = descended(row, *samples[i], lr, 3, HEAD)
                row = descended(row, *samples[i], lr, 2, BODY)
            else:
                row = descended(row, *samples[i], lr, 2, BODY)
            bodies.append(row[BODY])
            heads[i] = row[HEAD]
        if len(who):
            body = weights @ np.array(bodies)
    return body, heads


@pytest.mark.parametrize("method", EVERY)
def test_four_rounds_written_out(method):
    data = regressions()
    options = {"head_epochs": 3} if method is FedRep else {}
    run = Run(method, data[0], model=data[2], local={**WHOLE, "epochs": 2}, **options)
    first = run.state.body[0].numpy(), run.state.heads[:, 0].numpy()
    run.go(4)
    body, heads = written_out(method, data, *first, 4, 0.3)
    assert run.state.body[0].numpy() == pytest.approx(body, abs=1e-12)
    assert run.state.heads[:, 0].numpy() == pytest.approx(heads, abs=1e-12)
    assert np.abs(body - first[0]).max() > 0.01


@pytest.mark.parametrize("part", ["full", "body", "head"])
def test_fedbabu_fine_tunes_the_named_part(part):
    data, samples, model = regressions(participation=1.0)
    how = {"tune_part": part, "tune_epochs": 4, "tune_lr": 0.2}
    run = Run(FedBABU, data, model=model, local=WHOLE, **how).go(2)
    shared = np.concatenate([run.state.body[0].numpy(), run.state.heads[0, 0].numpy()])
    which = {"full": slice(None), "body": BODY, "head": HEAD}[part]
    expected = [descended(shared, x, y, 0.2, 4, which) for x, y in samples]
    assert run.deployed() == pytest.approx(np.array(expected), abs=1e-12)


@pytest.mark.parametrize("method", [FedPer, FedRep])
def test_unseen_clients_fit_their_first_head_with_the_body_fixed(method):
    data, samples, model = regressions(participation=1.0)
    run = Run(method, data, model=model, local=WHOLE, unseen_epochs=6)
    first = run.state.heads
    everyone = run.clients
    unseen = Clients(everyone.federation, everyone.shards, np.array([3]))
    server = Server(everyone.federation, 0)
    start = run.go(2).state
    # The last client has the head that it began with, as one that never took part.
    heads = torch.cat([start.heads[:3], first[3:]])
    state = type(start)(**{**vars(start), "heads": heads})
    found = run.method.adapt(state, unseen, server, Draws(0, 2)).parameters
    row = np.concatenate([state.body[0].numpy(), first[3, 0].numpy()])
    expected = descended(row, *samples[3], 0.3, 6, HEAD)
    assert found[0, 0].numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("init", "differ"), [("shared", False), ("per_client", True)])
def test_heads_begin_alike_or_apart(init, differ):
    data, _, model = regressions()
    heads = Run(FedPer, data, model=model, local=WHOLE, head_init=init).state.heads
    assert bool((heads[0] != heads[1]).any()) == differ


@pytest.mark.parametrize("graph", [("complete",), (None, None, "static_exponential")])
def test_pfeddst_mixes_bodies_with_the_peers_that_score_best(graph):
    (clients, about), samples, model = regressions(participation=1.0)
    n, alpha, c, recency = len(samples), 3.0, 0.5, 0.4
    exchange = exchange_of("none", *graph, n=n)
    run = Run(
        PFedDST,
        (clients, about),
        model=model,
        local={**WHOLE, "epochs": 2},
        server=exchange,
        head_epochs=3,
        head_init="per_client",
        peers=2,
        loss_weight=alpha,
        offset=c,
        recency=recency,
        gossip_step_scale="none",
    )
    near = exchange.schedule.matrix(1).to_dense() != 0
    rows, last, picks = np.empty((n, model.n_parameters)), np.zeros((n, n)), set()
    rows[:, BODY], rows[:, HEAD] = run.state.body[:, 0], run.state.heads[:, 0]

    def loss(row, x, y):
        w, b, v, bias = np.split(row, np.cumsum([6, 3, 3]))
        return np.square(np.tanh(x @ w.reshape(3, 2).T + b) @ v + bias - y).mean() / 2

    def score(i, j, k):
        a, b = rows[i, HEAD], rows[j, HEAD]
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        lost = loss(rows[i], *samples[j]) if near[j, i] else 0
        return (1 - np.exp(-recency * (k - last[i, j]))) * (alpha * lost - (1 - cosine) + c)

    for k in range(1, 6):
        bodies = []
        for i in range(n):
            scores = {j: score(i, j, k) for j in np.flatnonzero(near[i]) if j != i}
            best = sorted(scores, key=scores.get)[-2:]
            bodies.append(rows[[i, *best]][:, BODY].mean(axis=0))
            last[i, best] = k
            picks.add((i, *sorted(best)))
        for i, body in enumerate(bodies):
            rows[i, BODY] = body
            rows[i] = descended(rows[i], *samples[i], 0.3, 2, BODY)
            rows[i] = descended(rows[i], *samples[i], 0.3, 3, HEAD)
        run.go()
        assert run.deployed() == pytest.approx(rows, abs=1e-12)
        assert (run.state.chosen.numpy() == last).all()
    assert len(picks) > n or None in graph
    assert exchange.ledger.up_floats == 5 * (near.sum() - n) * (model.n_parameters + 1)
