"""LG-FedAvg: the last layer is shared, the layers below stay."""

from __future__ import annotations

import numpy as np
import pytest
from old_convex import Run
from old_numpy_mlp import BODY, HEAD, descended, present, regressions

from mpifed.algorithms.fedavg.fedavg import FedAvg
from mpifed.algorithms.shared_body.lg_fedavg import LGFedAvg
from mpifed.federation.clients import Clients, Draws

WHOLE = {"lr": 0.3, "batch_size": 64}


def test_four_rounds_written_out():
    data, samples, model = regressions()
    run = Run(LGFedAvg, data, model=model, local={**WHOLE, "epochs": 2})
    head, bodies = run.state.body[0].numpy().copy(), run.state.heads[:, 0].numpy().copy()
    assert head.shape == (len(HEAD),) and (bodies == bodies[0]).all()
    for round in range(1, 5):
        who, weights = present(data[0], round)
        heads = []
        for i in who:
            row = np.empty(len(BODY) + len(HEAD))
            row[BODY], row[HEAD] = bodies[i], head
            row = descended(row, *samples[i], 0.3, 2)
            heads.append(row[HEAD])
            bodies[i] = row[BODY]
        if len(who):
            head = weights @ np.array(heads)
    run.go(4)
    assert run.state.body[0].numpy() == pytest.approx(head, abs=1e-12)
    assert run.state.heads[:, 0].numpy() == pytest.approx(bodies, abs=1e-12)
    assert run.deployed()[:, BODY] == pytest.approx(bodies, abs=1e-12)
    assert run.method.payload() == len(HEAD)


def test_with_everything_shared_it_is_fedavg():
    data, _, model = regressions()
    run = Run(LGFedAvg, data, model=model, local=WHOLE, head=["*"]).go(3)
    plain = Run(FedAvg, data, model=model, local=WHOLE).go(3)
    assert (run.state.body == plain.state.model).all()


def test_unseen_clients_fit_a_body_with_the_head_fixed():
    data, samples, model = regressions(participation=1.0)
    run = Run(LGFedAvg, data, model=model, local=WHOLE, unseen_epochs=6)
    row = np.empty(len(BODY) + len(HEAD))
    row[BODY] = run.state.heads[1, 0].numpy()
    run.go(2)
    run.state.heads[1, 0] = run.state.heads.new_tensor(row[BODY])  # as of one that was never there
    row[HEAD] = run.state.body[0].numpy()
    one = Clients(data[0].federation, data[0].shards, np.array([1]))
    found = run.method.adapt(run.state, one, run.server, Draws(0, 2)).parameters[0, 0]
    expected = descended(row, *samples[1], 0.3, 6, BODY)
    assert found.numpy() == pytest.approx(expected, abs=1e-12)
