"""kNN-Per: FedAvg's model, mixed with the nearest of a client's own samples."""

from __future__ import annotations

import h5py
import network_modules
import numpy as np
import pytest
import torch
from commands import TINY, call
from documented_methods import after
from torch import nn

from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.algorithms.personal import knn_per
from mpifed.algorithms.personal.knn_per import KnnPer, Neighbours, nearest_columns, nearest_keys
from mpifed.data.base import Description, Shards, Split
from mpifed.exchange.server import Server
from mpifed.federation.clients import Clients, Draws, Federation
from mpifed.local.options import LocalOptions
from mpifed.local.scoring import best_weight
from mpifed.local.solver import LocalSolver
from mpifed.models.heads import last_layer, representation
from mpifed.models.linear import Linear, linear
from mpifed.models.losses import CROSS_ENTROPY
from mpifed.models.lstm import lstm
from mpifed.models.mlp import Mlp, mlp
from mpifed.models.modules import module_model
from mpifed.mpi.communicator import Alone
from mpifed.training.evaluation import score_clients


def solver_of(model, longest=40, **options):
    return LocalSolver(model, LocalOptions(**options), 10, longest, torch.device("cpu"))


def by_hand(points, x, y, labels, k, kernel):
    """Probabilities of the labels by sorting (distance, index), in numpy."""
    found = np.zeros((len(points), labels))
    for row, point in zip(found, points, strict=True):
        distances = np.sqrt(((x - point) ** 2).sum(1))
        nearest = sorted(range(len(x)), key=lambda i: (distances[i], i))[:k]
        for i in nearest:
            far = distances[i] if kernel == "paper" else distances[i] ** 2 / x.shape[1]
            row[y[i]] += np.exp(-far)
    return found / found.sum(1, keepdims=True)


@pytest.mark.parametrize("kernel", ["paper", "published"])
def test_neighbours_are_found_exactly_and_the_first_of_several_at_a_distance(kernel):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 3, (30, 2)).astype(float), draw.integers(0, 4, 30)
    points = draw.integers(0, 3, (25, 2)).astype(float)
    model = Linear(2, 4)
    row = torch.zeros(1, model.n_parameters, dtype=torch.float64)
    found = Neighbours(model, row, *map(torch.from_numpy, (x, y)), 7, kernel)
    expected = by_hand(points, x, y, 4, 7, kernel)
    assert len(np.unique(x, axis=0)) < 10  # most distances are ties
    got = torch.softmax(found(torch.from_numpy(points)), 1).numpy()
    assert got == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_change_no_bit(dtype, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x, points = (torch.randn(n, 5, generator=draw).to(dtype) for n in (40, 33))
    model = Linear(5, 3)
    row = torch.zeros(1, model.n_parameters, dtype=dtype)
    found = Neighbours(model, row, x, torch.arange(40) % 3)
    whole = found(points)
    monkeypatch.setattr(knn_per, "DISTANCES", 80)
    assert torch.equal(found(points), whole)
    assert torch.equal(torch.cat([found(point[None]) for point in points]), whole)


KEYS = {
    "spread": lambda draw: torch.randn(150, 9, generator=draw),
    "tied": lambda draw: torch.randint(0, 2, (150, 4), generator=draw).float(),
    "far from the origin": lambda draw: 1000 + torch.randn(150, 9, generator=draw),
    "tiny": lambda draw: 1e-30 * torch.randn(150, 9, generator=draw),
    "huge": lambda draw: 1e25 * torch.randn(150, 9, generator=draw),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KEYS)
def test_candidates_give_the_bits_of_all_distances(kind, dtype, monkeypatch):
    draw = torch.Generator().manual_seed(3)
    keys, points = (KEYS[kind](draw).to(dtype) for _ in range(2))
    monkeypatch.setattr(knn_per, "COPIED", 999)  # several blocks
    whole = torch.cdist(points, keys, compute_mode="donot_use_mm_for_euclid_dist")
    columns = nearest_columns(whole, 7)
    distances, found = nearest_keys(points, keys, 7)
    assert torch.equal(found, columns)
    assert torch.equal(distances, whole.gather(1, columns))


def test_with_fewer_samples_than_neighbours_all_count_and_two_labels_have_one_output():
    model = Linear(1, 1)
    found = Neighbours(model, torch.zeros(1, 2), torch.tensor([[0.0], [1.0]]), torch.tensor([1, 0]))
    outputs = found(torch.tensor([[0.0], [0.5]]))
    # p(1) / p(0) = exp(d_0 - d_1), whose logarithm is the difference of the distances.
    assert outputs.numpy() == pytest.approx(np.array([[1.0], [0.0]]), abs=1e-6)
    alone = Neighbours(model, torch.zeros(1, 2), torch.zeros(1, 1), torch.tensor([1]))
    assert float(alone(torch.ones(1, 1))) > 80


ABOUT = Description("test", (8, 8), 10, *[np.array([4])] * 3)
TEXT = Description("test", (6,), 5, *[np.array([4])] * 3, task="sequence")


def module_of(build):
    return module_model(lambda: build(ABOUT), (8, 8), (10,))


MODELS = {
    "linear": lambda: Linear(64, 10),
    "mlp": lambda: mlp(ABOUT),
    "deep mlp": lambda: Mlp((64, 5, 4, 10), "tanh"),
    "cnn": lambda: module_of(network_modules.cnn),
    "recurrent": lambda: module_of(network_modules.lstm),
    "normalised": lambda: module_of(network_modules.normalised_mlp),
    "lstm": lambda: module_model(
        lambda: lstm(TEXT, hidden=4, layers=1), (6,), (6, 5), lstm(TEXT).loss
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_last_layer_makes_outputs_of_the_representation(name):
    model, about = MODELS[name](), TEXT if name == "lstm" else ABOUT
    draw = np.random.default_rng(0)
    rows = torch.stack([torch.from_numpy(model.init(draw)).float() for _ in range(2)])
    x = torch.from_numpy(draw.integers(0, 5, (7, *about.input_shape))).float()
    found, outputs = representation(model, rows, x), model.shared_logits(rows, x)
    assert found.shape[:-1] == outputs.shape[:-1]
    for row, h, z in zip(rows, found, outputs, strict=True):
        *_, layer = (part for part in model.module(row).modules() if isinstance(part, nn.Linear))
        assert torch.allclose(layer(h), z, atol=1e-5)


def test_a_module_may_name_its_last_layer():
    class Turned(nn.Module):
        last_layer = "head"

        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(3, 1), nn.Linear(2, 3)

        def forward(self, x):
            return self.head(self.body(x))

    model = module_model(Turned, (2,), (1,))
    assert last_layer(model) == "head"
    assert representation(model, torch.ones(1, model.n_parameters), torch.ones(5, 2)).shape == (
        1,
        5,
        3,
    )


def test_training_is_that_of_fedavg_and_weight_zero_its_predictor(make_clients):
    clients, about = make_clients([20, 9, 15], (4,), 3)
    model = mlp(about)
    solver = solver_of(model, batch_size=8)
    method = KnnPer(model, solver, knn_lambda=0.0)
    found, plain = (after(m, clients, 3, torch.float64) for m in (method, FedAvg(model, solver)))
    assert torch.equal(found.model, plain.model)
    draws, scored = Draws(0, 3), []
    for each in (method, FedAvg(model, solver)):
        served = [(clients, each.deploy(found, clients, draws))]
        scored.append(score_clients(clients.federation, model, served))
    assert scored[0].test_loss == pytest.approx(scored[1].test_loss, rel=1e-12)
    assert np.array_equal(scored[0].test_accuracy, scored[1].test_accuracy)


def test_clients_predict_with_the_mix_of_both(make_clients):
    clients, about = make_clients([20, 9, 15], (4,), 3)
    model = linear(about)
    method = KnnPer(model, solver_of(model), knn_lambda=0.3, knn_k=4)
    state = after(method, clients, 2, torch.float64)
    some = Clients(clients.federation, clients.shards, np.array([0, 2]))
    for served in (
        method.deploy(state, some, Draws(0, 2)),
        method.adapt(state, some, Server(clients.federation, 0), Draws(0, 2)),
    ):
        found = score_clients(clients.federation, model, [(some, served)])
        for client in (0, 2):
            own, test = (s.of_client(client) for s in (clients.shards.train, clients.shards.test))
            (x, y), (points, labels) = ((s.x.numpy(), s.y.numpy()) for s in (own, test))
            shared = torch.softmax(model.shared_logits(state.model, test.x)[0], 1)
            p = 0.3 * by_hand(points, x, y, 3, 4, "paper") + 0.7 * shared.numpy()
            assert found.test_accuracy[client] == (p.argmax(1) == labels).mean()
            expected = -np.log(p[np.arange(len(labels)), labels]).mean()
            assert found.test_loss[client] == pytest.approx(expected, rel=1e-10)


def test_the_weight_is_the_best_on_validation_samples_and_of_several_that_of_least_loss():
    grid = torch.linspace(0, 1, 11)
    right, wrong = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    y = torch.tensor([0])
    assert best_weight(CROSS_ENTROPY, torch.stack([wrong, right]), y, grid) == 1
    assert best_weight(CROSS_ENTROPY, torch.stack([right, wrong]), y, grid) == 0
    surer = 2 * right
    assert best_weight(CROSS_ENTROPY, torch.stack([right, surer]), y, grid) == 1
    assert best_weight(CROSS_ENTROPY, torch.stack([surer, right]), y, grid) == 0


def test_clients_choose_their_weights_by_themselves(make_clients):
    """Labels of the second client are those of others, turned round, which its neighbours know."""
    clients, about = make_clients([60, 60, 5], (2,), 2)
    train = clients.shards.train
    train.y[:] = (train.x[:, 0] > 0).long()
    train.y[60:120] = 1 - train.y[60:120]
    model = linear(about)
    row = torch.tensor([[50.0, 0, 0]], dtype=torch.float64)
    empty = type(train)(train.x[:0], train.y[:0], 0 * train.offsets)
    some = type(train)(train.x[:120], train.y[:120], np.array([0, 60, 120, 120]))
    shards = Shards(clients.shards.client_ids, train, some, empty)
    method = KnnPer(model, solver_of(model, 60))
    found = method._chosen(row, Clients(clients.federation, shards, np.arange(3)))
    assert found[0] == 0 and found[1] > 0.5 and found[2] == 0.5


@pytest.mark.parametrize("weight", [None, 1.0])
def test_a_client_without_training_samples_predicts_with_the_shared_model(weight):
    train = Split(torch.zeros(0, 2), torch.zeros(0).long(), np.zeros(2, np.int64))
    # Equal frequencies of all labels have the first one, which is right here, as their best.
    val = Split(torch.ones(5, 2), torch.zeros(5).long(), np.array([0, 5]))
    about = Description("test", (2,), 3, *np.array([[0], [5], [0]]))
    federation = Federation(Alone(), np.zeros(1, int), np.ones(1, bool), np.zeros(1, int))
    clients = Clients(federation, Shards(np.arange(1), train, val, train), np.arange(1))
    model = linear(about)
    row = torch.zeros(1, model.n_parameters)
    row[0, -1] = 1.0
    served = KnnPer(model, solver_of(model), knn_lambda=weight)._mixed(row, clients)
    assert served.mixture.tolist() == [[1.0, 0.0]]


def test_without_validation_samples_the_weight_is_a_half_and_the_log_says_so(tmp_path, capfd):
    done = call([*TINY, "algorithm=knn_per", "rounds=1", "--output", tmp_path / "run"], capfd)
    assert done.code == 0
    said = "knn_lambda is 0.5 for all clients, which have no validation samples"
    assert said in (tmp_path / "run" / "log.txt").read_text()
    with h5py.File(tmp_path / "run" / "clients.h5") as file:
        assert (file["mixture"][()] == 0.5).all()
    words = ["evaluation.validation_fraction=0.2", "--output", tmp_path / "chosen"]
    assert call([*TINY, "algorithm=knn_per", "rounds=1", *words], capfd).code == 0
    assert said not in (tmp_path / "chosen" / "log.txt").read_text()
