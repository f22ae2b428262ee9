"""Models and losses: logits, gradients, mixtures, sequences and weighted classes, against torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mpifed.data.base import Description
from mpifed.models import losses as costs
from mpifed.models.linear import Linear, linear
from mpifed.models.loss import cross_entropy, cross_entropy_slopes, score
from mpifed.models.lstm import class_weights, weighted_loss
from mpifed.models.mlp import Mlp, mlp
from mpifed.models.modules import module_model


def module_of(model) -> torch.nn.Module:
    """The same model written with torch's own layers."""
    if isinstance(model, Linear):
        return torch.nn.Linear(model.n_inputs, model.n_outputs, model.bias)
    layers = []
    for a, b in zip(model.sizes, model.sizes[1:], strict=False):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(
    "model",
    [Linear(7, 1), Linear(7, 4), Linear(7, 1, bias=False), Mlp((7, 5, 3)), Mlp((7, 6, 5, 1))],
)
def test_logits_and_gradients_are_those_of_torchs_layers(model):
    module = module_of(model).double()
    parameters = torch.from_numpy(
        np.stack([model.init(np.random.default_rng(m)) for m in range(3)])
    )
    assert parameters.shape == (3, sum(p.numel() for p in module.parameters()))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 10, 7, generator=generator, dtype=torch.float64)
    outputs = model.logits(parameters, x).shape[-1]
    y = torch.randint(0, max(2, outputs), (3, 10), generator=generator)
    weights = torch.rand(3, 10, generator=generator, dtype=torch.float64)
    shared = model.shared_logits(parameters, x[0])
    gradient = model.gradient(parameters, x, y, weights)
    for row in range(3):
        torch.nn.utils.vector_to_parameters(parameters[row], module.parameters())
        assert torch.allclose(model.logits(parameters, x)[row], module(x[row]), atol=1e-14)
        assert torch.allclose(shared[row], module(x[0]), atol=1e-14)
        module.zero_grad()
        z = module(x[row])
        if outputs == 1:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                z[:, 0], y[row].double(), reduction="none"
            )
        else:
            losses = torch.nn.functional.cross_entropy(z, y[row], reduction="none")
        (losses * weights[row]).sum().backward()
        expected = torch.cat([p.grad.flatten() for p in module.parameters()])
        assert torch.allclose(gradient[row], expected, atol=1e-14)
        assert torch.allclose(cross_entropy(z, y[row]), losses, atol=1e-14)
    leaf = parameters.clone().requires_grad_()
    total = (model.loss.samples(model.logits(leaf, x), y) * weights).sum()
    (by_autograd,) = torch.autograd.grad(total, leaf)
    assert torch.allclose(gradient, by_autograd, atol=1e-14)


@pytest.mark.parametrize(
    ("model", "names", "zeros"),
    [
        (Linear(7, 4), ["bias"], 0),
        (Linear(7, 1), ["weight"], 0),
        (Linear(7, 1, bias=False), [], 0),
        (Mlp((7, 6, 5, 1)), ["layers.2"], 83),
        (Mlp((7, 6, 5, 3), "tanh"), ["layers.1.bias"], 48),
        (Mlp((7, 5, 3)), ["layers.0.bias"], 0),
    ],
)
def test_gradients_of_what_is_trained_have_the_bits_of_the_whole(model, names, zeros):
    """Below the lowest trained layer nothing is computed."""
    generator, mask = torch.Generator().manual_seed(0), model.mask(names)
    rows, x = (torch.rand(3, *s, generator=generator) for s in ((model.n_parameters,), (32, 7)))
    y = torch.randint(0, 2, (3, 32), generator=generator)
    weights = torch.rand(3, 32, generator=generator)
    whole = model.gradient(rows, x, y, weights)
    found = model.gradient_within(mask)(rows, x, y, weights)
    assert torch.equal(found[:, mask], whole[:, mask])
    assert (found[:, :zeros] == 0).all() and (found[:, zeros:] == whole[:, zeros:]).all()


def test_initial_weights_are_uniform_within_one_over_root_inputs():
    values = Linear(400, 50).init(np.random.default_rng(0)) * math.sqrt(400)
    assert np.abs(values).max() <= 1 and abs(values.std() - 1 / math.sqrt(3)) < 0.01


def test_binary_problems_have_one_output(make_clients):
    _, binary = make_clients([3], n_classes=2)
    _, ten = make_clients([3], n_classes=10)
    assert linear(binary).n_parameters == 6 and linear(ten).n_parameters == 60
    assert mlp(binary).sizes == (5, 64, 1) and mlp(ten, hidden=[8, 4]).sizes == (5, 8, 4, 10)


def test_a_mixture_predicts_the_mixed_probability():
    z = torch.tensor([[[2.0], [-1.0], [0.1]], [[-3.0], [4.0], [-0.2]]], dtype=torch.float64)
    y = torch.tensor([1, 0, 0])
    pi = torch.tensor([0.7, 0.3], dtype=torch.float64)
    p1 = 0.7 / (1 + np.exp(-z[0, :, 0].numpy())) + 0.3 / (1 + np.exp(-z[1, :, 0].numpy()))
    found = score(costs.CROSS_ENTROPY, z, y, pi)
    assert np.allclose(found.loss, -np.log(np.where(y == 1, p1, 1 - p1)))
    assert torch.equal(found.loss, found.nll)
    assert found.hits.tolist() == [bool(a > 0.5) == b for a, b in zip(p1, y, strict=True)]


def test_a_mixture_of_multi_class_models():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    pi = torch.tensor([0.4, 0.6], dtype=torch.float64)
    p = 0.4 * torch.softmax(z[0], -1) + 0.6 * torch.softmax(z[1], -1)
    found = score(costs.CROSS_ENTROPY, z, y, pi)
    assert torch.allclose(found.loss, -torch.log(p[torch.arange(6), y]))
    assert torch.equal(found.loss, found.nll)
    assert torch.equal(found.hits, p.argmax(-1) == y)
    single = score(costs.CROSS_ENTROPY, z[:1], y, None).loss
    assert torch.allclose(single, torch.nn.functional.cross_entropy(z[0], y, reduction="none"))


def outputs_and_targets(kind):
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(3, 40, 7, generator=generator, dtype=torch.float64)
    drawn = torch.randn(40, 7, generator=generator, dtype=torch.float64)
    return z, (drawn > 1).double() if kind == "multi_label" else drawn


@pytest.mark.parametrize("name", ["squared", "half_squared", "multi_label"])
def test_a_mixture_is_scored_as_the_predictor_that_it_is(name):
    """The loss of sum pi h; -log sum pi e^(-loss) is the likelihood of the mixture."""
    loss = costs.loss_for("multi_label" if name == "multi_label" else "regression", name)
    z, y = outputs_and_targets(name)
    pi = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    if name == "multi_label":
        p = torch.einsum("m,mbq->bq", pi, torch.sigmoid(z))
        expected = torch.nn.functional.binary_cross_entropy(p, y, reduction="none").mean(-1)
    else:
        away = (torch.einsum("m,mbq->bq", pi, z) - y).square()
        expected = away.mean(-1) if name == "squared" else away.sum(-1) / 2
    likelihood = (pi[:, None] * torch.exp(-loss.samples(z, y.expand(3, 40, 7)))).sum(0)
    found = score(loss, z, y, pi)
    assert torch.allclose(found.loss, expected, atol=1e-13)
    assert torch.allclose(found.nll, -torch.log(likelihood), atol=1e-13)
    assert not torch.allclose(found.loss, found.nll, atol=1e-3)


@pytest.mark.parametrize("name", ["squared", "half_squared", "multi_label"])
def test_a_mixture_of_one_model_is_that_model(name):
    loss = costs.loss_for("multi_label" if name == "multi_label" else "regression", name)
    z, y = outputs_and_targets(name)
    alone = score(loss, z[1:2], y, None)
    whole = score(loss, z, y, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    for key, value in vars(alone).items():
        assert torch.allclose(value, getattr(whole, key), atol=1e-13)


@pytest.mark.parametrize("name", ["cross_entropy", "squared", "multi_label", "binary"])
def test_a_copy_of_a_loss_as_ones_own_scores_and_slopes_as_it_does(name):
    known = costs.CROSS_ENTROPY if name == "binary" else getattr(costs, name.upper())
    own = costs.own_loss(known.samples, like=known)
    z, y = outputs_and_targets(name)
    if name in ("cross_entropy", "binary"):
        z, y = (z[..., :1], y[:, 0] > 0) if name == "binary" else (z, y.argmax(1))
        y = y.long()
    pi = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for outputs, mixture in ((z[:1], None), (z, pi)):
        whole = score(known, outputs, y, mixture)
        for key, value in vars(score(own, outputs, y, mixture)).items():
            assert torch.allclose(value, getattr(whole, key), atol=1e-13), key
    each = y.expand(3, *y.shape)
    assert torch.allclose(own.slopes(z, each), known.slopes(z, each), atol=1e-13)


def test_mixed_tags_stay_finite_far_out():
    z = torch.tensor([[[1e4, -1e4]], [[-1e4, 1e4]]])
    found = score(costs.MULTI_LABEL, z, torch.tensor([[1.0, 0.0]]), torch.tensor([0.5, 0.5]))
    assert found.loss.tolist() == pytest.approx([math.log(2)])
    one_sided = score(costs.MULTI_LABEL, z[:1], torch.tensor([[0.0, 1.0]]), torch.ones(1))
    assert one_sided.loss.tolist() == [1e4]


def test_losses_stay_finite_far_out():
    z = torch.tensor([[1e4], [-1e4]])
    assert cross_entropy(z, torch.tensor([0, 1])).tolist() == [1e4, 1e4]
    assert cross_entropy_slopes(z, torch.tensor([0, 1]))[:, 0].tolist() == [1.0, -1.0]


def test_a_users_module_is_one_flat_row():
    def build():
        return torch.nn.Sequential(torch.nn.Linear(7, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))

    model = module_model(build, (7,), (3,))
    parameters = np.stack([model.init(np.random.default_rng(m)) for m in (0, 0, 1)])
    assert np.array_equal(parameters[0], parameters[1])
    assert not np.array_equal(parameters[0], parameters[2])
    rows = torch.from_numpy(parameters).float()
    module = build()
    torch.nn.utils.vector_to_parameters(rows[2], module.parameters())
    x = torch.rand(5, 7)
    assert torch.equal(model.shared_logits(rows, x)[2], module(x))
    assert torch.equal(model.module(rows[2])(x), module(x))


# Losses of sequences, and cross-entropies whose labels have weights.


L, K = 6, 5


def data(task, counts=None, n_classes=K):
    n = np.array([7])
    return Description("drawn", (L,), n_classes, n, n, n, task, label_counts=counts)


@pytest.fixture
def drawn():
    """Logits of three models (3, 4, L, K), labels (4, L), mixture weights (3,)."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 4, L, K, generator=generator, dtype=torch.float64)
    y = torch.randint(0, K, (4, L), generator=generator)
    return z, y, torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def test_targets_of_sequences_are_labels_at_each_position():
    about = data("sequence")
    assert about.target_shape == (L,) and about.target_type(torch.float32) == torch.int64
    assert about.n_outputs == K and data("sequence", n_classes=2).n_outputs == 2
    assert costs.loss_for("sequence") is costs.SEQUENCE


def test_the_loss_of_a_sequence_is_the_mean_over_its_positions(drawn):
    z, y, _ = drawn
    expected = torch.nn.functional.cross_entropy(z[0].movedim(-1, 1), y, reduction="none").mean(-1)
    assert torch.allclose(costs.SEQUENCE.samples(z[0], y), expected)
    found = score(costs.SEQUENCE, z[:1], y, None)
    assert torch.allclose(found.loss, expected) and torch.equal(found.loss, found.nll)
    assert torch.equal(found.hits, (z[0].argmax(-1) == y).sum(-1))
    assert found.possible.tolist() == [L] * 4


def test_a_mixture_of_sequence_models_mixes_probabilities_at_each_position(drawn):
    z, y, pi = drawn
    p = torch.einsum("m,mblk->blk", pi, torch.softmax(z, -1))
    right = p.gather(-1, y[..., None])[..., 0]
    found = score(costs.SEQUENCE, z, y, pi)
    assert torch.allclose(found.loss, -torch.log(right).mean(-1))
    tempered = torch.exp(-costs.SEQUENCE.samples(z, y.expand(3, 4, L)))
    assert torch.allclose(found.nll, -torch.log((pi[:, None] * tempered).sum(0)))
    assert torch.equal(found.hits, (p.argmax(-1) == y).sum(-1))
    whole = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    alone, mixed = (score(costs.SEQUENCE, *of) for of in ((z[1:2], y, None), (z, y, whole)))
    for key, value in vars(alone).items():
        assert torch.allclose(value, getattr(mixed, key))


COUNTS = np.array([50, 30, 15, 5, 0])


@pytest.mark.parametrize("task", ["sequence", "classification"])
@pytest.mark.parametrize("weighting", ["none", "inverse_frequency", "published"])
def test_weighted_losses_and_their_slopes_are_those_of_torch(task, weighting, drawn):
    z, y, pi = drawn
    if task == "classification":
        z, y = z[:, :, 0], y[:, 0]
    loss = weighted_loss(data(task, COUNTS), weighting)
    weights = torch.from_numpy(class_weights(COUNTS, weighting))
    leaf = z[0].clone().requires_grad_()
    losses = torch.nn.functional.cross_entropy(leaf.movedim(-1, 1), y, weights, reduction="none")
    expected = losses.mean(-1) if task == "sequence" else losses
    assert torch.allclose(loss.samples(z[0], y), expected)
    assert torch.allclose(
        loss.slopes(z[0], y), torch.autograd.grad(expected.sum(), leaf)[0], atol=1e-15
    )
    found = score(loss, z, y, pi)
    p = torch.einsum("m,m...k->...k", pi, torch.softmax(z, -1))
    mixed = -torch.log(p.gather(-1, y[..., None])[..., 0]) * weights[y]
    assert torch.allclose(found.loss, mixed.mean(-1) if task == "sequence" else mixed)
    assert loss.samples(z[0].float(), y).dtype == torch.float32


def test_two_classes_with_weights_have_one_logit():
    counts = np.array([9, 1])
    loss = weighted_loss(data("classification", counts, 2), "inverse_frequency")
    z, y = torch.tensor([[0.3], [0.3]]), torch.tensor([0, 1])
    plain = costs.CROSS_ENTROPY.samples(z, y)
    assert torch.allclose(loss.samples(z, y), plain * torch.tensor([10 / 18, 5.0]))


def test_by_inverse_frequency_every_label_has_the_same_share_of_the_loss():
    weights = class_weights(COUNTS, "inverse_frequency")
    shares = weights[:4] * COUNTS[:4]
    assert np.allclose(shares, COUNTS.sum() / 4)
    assert np.isclose((weights * COUNTS).sum(), COUNTS.sum())
    # A label that does not occur has the weight of one that occurs once.
    assert weights[4] == 100 / 4 and np.isfinite(weights).all()


def test_published_weights_are_capped_and_fall_with_the_frequency():
    counts = np.array([8000, 1500, 400, 100, 0])
    weights = class_weights(counts, "published")
    assert np.allclose(weights, [8 * 0.0114 / 0.8, 8 * 0.0114 / 0.15, 8 * 0.0114 / 0.04, 8, 8])


def test_no_weights_is_the_plain_loss():
    assert weighted_loss(data("sequence"), "none") is costs.SEQUENCE
    assert weighted_loss(data("classification"), "none") is costs.CROSS_ENTROPY
