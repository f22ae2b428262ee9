"""kNN-Per: FedAvg's model, mixed with the nearest of a client's own samples."""

from __future__ import annotations

import h5py
import network_modules
import numpy as np
import pytest
import torch
from commands import TINY, call
from convex import Run
from numpy_mlp import BODY, HEAD, SIZES, descended, gradient, present, regressions
from server_rounds import after
from torch import nn

from mpifed.algorithms.fedavg import knn_per
from mpifed.algorithms.fedavg.fedala import FedALA
from mpifed.algorithms.fedavg.fedavg import FedAvg, FedAvgState
from mpifed.algorithms.fedavg.knn_per import (
    KnnPer,
    NearestNeighbours,
    nearest_columns,
    nearest_keys,
)
from mpifed.data.base import Description, Shards, Split
from mpifed.exchange.server import Server
from mpifed.federation.clients import Clients, Draws, Federation
from mpifed.local.minibatches import share_weights
from mpifed.local.options import LocalOptions
from mpifed.local.scoring import best_weight
from mpifed.local.solver import LocalSolver
from mpifed.models.heads import Between, Derived, last_layer, representation
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
    found = NearestNeighbours(model, row, *map(torch.from_numpy, (x, y)), 7, kernel)
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
    found = NearestNeighbours(model, row, x, torch.arange(40) % 3)
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
    found = NearestNeighbours(
        model, torch.zeros(1, 2), torch.tensor([[0.0], [1.0]]), torch.tensor([1, 0])
    )
    outputs = found(torch.tensor([[0.0], [0.5]]))
    # p(1) / p(0) = exp(d_0 - d_1), whose logarithm is the difference of the distances.
    assert outputs.numpy() == pytest.approx(np.array([[1.0], [0.0]]), abs=1e-6)
    alone = NearestNeighbours(model, torch.zeros(1, 2), torch.zeros(1, 1), torch.tensor([1]))
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
        served = [(clients, each.deploy(found, clients, draws), None)]
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
        found = score_clients(clients.federation, model, [(some, served, None)])
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
    method = KnnPer(model, solver_of(model), knn_lambda=weight)
    served = method.deploy(FedAvgState(row, ()), clients, Draws(0, 0))
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


# FedALA: clients begin between the global model and their own, by weights that they train.


WHOLE = {"lr": 0.3, "batch_size": 64, "epochs": 2}


def solver_of_fedala(model, longest=40, **options):
    return LocalSolver(model, LocalOptions(**options), 10, longest, torch.device("cpu"))


def test_without_a_head_it_is_fedavg_bit_for_bit(make_clients):
    clients, about = make_clients([37, 9, 20], (6,), 4, dtype=torch.float32)
    model = mlp(about)
    solver = solver_of_fedala(model, batch_size=8, epochs=2, momentum=0.9)
    method, plain = FedALA(model, solver, head=[]), FedAvg(model, solver)
    found, expected = (after(m, clients, 3, torch.float32) for m in (method, plain))
    assert torch.equal(found.model, expected.model)
    deployed = method.deploy(found, clients, Draws(0, 3)).parameters
    assert torch.equal(deployed, expected.model.expand(3, 1, -1))


def test_four_rounds_written_out():
    """Unequal clients, of whom about half take part; all samples in every step."""
    data, samples, model = regressions()
    how = {"ala_share": 1.0, "ala_lr": 3.0, "first_epochs": 4}
    run = Run(FedALA, data, model=model, local=WHOLE, **how)
    shared = run.state.model[0].numpy()
    own, w, rounds = {}, np.ones((len(SIZES), len(HEAD))), np.zeros(len(SIZES), int)
    clipped = 0
    for round in range(1, 7):
        who, weights = present(data[0], round)
        for i in who:
            start = shared.copy()
            if rounds[i]:
                difference = shared[HEAD] - own[i][HEAD]
                for _ in range(4 if rounds[i] == 1 else 1):
                    start[HEAD] = own[i][HEAD] + difference * w[i]
                    moved = w[i] - 3.0 * gradient(start, *samples[i])[HEAD] * difference
                    w[i] = moved.clip(0, 1)
                    clipped += (moved != w[i]).sum()
                start[HEAD] = own[i][HEAD] + difference * w[i]
            own[i] = descended(start, *samples[i], 0.3, 2)
            rounds[i] += 1
        if len(who):
            shared = weights @ np.array([own[i] for i in who])
    run.go(6)
    assert run.state.model[0].numpy() == pytest.approx(shared, abs=1e-12)
    assert run.state.weights[:, 0].numpy() == pytest.approx(w, abs=1e-12)
    assert clipped and (w < 1).any() and (rounds > 2).any()


def test_a_client_without_a_model_of_its_own_deploys_the_global_one():
    data, _, model = regressions(participation=0.25)
    run = Run(FedALA, data, model=model, local=WHOLE).go(1)
    absent = (run.state.rounds == 0).numpy()
    assert 0 < absent.sum() < len(absent)
    assert (run.deployed()[absent] == run.state.model.numpy()).all()
    # Below the head all clients take the global model.
    assert (run.deployed()[:, BODY] == run.state.model.numpy()[:, BODY]).all()


def test_evaluation_leaves_no_trace():
    data, _, model = regressions()
    plain, watched = (Run(FedALA, data, model=model, local=WHOLE) for _ in range(2))
    plain.go(3)
    for _ in range(3):
        watched.deployed()
        watched.go(1)
    assert torch.equal(plain.state.weights, watched.state.weights)
    assert torch.equal(plain.state.model, watched.state.model)


def test_a_share_of_the_samples_has_weights_with_mean_one(make_clients):
    clients, _ = make_clients([10, 3, 7])
    some = Clients(clients.federation, clients.shards, np.array([0, 2]))
    found = share_weights(some, Draws(0, 1), "share", 0.8, torch.zeros(1))[0]
    parts = np.split(found.numpy(), [10, 13])
    assert [np.count_nonzero(part) for part in parts] == [8, 0, 6]
    assert [part.mean() for part in parts] == pytest.approx([1, 0, 1])
    other = share_weights(some, Draws(0, 2), "share", 0.8, torch.zeros(1))[0]
    assert (other != found).any()


@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
def test_gradients_of_models_between_two_are_those_of_the_chain_rule(stepping):
    _, samples, inner = regressions()
    between = Between(inner, torch.isin(torch.arange(inner.n_parameters), torch.from_numpy(HEAD)))
    draw = np.random.default_rng(1)
    model = Derived(between)
    w, own, other = draw.uniform(size=len(HEAD)), *draw.normal(size=(2, inner.n_parameters))
    row = between.rows_of(*(torch.from_numpy(part) for part in (w, own, other)))
    x, y = samples[1]
    difference, middle = (other - own)[HEAD], other.copy()
    middle[HEAD] = own[HEAD] + difference * w
    expected = gradient(middle, x, y)[HEAD] * difference
    ones = np.ones(len(x)) / len(x)
    data = [torch.from_numpy(part) for part in (x, y[:, None], ones)]
    if stepping == "stacked":
        found = model.gradient(row[None], *(part[None] for part in data))[0]
    else:
        found = torch.empty(model.n_parameters, dtype=torch.float64)
        with model.training(row, found) as compute:
            compute(*data)
    assert found[: len(HEAD)].numpy() == pytest.approx(expected, abs=1e-12)
    assert not found[len(HEAD) :].any()


def test_running_statistics_are_those_of_fedavg(make_clients):
    clients, about = make_clients([20, 9], (3,), 2)
    network = network_modules.normalised_mlp
    model = module_model(lambda: network(about), (3,), (1,), dtype=torch.float64)
    solver = solver_of_fedala(model, batch_size=8)
    method = FedALA(model, solver, head=["2"], ala_lr=1e-12)
    found, plain = (after(m, clients, 3, torch.float64) for m in (method, FedAvg(model, solver)))
    assert method.count == 10  # scales and shifts alone
    assert torch.allclose(found.model, plain.model, atol=1e-9)
