"""A client's arithmetic does not depend on who shares its block: the ground of rank invariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.federation.clients import Draws
from mpifed.local.minibatches import COLUMNS, never_alone
from mpifed.local.options import LocalOptions
from mpifed.local.scoring import train_losses
from mpifed.local.solver import LocalSolver
from mpifed.models.linear import linear
from mpifed.models.loss import LANES, cross_entropy
from mpifed.models.mlp import mlp
from mpifed.models.modules import module_model
from mpifed.training.verification import addresses_agree, products_agree

DTYPES = [torch.float32, torch.float64]
PARTS = [(0, 1), (3, 4), (0, 2), (1, 4), (7, 40), (1, 18), (33, 41), (40, 41)]


def blocks_agree(function, rows):
    """Whether ``function`` of a slice computes rows alike in every block."""
    whole = function(slice(0, rows))
    edges = {(0, 1), (rows - 1, rows), (0, 2), (1, min(4, rows)), (rows // 2, rows)}
    parts = (slice(first, last) for first, last in sorted(edges) if first < last <= rows)
    return all(np.array_equal(function(part), whole[part], equal_nan=True) for part in parts)


def convolution(description):
    def build():
        return torch.nn.Sequential(
            torch.nn.Unflatten(-1, (1, 6, 6)),
            torch.nn.Conv2d(1, 3, 3),
            torch.nn.GELU(),
            torch.nn.Flatten(-3),
            torch.nn.Linear(48, 4),
        )

    return module_model(build, (36,), (4,))


def deep(description):
    return mlp(description, hidden=[17, 9])


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_do_not_depend_on_addresses(dtype):
    assert products_agree(dtype)


@pytest.mark.parametrize("shape", [(37, 33, 1), (1, 150, 3), (500, 150, 3), (64, 10, 20)])
def test_products_of_numpy_do_not_depend_on_addresses(shape):
    """Samples are generated with these."""
    m, k, n = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, k, generator=generator, dtype=torch.float64)
    b = torch.randn(n, k, generator=generator, dtype=torch.float64)
    assert addresses_agree(lambda a, b: torch.from_numpy(a.numpy() @ b.numpy().T), a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(37, 33, 1), (1, 33, 128), (5, 150, 64), (64, 36, 32)])
def test_batched_products_do_not_depend_on_the_batch(dtype, shape):
    """As long as a row is never alone."""
    m, k, n = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(9, m, k, generator=generator, dtype=dtype)
    b = torch.randn(9, n, k, generator=generator, dtype=dtype)

    def product(a, b):
        return torch.bmm(a, b.transpose(1, 2))

    assert blocks_agree(lambda part: never_alone(product, a[part], b[part]), 9)


@pytest.mark.parametrize("atoms", [1, 4, 15, 50])
@pytest.mark.parametrize("inputs", [2, 10, 130])
def test_columns_do_not_depend_on_their_place(atoms, inputs):
    """As long as their number is a multiple of ``COLUMNS``."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(atoms, inputs, generator=generator, dtype=torch.float64)
    column = torch.randn(inputs, 1, generator=generator, dtype=torch.float64)
    found = set()
    for count in (1, 2, 5, 50):
        product = torch.mm(a, column.repeat(1, count * COLUMNS))
        found |= {tuple(one.tolist()) for one in product.T}
    assert len(found) == 1


def test_blocks_that_differ_are_told_apart():
    x = torch.arange(14.0).view(7, 2)
    assert blocks_agree(lambda part: x[part], 7)
    assert not blocks_agree(lambda part: x[part] * (part.stop - part.start), 7)
    assert not blocks_agree(lambda part: x[part] + (part.start > 0) * 1e-6, 7)
    for rows in (1, 2):
        assert blocks_agree(lambda part: x[part] / 0, rows)


def test_addresses_that_matter_are_found():
    a, b = torch.ones(3, 4), torch.ones(4, dtype=torch.float64)
    assert addresses_agree(lambda a, b: a * b, a, b)
    assert not addresses_agree(lambda a, b: a * (a.data_ptr() % 64), a, b)
    assert not addresses_agree(lambda a, b: b * (b.data_ptr() % 64), a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_losses_and_slopes_do_not_depend_on_position(dtype, n_classes):
    generator = torch.Generator().manual_seed(0)
    outputs = 1 if n_classes == 2 else n_classes
    logits = torch.randn(501, outputs, generator=generator, dtype=dtype) * 4
    y = torch.randint(0, n_classes, (501,), generator=generator)
    found = cross_entropy(logits, y)
    for a, b in [(0, 1), (3, 4), (7, 501), (1, 17), (450, 501), (5, 300)]:
        assert torch.equal(cross_entropy(logits[a:b].clone(), y[a:b]), found[a:b])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("build", "width"),
    [(linear, 128), (mlp, 128), (deep, 4 * LANES), (linear, 2), (linear, 10), (mlp, 2), (mlp, 50)],
)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_gradients_do_not_depend_on_the_block(make_clients, dtype, build, width, n_classes):
    _, description = make_clients([4], shape=(33,), n_classes=n_classes)
    model = build(description)
    generator = torch.Generator().manual_seed(1)
    rows = 41
    w = torch.randn(rows, model.n_parameters, generator=generator, dtype=dtype)
    x = torch.rand(rows, width, 33, generator=generator, dtype=dtype)
    y = torch.randint(0, n_classes, (rows, width), generator=generator)
    scale = torch.rand(rows, width, generator=generator, dtype=dtype) / width
    whole = model.gradient(w, x, y, scale)
    for a, b in PARTS:
        if b - a > 1:  # the solver never computes one row alone
            part = (t[a:b].clone() for t in (w, x, y, scale))
            assert torch.equal(model.gradient(*part), whole[a:b]), (a, b)
    rates = torch.rand(rows, 1, generator=generator, dtype=dtype)
    moved = w.clone()
    model.descend(moved, x, y, scale, rates)
    torch.testing.assert_close(moved, w - rates * whole)
    for a, b in PARTS:
        if b - a > 1:
            part = [t[a:b].clone() for t in (w, x, y, scale, rates)]
            model.descend(*part)
            assert torch.equal(part[0], moved[a:b]), (a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize(
    ("build", "n_classes"), [(linear, 2), (linear, 4), (deep, 2), (deep, 4), (convolution, 4)]
)
def test_training_does_not_depend_on_the_block(
    monkeypatch, make_clients, dtype, components, build, n_classes
):
    counts = np.random.default_rng(5).integers(0, 50, 11)
    clients, description = make_clients(counts, (36,), n_classes, dtype)
    model = build(description)
    options = LocalOptions(
        lr=0.3,
        momentum=0.9,
        weight_decay=1e-3,
        batch_size=20,
        epochs=2,
        stepping="stacked",
        sam_radius=0.05 * (components > 1),
    )
    first = np.stack([model.init(np.random.default_rng(m)) for m in range(components)])
    start = torch.from_numpy(first).to(dtype).expand(len(clients), -1, -1)
    weights = torch.rand(components, int(counts.sum()), generator=torch.Generator().manual_seed(3))
    results = []
    for block_bytes in (1, 40_000, 1 << 30, 0):
        if not block_bytes:  # as a large model, whose clients step alone
            monkeypatch.setattr("mpifed.local.solver.LARGE", 0)
        solver = LocalSolver(model, options, 10, int(counts.max()), torch.device("cpu"))
        solver.stacked.block_bytes = block_bytes
        buffers = solver.init(len(clients), components, dtype)
        results.append(solver(start, buffers, clients, Draws(0, 1), weights=weights.to(dtype)))
    # A client that steps alone is one row, whose kernel is another one on some CPUs.
    alone, _ = results.pop()
    assert torch.allclose(alone, results[0][0], atol=1e-5 if dtype == torch.float32 else 1e-12)
    for trained, optimizer in results[1:]:
        assert torch.equal(trained, results[0][0])
        assert torch.equal(optimizer.momentum, results[0][1].momentum)


@pytest.mark.parametrize("per_client", [False, True])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [1, 2, 5], [4, 0, 1]])
@pytest.mark.parametrize(
    ("make", "n_classes"), [(linear, 2), (linear, 4), (deep, 4), (convolution, 4)]
)
def test_losses_of_samples_are_those_of_each_client_alone(
    make_clients, make, n_classes, rows, per_client
):
    clients, description = make_clients([9, 1, 40, 0, 33, 6], (36,), n_classes)
    model, train = make(description), clients.shards.train
    size = 35 if make is not convolution else model.scored_together
    if make is not convolution:
        object.__setattr__(model, "scored_together", size)
    generator = torch.Generator().manual_seed(0)
    shape = (len(rows), 3) if per_client else (3,)
    models = torch.randn(*shape, model.n_parameters, generator=generator, dtype=train.x.dtype)
    found = train_losses(model, models, train, np.array(rows))
    for i, row in enumerate(rows):
        own = models[i] if per_client else models
        for begin in range(train.offsets[row], train.offsets[row + 1], size):
            part = slice(begin, min(begin + size, train.offsets[row + 1]))
            outputs = model.shared_logits(own, train.x[part])
            alone = model.loss.samples(outputs, train.y[part].expand(3, -1))
            assert torch.equal(found[:, part], alone)


@pytest.mark.parametrize("models", [1, 2, 6, 7])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("make", [linear, mlp, deep])
def test_outputs_on_shared_inputs_are_those_of_each_model_beside_a_copy(
    make_clients, make, n_classes, models
):
    """Whichever product is the faster one for so many models."""
    _, description = make_clients([4], (36,), n_classes)
    model, generator = make(description), torch.Generator().manual_seed(0)
    rows = torch.randn(models, model.n_parameters, generator=generator, dtype=torch.float64)
    x = torch.randn(11, 36, generator=generator, dtype=torch.float64)
    expected = model.logits(rows, x.expand(models, 11, 36))
    assert torch.allclose(model.shared_logits(rows, x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_perceptrons_gradient_is_that_of_autograd(make_clients, activation):
    """Its slopes are made in place; a unit that is cut off passes nothing on."""
    _, description = make_clients([4], (6,), 3)
    model = mlp(description, hidden=[5, 4], activation=activation)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, model.n_parameters, generator=generator, dtype=torch.float64)
    x = torch.randn(3, 8, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (3, 8), generator=generator)
    weights = torch.rand(3, 8, generator=generator, dtype=torch.float64)
    leaf = w.clone().requires_grad_()
    (model.loss.samples(model.logits(leaf, x), y) * weights).sum().backward()
    assert torch.allclose(model.gradient(w, x, y, weights), leaf.grad, rtol=1e-10, atol=1e-12)
