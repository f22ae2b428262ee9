"""LG-FedAvg: the last layer is shared, the layers below stay."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run
from numpy_mlp import BODY, HEAD, descended, present, regressions

from mpifed.method import Clients

WHOLE = {"lr": 0.3, "batch_size": 64}


def test_four_rounds_written_out():
    data, samples = regressions()
    run = Run("lg_fedavg", data, local={**WHOLE, "epochs": 2})
    head, bodies = run.state.body[0].numpy().copy(), run.state.heads[:, 0].numpy().copy()
    assert head.shape == (len(HEAD),) and (bodies == bodies[0]).all()
    for _ in range(4):
        who, weights = present(run)
        heads = []
        for i in who:
            row = np.empty(len(BODY) + len(HEAD))
            row[BODY], row[HEAD] = bodies[i], head
            row = descended(row, *samples[i], 0.3, 2)
            heads.append(row[HEAD])
            bodies[i] = row[BODY]
        if len(who):
            head = weights @ np.array(heads)
        run.go()
    assert run.state.body[0].numpy() == pytest.approx(head, abs=1e-12)
    assert run.state.heads[:, 0].numpy() == pytest.approx(bodies, abs=1e-12)
    assert run.models()[:, BODY] == pytest.approx(bodies, abs=1e-12)
    assert run.algorithm.payload() == len(HEAD)


def test_with_everything_shared_it_is_fedavg():
    data, _ = regressions()
    run = Run("lg_fedavg", data, local=WHOLE, head=["*"]).go(3)
    plain = Run("fedavg", data, local=WHOLE).go(3)
    assert (run.state.body == plain.state.model).all()


def test_unseen_clients_fit_a_body_with_the_head_fixed():
    data, samples = regressions(participation=1.0)
    run = Run("lg_fedavg", data, local=WHOLE, unseen_epochs=6)
    row = np.empty(len(BODY) + len(HEAD))
    row[BODY] = run.state.heads[1, 0].numpy()
    run.go(2)
    bodies = run.state.heads.numpy().copy()
    bodies[1, 0] = row[BODY]  # as of one that never took part
    run.start_from(heads=bodies)
    row[HEAD] = run.state.body[0].numpy()
    one = Clients(run.clients.federation, run.clients.shards, np.array([1]))
    expected = descended(row, *samples[1], 0.3, 6, BODY)
    assert run.adapted(one)[0] == pytest.approx(expected, abs=1e-12)
