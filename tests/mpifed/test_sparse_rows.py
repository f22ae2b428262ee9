"""Messages of a few coordinates: bit for bit what whole rows with zeros give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, clients_of, logistic
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.algorithms.flix.dcgd import Dcgd
from mpifed.algorithms.flix.diana import Diana
from mpifed.algorithms.flix.objective import partial_gradients
from mpifed.errors import RunError
from mpifed.exchange import compression
from mpifed.exchange.compression import build
from mpifed.exchange.reduction import SparseRows, add_scaled, gathered, weighted_sum
from mpifed.federation.clients import Draws
from mpifed.local.linear_objective import objective_of
from mpifed.local.objective import Regulariser
from mpifed.models.linear import linear
from mpifed.mpi import sums as mpi_sums
from mpifed.mpi.communicator import Alone


def drawn(clients, size, k, seed=0, dtype=torch.float64):
    draw = np.random.default_rng(seed)
    columns = np.stack([draw.choice(size, k, replace=False) for _ in range(clients)])
    values = draw.normal(size=(clients, k)) * 10.0 ** draw.integers(-9, 9, (clients, k))
    return SparseRows(columns, torch.from_numpy(values).to(dtype), size)


def whole(rows):
    found = torch.zeros(len(rows.columns), rows.size, dtype=rows.values.dtype)
    return found.scatter_(1, torch.from_numpy(rows.columns), rows.values)


def bytes_of(values):
    return np.ascontiguousarray(values).tobytes()


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.floats(0, 1),
    st.integers(0, 99),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([7, 1 << 18]),
)
def test_sums_and_additions_are_those_of_whole_rows(clients, size, share, seed, dtype, pieces):
    rows = drawn(clients, size, max(1, int(share * size)), seed, dtype)
    weights, ids = np.linspace(0.1, 1.7, clients), np.arange(clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mpi_sums.FlatSums, "columns", pieces)
        few = weighted_sum(Alone(), rows, weights, ids, clients)
        all_of_them = weighted_sum(Alone(), whole(rows), weights, ids, clients)
    assert bytes_of(few) == bytes_of(all_of_them)
    before = drawn(clients, size, size, seed + 1, dtype)
    sums = (
        add_scaled(whole(before), rows, 0.3),
        add_scaled(whole(before), whole(rows), 0.3),
    )
    assert torch.equal(*sums)
    assert torch.equal(gathered(whole(rows), rows.columns), rows.values)


def test_nobody_here_and_what_is_not_finite():
    none = SparseRows(np.zeros((0, 3), np.int64), torch.zeros(0, 3).double(), 5)
    assert weighted_sum(Alone(), none, np.ones(0), np.arange(0), 4).tolist() == [0] * 5
    rows = drawn(4, 9, 2)
    rows.values[2, 1] = np.inf
    with pytest.raises(RunError, match="client 7 "):
        weighted_sum(Alone(), rows, np.ones(4), np.array([5, 6, 7, 8]), 4)


@pytest.mark.parametrize("size", [8, 301, 5000])
def test_rand_k_names_the_coordinates_that_it_keeps(size):
    compressor, draws, ids = build({"name": "rand_k", "fraction": 0.1}), Draws(3, 2), np.arange(40)
    columns = compressor.coordinates(size, draws, ids, "p")
    kept = compressor.select(torch.zeros(40, size), draws, ids, "p")
    assert np.array_equal(np.nonzero(kept)[1].reshape(40, -1), np.sort(columns))
    assert build({"name": "rand_k", "fraction": 0.5}).coordinates(size, draws, ids, "p") is None


def problem(bias, density, n=5, m=40, d=30):
    draw = np.random.default_rng(4)
    xs = [draw.normal(size=(m, d)) * (draw.random((m, d)) < p) for p in np.resize(density, n)]
    data = clients_of(xs, [draw.integers(2, size=m) for _ in range(n)], "classification")
    return data[0], linear(data[1], bias=bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("density", [(0.1,), (0.9,), (0.1, 0.9)])
@pytest.mark.parametrize("kind", ["l2", "nonconvex"])
def test_coordinates_of_gradients_are_those_of_whole_ones(bias, density, kind):
    clients, model = problem(bias, density)
    objective = objective_of(model, clients, Regulariser(kind, 0.2))
    w = torch.randn(5, model.n_parameters, generator=torch.Generator().manual_seed(1)).double()
    columns = drawn(5, model.n_parameters, 4).columns
    found = partial_gradients(objective, w, columns)
    assert bytes_of(found) == bytes_of(gathered(objective.gradients(w), columns))
    w[3, 2] = np.nan
    assert partial_gradients(objective, w, columns) is None


@pytest.mark.parametrize("method", [Dcgd, Diana])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_a_run_is_the_same_by_few_coordinates_and_by_whole_rows(method, participation, monkeypatch):
    def run():
        data = logistic(d=24, participation=participation)
        made = Run(method, data, ("rand_k", {"k": 3}), flix_alpha=0.4, l2=0.1).go(30)
        return made.x.tobytes(), vars(made.server.ledger)

    few = run()
    monkeypatch.setattr(compression, "FEW", 0)
    assert run() == few
