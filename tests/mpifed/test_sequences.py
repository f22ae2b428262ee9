"""Losses of sequences, and cross-entropies whose labels have weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.data.base import Description
from mpifed.models import losses as costs
from mpifed.models.lstm import class_weights, weighted_loss

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
    found = costs.score(costs.SEQUENCE, z[:1], y, None)
    assert torch.allclose(found.loss, expected) and torch.equal(found.loss, found.nll)
    assert torch.equal(found.hits, (z[0].argmax(-1) == y).sum(-1))
    assert found.possible.tolist() == [L] * 4


def test_a_mixture_of_sequence_models_mixes_probabilities_at_each_position(drawn):
    z, y, pi = drawn
    p = torch.einsum("m,mblk->blk", pi, torch.softmax(z, -1))
    right = p.gather(-1, y[..., None])[..., 0]
    found = costs.score(costs.SEQUENCE, z, y, pi)
    assert torch.allclose(found.loss, -torch.log(right).mean(-1))
    tempered = torch.exp(-costs.SEQUENCE.samples(z, y.expand(3, 4, L)))
    assert torch.allclose(found.nll, -torch.log((pi[:, None] * tempered).sum(0)))
    assert torch.equal(found.hits, (p.argmax(-1) == y).sum(-1))
    whole = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    alone, mixed = (costs.score(costs.SEQUENCE, *of) for of in ((z[1:2], y, None), (z, y, whole)))
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
    found = costs.score(loss, z, y, pi)
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
