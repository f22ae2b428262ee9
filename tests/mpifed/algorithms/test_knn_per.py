"""kNN-Per: FedAvg's model, mixed with the nearest of a client's own samples."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from commands import TINY, call
from convex import Problem, Run, problem_of, random_labels
from numpy_mlp import BODY, HEAD, SIZES, descended, gradient, present, regressions
from scipy.special import logsumexp
from torch import nn

from mpifed.dataset import alike
from mpifed.method import Clients, Draws
from mpifed.model import (
    CROSS_ENTROPY,
    Between,
    Derived,
    best_weight,
    last_layer,
    module_model,
    representation,
    share_weights,
)
from mpifed.testing import make_model


def predictor(x, y, dtype="float64", **options):
    """The nearest neighbours of one client among its samples; the model is linear."""
    run = Run("knn_per", problem_of([x], [y], "classification"), dtype=dtype, **options)
    deployed = run.algorithm.deploy(run.state, run.clients, Draws(0, 0))
    return deployed.local_predictor(0)


def by_hand(points, x, y, labels, k, kernel):
    """Probabilities of the labels by sorting (distance, index), in numpy."""
    logits = np.full((len(points), labels), -np.inf)
    for row, point in zip(logits, points, strict=True):
        distances = np.sqrt(((x - point) ** 2).sum(1))
        for i in sorted(range(len(x)), key=lambda i: (distances[i], i))[:k]:
            far = distances[i] if kernel == "paper" else distances[i] ** 2 / x.shape[1]
            row[y[i]] = np.logaddexp(row[y[i]], -far)
    return np.exp(logits - logsumexp(logits, 1, keepdims=True))


def probabilities(neighbours, points):
    return torch.softmax(neighbours(points), 1).numpy()


@pytest.mark.parametrize("kernel", ["paper", "published"])
def test_neighbours_are_found_exactly_and_the_first_of_several_at_a_distance(kernel):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 3, (30, 2)).astype(float), draw.permutation(np.arange(30) % 4)
    points = draw.integers(0, 3, (25, 2)).astype(float)
    assert len(np.unique(x, axis=0)) < 10  # most distances are ties
    neighbours = predictor(x, y, knn_k=7, knn_kernel=kernel)
    expected = by_hand(points, x, y, 4, 7, kernel)
    assert probabilities(neighbours, torch.from_numpy(points)) == pytest.approx(expected, abs=1e-14)


KEYS = {
    "spread": lambda draw: draw.normal(size=(150, 9)),
    "tied": lambda draw: draw.integers(0, 2, (150, 4)).astype(float),
    "far from the origin": lambda draw: 1000 + draw.normal(size=(150, 9)),
    "tiny": lambda draw: 1e-30 * draw.normal(size=(150, 9)),
    "huge": lambda draw: 1e25 * draw.normal(size=(150, 9)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KEYS)
def test_points_have_the_bits_of_each_alone_and_the_neighbours_of_all_distances(kind, dtype):
    draw = np.random.default_rng(3)
    keys, points = (KEYS[kind](draw).astype(dtype) for _ in range(2))
    labels = draw.permutation(np.arange(150) % 5)
    neighbours, at = predictor(keys, labels, dtype, knn_k=7), torch.from_numpy(points)
    together = neighbours(at)
    alone = torch.cat([neighbours(point[None]) for point in at])
    assert np.array_equal(alone, together, equal_nan=True)
    if dtype == "float32" and kind in ("huge", "tiny"):  # whose squares are infinite or zero
        return
    expected = by_hand(points.astype(float), keys.astype(float), labels, 5, 7, "paper")
    tolerance = 1e-12 if dtype == "float64" else 1e-4
    assert torch.softmax(together, 1).numpy() == pytest.approx(expected, abs=tolerance)


def test_many_points_are_cut_where_no_bit_changes():
    draw = np.random.default_rng(0)
    x, points = draw.normal(size=(3000, 2)), torch.from_numpy(draw.normal(size=(1500, 2)))
    neighbours = predictor(x, np.arange(3000) % 3)
    assert torch.equal(neighbours(points)[1390:], neighbours(points[1390:]))


def test_with_fewer_samples_than_neighbours_all_count_and_two_labels_have_one_output():
    outputs = predictor([[0.0], [1.0]], np.array([1, 0]))(torch.tensor([[0.0], [0.5]]).double())
    # p(1) / p(0) = exp(d_0 - d_1), whose logarithm is the difference of the distances.
    assert outputs.numpy() == pytest.approx(np.array([[1.0], [0.0]]), abs=1e-6)
    alone = predictor(np.zeros((1, 1)), np.array([1]))
    assert float(alone(torch.ones(1, 1).double())) > 80


PICTURES = alike("test", (8, 8), 10, 1, (4, 0, 4), "classification")
TEXT = alike("test", (6,), 5, 1, (4, 0, 4), "sequence")
MODELS = {
    "linear": ("linear", PICTURES),
    "mlp": ("mlp", PICTURES),
    "deep mlp": ({"name": "mlp", "hidden": [5, 4], "activation": "tanh"}, PICTURES),
    "cnn": ("network_modules:cnn", PICTURES),
    "recurrent": ("network_modules:lstm", PICTURES),
    "normalised": ("network_modules:normalised_mlp", PICTURES),
    "lstm": ({"name": "lstm", "hidden": 4, "layers": 1}, TEXT),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_last_layer_makes_outputs_of_the_representation(name):
    words, about = MODELS[name]
    model = make_model(words, about)
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


RANDOM = random_labels([20, 9, 15], (4,), 3, model="mlp")


def test_training_is_that_of_fedavg_and_weight_zero_its_predictor():
    how = {"local": {"batch_size": 8}}
    found = Run("knn_per", RANDOM, knn_lambda=0.0, **how).go(3)
    plain = Run("fedavg", RANDOM, **how).go(3)
    assert torch.equal(found.state.model, plain.state.model)
    scored, expected = found.metrics, plain.metrics
    assert scored["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-12)
    assert scored["test_accuracy"] == expected["test_accuracy"]


def test_clients_predict_with_the_mix_of_both():
    """Scored on their samples; an unseen client has the same predictor."""
    problem = random_labels([20, 9, 15], (4,), 3)
    run = Run("knn_per", problem, knn_lambda=0.3, knn_k=4).go(2)
    losses, hits = [], []
    for x, y in problem.samples:
        shared = torch.softmax(run.model.shared_logits(run.state.model, torch.from_numpy(x))[0], 1)
        p = 0.3 * by_hand(x, x, y, 3, 4, "paper") + 0.7 * shared.numpy()
        losses.extend(-np.log(p[np.arange(len(y)), y]))
        hits.extend(p.argmax(1) == y)
    assert run.metrics["test_loss"] == pytest.approx(np.mean(losses), rel=1e-10)
    assert run.metrics["test_accuracy"] == pytest.approx(np.mean(hits))
    method, draws = run.algorithm, Draws(0, 2)
    one = Clients(run.clients.federation, run.clients.shards, np.array([2]))
    seen = method.deploy(run.state, one, draws)
    unseen = method.adapt(run.state, one, run.exchange, draws)
    assert torch.equal(seen.mixture, unseen.mixture)
    points = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(seen.local_predictor(0)(points), unseen.local_predictor(0)(points))


def test_the_weight_is_the_best_on_validation_samples_and_of_several_that_of_least_loss():
    grid = torch.linspace(0, 1, 11)
    right, wrong = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    y = torch.tensor([0])
    assert best_weight(CROSS_ENTROPY, torch.stack([wrong, right]), y, grid) == 1
    assert best_weight(CROSS_ENTROPY, torch.stack([right, wrong]), y, grid) == 0
    surer = 2 * right
    assert best_weight(CROSS_ENTROPY, torch.stack([right, surer]), y, grid) == 1
    assert best_weight(CROSS_ENTROPY, torch.stack([surer, right]), y, grid) == 0


def test_clients_choose_their_weights_by_themselves():
    """Labels of the second client are those of others, turned round, which its neighbours know."""
    draw = np.random.default_rng(0)
    xs = [draw.uniform(-1, 1, (n, 2)) for n in (60, 60, 5)]
    ys = [(x[:, 0] > 0).astype(int) for x in xs]
    ys[1] = 1 - ys[1]
    samples = [(x, y, x, y) for x, y in zip(xs, ys, strict=True)]
    samples[2] = samples[2][:2]
    run = Run("knn_per", Problem(samples, "linear")).start_from(model=[[50.0, 0, 0]])
    of_neighbours = run.deployed.mixture[:, 1]
    assert of_neighbours[0] == 0 and of_neighbours[1] > 0.5 and of_neighbours[2] == 0.5


@pytest.mark.parametrize("weight", [None, 1.0])
def test_a_client_without_training_samples_predicts_with_the_shared_model(weight):
    """Equal frequencies of all labels have the first one, which is right, as their best."""
    none, val = (np.zeros((0, 2)), np.zeros(0, int)), (np.ones((5, 2)), np.zeros(5, int))
    samples = [(np.eye(3, 2), np.arange(3), *val), (*none, *val)]
    run = Run("knn_per", Problem(samples, "linear"), knn_lambda=weight)
    one = Clients(run.clients.federation, run.clients.shards, np.array([1]))
    served = run.algorithm.adapt(run.state, one, run.exchange, Draws(0, 0))
    assert served.mixture.tolist() == [[1.0, 0.0]]


def test_without_validation_samples_the_weight_is_a_half_and_the_log_says_so(tmp_path, capfd):
    done = call([*TINY, "algorithm=knn_per", "rounds=1", "--output", tmp_path / "run"], capfd)
    assert done.code == 0
    remark = "knn_lambda is 0.5"
    assert remark in (tmp_path / "run" / "log.txt").read_text()
    with h5py.File(tmp_path / "run" / "clients.h5") as file:
        assert (file["mixture"][()] == 0.5).all()
    words = ["evaluation.validation_fraction=0.2", "--output", tmp_path / "chosen"]
    assert call([*TINY, "algorithm=knn_per", "rounds=1", *words], capfd).code == 0
    assert remark not in (tmp_path / "chosen" / "log.txt").read_text()


# FedALA: clients begin between the global model and their own, by weights that they train.


WHOLE = {"lr": 0.3, "batch_size": 64, "epochs": 2}


def test_without_a_head_it_is_fedavg_bit_for_bit():
    problem = random_labels([37, 9, 20], (6,), 4, model="mlp")
    how = {"dtype": "float32", "local": {"batch_size": 8, "epochs": 2, "momentum": 0.9}}
    run = Run("fedala", problem, head=[], **how).go(3)
    expected = Run("fedavg", problem, **how).go(3).state.model
    assert torch.equal(run.state.model, expected)
    assert (run.models() == expected.numpy()).all()


def test_four_rounds_written_out():
    """Unequal clients, of whom about half take part; all samples in every step."""
    data, samples = regressions()
    how = {"ala_share": 1.0, "ala_lr": 3.0, "first_epochs": 4}
    run = Run("fedala", data, local=WHOLE, **how)
    shared = run.state.model[0].numpy()
    own, w, rounds = {}, np.ones((len(SIZES), len(HEAD))), np.zeros(len(SIZES), int)
    clipped = 0
    for _ in range(6):
        who, weights = present(run)
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
        run.go()
    assert run.state.model[0].numpy() == pytest.approx(shared, abs=1e-12)
    assert run.state.weights[:, 0].numpy() == pytest.approx(w, abs=1e-12)
    assert clipped and (w < 1).any() and (rounds > 2).any()


def test_a_client_without_a_model_of_its_own_deploys_the_global_one():
    data, _ = regressions(participation=0.25)
    run = Run("fedala", data, local=WHOLE).go(1)
    absent = (run.state.rounds == 0).numpy()
    assert 0 < absent.sum() < len(absent)
    assert (run.models()[absent] == run.state.model.numpy()).all()
    # Below the head all clients take the global model.
    assert (run.models()[:, BODY] == run.state.model.numpy()[:, BODY]).all()


def test_evaluation_leaves_no_trace():
    data, _ = regressions()
    plain, watched = (Run("fedala", data, local=WHOLE) for _ in range(2))
    plain.go(3)
    for _ in range(3):
        watched.models()
        watched.go(1)
    assert torch.equal(plain.state.weights, watched.state.weights)
    assert torch.equal(plain.state.model, watched.state.model)


def test_a_share_of_the_samples_has_weights_with_mean_one():
    clients = Run("local", random_labels([10, 3, 7])).clients
    some = Clients(clients.federation, clients.shards, np.array([0, 2]))
    found = share_weights(some, Draws(0, 1), "share", 0.8, torch.zeros(1))[0]
    parts = np.split(found.numpy(), [10, 13])
    assert [np.count_nonzero(part) for part in parts] == [8, 0, 6]
    assert [part.mean() for part in parts] == pytest.approx([1, 0, 1])
    other = share_weights(some, Draws(0, 2), "share", 0.8, torch.zeros(1))[0]
    assert (other != found).any()


@pytest.mark.parametrize("stepping", ["stacked", "one_by_one"])
def test_gradients_of_models_between_two_are_those_of_the_chain_rule(stepping):
    data, samples = regressions()
    inner = Run("local", data).model
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


def test_running_statistics_are_those_of_fedavg():
    problem = random_labels([20, 9], (3,), 2, model="network_modules:normalised_mlp")
    local = {"batch_size": 8}
    found = Run("fedala", problem, local=local, head=["2"], ala_lr=1e-12).go(3).state
    plain = Run("fedavg", problem, local=local).go(3).state
    assert torch.allclose(found.model, plain.model, atol=1e-9)
