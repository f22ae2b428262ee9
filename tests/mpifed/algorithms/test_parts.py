"""FedPer, FedRep, FedBABU, PFedDST: what is shared, what stays, what each of them trains when."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, gossip, random_labels, two_quadratics
from numpy_mlp import BODY, HEAD, descended, present, regressions

from mpifed.method import Clients

EVERY = ("fedper", "fedrep", "fedbabu")
WHOLE = {"lr": 0.3, "batch_size": 64}


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_with_the_model_as_head_clients_end_at_their_own_minimisers(method):
    run = Run(method, two_quadratics(), local={"lr": 0.1, "epochs": 5}, head=["*"]).go(45)
    assert run.models()[:, 0] == pytest.approx([0, 4], abs=1e-9)


FOUR = random_labels([37, 9, 20], (6,), 4, model="mlp")


@pytest.mark.parametrize("method", EVERY)
def test_without_a_head_they_are_fedavg_bit_for_bit(method):
    how = {"dtype": "float32", "local": {"batch_size": 8, "epochs": 2, "momentum": 0.9}}
    found = Run(method, FOUR, head=[], **how).go(3).state
    expected = Run("fedavg", FOUR, **how).go(3).state
    assert torch.equal(found.body, expected.model)
    assert torch.equal(found.optimizer.momentum, expected.optimizer.momentum)


def test_fedbabu_without_a_head_deploys_what_fedavg_with_fine_tuning_does():
    local = {"batch_size": 8}
    fedbabu = Run("fedbabu", FOUR, local=local, head=[]).go(3)
    fine_tuned = Run("fedavg_ft", FOUR, local=local, tune_epochs=5).go(3)
    assert np.array_equal(fedbabu.models(), fine_tuned.models())


def test_fedper_with_everything_as_head_is_local():
    local = {"batch_size": 8, "momentum": 0.9}
    found = Run("fedper", FOUR, local=local, head=["*"]).go(3)
    alone = Run("local", FOUR, local=local, exchange=gossip(), model_init="per_client").go(3)
    assert torch.equal(found.state.heads, alone.state.models)


@pytest.mark.parametrize("method", EVERY)
def test_four_rounds_written_out(method):
    data, samples = regressions()
    options = {"head_epochs": 3} if method == "fedrep" else {}
    run = Run(method, data, local={**WHOLE, "epochs": 2}, **options)
    body, heads = run.state.body[0].numpy().copy(), run.state.heads[:, 0].numpy().copy()
    first = body
    for _ in range(4):
        who, weights = present(run)
        bodies = []
        for i in who:
            row = np.empty(len(BODY) + len(HEAD))
            row[BODY], row[HEAD] = body, heads[i]
            if method == "fedper":
                row = descended(row, *samples[i], 0.3, 2)
            elif method == "fedrep":
                row = descended(row, *samples[i], 0.3, 3, HEAD)
                row = descended(row, *samples[i], 0.3, 2, BODY)
            else:
                row = descended(row, *samples[i], 0.3, 2, BODY)
            bodies.append(row[BODY])
            heads[i] = row[HEAD]
        if len(who):
            body = weights @ np.array(bodies)
        run.go()
    assert run.state.body[0].numpy() == pytest.approx(body, abs=1e-12)
    assert run.state.heads[:, 0].numpy() == pytest.approx(heads, abs=1e-12)
    assert np.abs(body - first).max() > 0.01


@pytest.mark.parametrize("part", ["full", "body", "head"])
def test_fedbabu_fine_tunes_the_named_part(part):
    data, samples = regressions(participation=1.0)
    how = {"tune_part": part, "tune_epochs": 4, "tune_lr": 0.2}
    run = Run("fedbabu", data, local=WHOLE, **how).go(2)
    shared = np.concatenate([run.state.body[0].numpy(), run.state.heads[0, 0].numpy()])
    which = {"full": slice(None), "body": BODY, "head": HEAD}[part]
    expected = [descended(shared, x, y, 0.2, 4, which) for x, y in samples]
    assert run.models() == pytest.approx(np.array(expected), abs=1e-12)


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_unseen_clients_fit_their_first_head_with_the_body_fixed(method):
    data, samples = regressions(participation=1.0)
    run = Run(method, data, local=WHOLE, unseen_epochs=6)
    first = run.state.heads
    everyone = run.clients
    unseen = Clients(everyone.federation, everyone.shards, np.array([3]))
    start = run.go(2).state
    # The last client has the head that it began with, as one that never took part.
    run.start_from(heads=torch.cat([start.heads[:3], first[3:]]))
    row = np.concatenate([start.body[0].numpy(), first[3, 0].numpy()])
    expected = descended(row, *samples[3], 0.3, 6, HEAD)
    assert run.adapted(unseen)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("init", "differ"), [("shared", False), ("per_client", True)])
def test_heads_begin_alike_or_apart(init, differ):
    data, _ = regressions()
    heads = Run("fedper", data, local=WHOLE, head_init=init).state.heads
    assert bool((heads[0] != heads[1]).any()) == differ


@pytest.mark.parametrize("graph", ["complete", None])
def test_pfeddst_mixes_bodies_with_the_peers_that_score_best(graph):
    data, samples = regressions(participation=1.0)
    n, alpha, c, recency = len(samples), 3.0, 0.5, 0.4
    schedule = {} if graph else {"weights": None, "schedule": "static_exponential"}
    run = Run(
        "pfeddst",
        data,
        local={**WHOLE, "epochs": 2},
        exchange=gossip(topology=graph, **schedule),
        head_epochs=3,
        head_init="per_client",
        peers=2,
        loss_weight=alpha,
        offset=c,
        recency=recency,
        gossip_step_scale="none",
    )
    near, size = run.mixing_matrix() != 0, run.model.n_parameters
    rows, last, picks = np.empty((n, size)), np.zeros((n, n)), set()
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
        assert run.models() == pytest.approx(rows, abs=1e-12)
        assert (run.state.chosen.numpy() == last).all()
    assert len(picks) > n or graph is None
    assert run.exchange.ledger.up_floats == 5 * (near.sum() - n) * (size + 1)
