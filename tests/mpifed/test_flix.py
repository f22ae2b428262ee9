from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import scipy.optimize
import torch
from convex import (
    ANISOTROPIC,
    EXACT,
    ISOTROPIC,
    Problem,
    Run,
    logistic,
    quadratics,
    random_quadratics,
)
from numpy_flix import (
    Constants,
    Risk,
    largest_distance,
    quadratic_risk,
    risk_of,
    spread,
    variance,
)

from mpifed.method import Draws
from mpifed.model import (
    Objectives,
    Regulariser,
    SparseObjective,
    StackedObjective,
    hessian,
    smoothness,
)


@pytest.mark.parametrize(
    ("alpha", "minimiser", "curvature", "least", "deployed"),
    [
        ([0.5, 0.5], 2.4, 0.625, 0.45, (1.2, 2.7)),
        ([0.2, 0.8], 2.953846154, 1.3, 0.0886153846, (0.590769231, 2.963076923)),
        (1.0, 2.4, 2.5, 1.8, (2.4, 2.4)),
    ],
)
def test_isotropic_quadratics_are_solved_by_the_one_shot_average(
    alpha, minimiser, curvature, least, deployed
):
    run = Run("flix", quadratics(*ISOTROPIC), flix_alpha=alpha).go()
    assert run.x == pytest.approx([minimiser], rel=1e-9)
    assert float(run.flix.step) == pytest.approx(1 / curvature, rel=1e-9)
    assert run.metrics["objective"] == pytest.approx(least, rel=1e-8)
    assert float(run.flix.least) == pytest.approx(least, rel=1e-8)
    assert run.models()[:, 0] == pytest.approx(deployed, rel=1e-8)
    assert run.exchange.ledger.up_floats == 2 * (1 + 1)


def test_anisotropic_quadratics_follow_theorem_two():
    run = Run("flix", quadratics(*ANISOTROPIC), flix_alpha=0.5).go()
    assert run.x == pytest.approx([0.571428571, 0.857142857], abs=1e-8)
    assert float(run.flix.least) == pytest.approx(0.246875, rel=1e-9)
    assert run.flix.reference.tolist() == pytest.approx([0.25, 0.4], abs=1e-9)
    gaps = [run.metrics["objective_gap"]]
    for _ in range(3):
        gaps.append(run.go().measured()["objective_gap"])
    assert gaps == pytest.approx([0.091135204, 0.0100752, 0.0013066, 0.0001956], abs=5e-8)
    assert run.flix.smoothness.tolist() == pytest.approx([4, 3], rel=1e-9)
    optima, smooth = run.flix.optima.numpy(), run.flix.smoothness.numpy()
    assert largest_distance(optima) == pytest.approx(5, rel=1e-9)
    apart = spread(optima, smooth)
    assert apart == pytest.approx(1.224489796, rel=1e-8)
    # Theorem 1's bound on the first gap, and Theorem 2's rate.
    assert gaps[0] < 0.5**2 * 3.5 * apart / 2 == pytest.approx(0.535714, rel=1e-6)
    rate = 1 - float(run.flix.step) * 0.5**2
    assert rate == pytest.approx(0.7142857, rel=1e-6)
    assert all(later <= rate * gap for gap, later in itertools.pairwise(gaps))


@pytest.mark.parametrize("data", [logistic(n=2), random_quadratics(n=2, d=5)])
@pytest.mark.parametrize("kind", ["l2", "nonconvex"])
def test_the_hessian_is_the_difference_of_gradients_and_these_of_values(data, kind):
    run, term = Run("local", data), Regulariser(kind, 0.7)
    clients, model = run.clients, run.model
    risk = Objectives(model, term)(clients)
    x = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 5)))
    steps = 1e-5 * torch.eye(5, dtype=torch.float64)
    slopes = [(risk.losses(x + e) - risk.losses(x - e)) / 2e-5 for e in steps]
    assert torch.allclose(torch.stack(slopes, 1), risk.gradients(x), atol=1e-8)
    curves = [(risk.gradients(x + e) - risk.gradients(x - e)) / 2e-5 for e in steps]
    found = [hessian(model, clients.shards.train, i, x[i], term) for i in range(2)]
    assert torch.allclose(torch.stack(curves, 2), torch.stack(found), atol=1e-8)
    steepest = term.hessian_diagonal(torch.linspace(-4, 4, 81)[None]).abs().max()
    assert term.smoothness == pytest.approx(float(steepest))


def test_the_smoothness_of_many_features_is_the_largest_eigenvalue():
    """Of so many it is found by Lanczos's method."""
    x = np.random.default_rng(0).normal(size=(6, 2500))
    run = Run("local", Problem([(x, np.ones(6)), (x[:2], np.ones(2))]))
    expected = [np.linalg.norm(part, 2) ** 2 / len(part) for part in (x, x[:2])]
    found = smoothness(run.model, run.clients, Regulariser())
    assert found.numpy() == pytest.approx(expected, rel=1e-9)


def test_the_published_smoothness_has_a_quarter_of_l2_over_the_samples():
    run = Run("flix", quadratics(*ANISOTROPIC), l2=0.8, smoothness="published_code")
    assert run.flix.smoothness.tolist() == pytest.approx([4 + 0.8 / 8, 3 + 0.8 / 8], rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_random_quadratics_have_the_minimum_in_closed_form(seed):
    draw = np.random.default_rng(seed)
    roots, centres = draw.normal(size=(6, 4, 4)), draw.normal(size=(6, 4))
    matrices = [root @ root.T + np.eye(4) for root in roots]

    def solved(alpha):
        weighted = [a**2 * m for a, m in zip(alpha, matrices, strict=True)]
        right = sum(w @ c for w, c in zip(weighted, centres, strict=True))
        return np.linalg.solve(sum(weighted), right)

    data = quadratics(matrices, list(centres))
    least = {}
    for alpha in (0.2, 0.4, 1.0, list(draw.uniform(0.1, 1, 6))):
        run = Run("flix", data, flix_alpha=alpha, reference="newton")
        expected = solved(np.broadcast_to(alpha, 6))
        assert run.flix.reference.numpy() == pytest.approx(expected, rel=1e-8, abs=1e-9)
        if isinstance(alpha, float):
            least[alpha] = float(run.flix.least)
    assert solved(np.full(6, 0.2)) == pytest.approx(solved(np.ones(6)))
    for alpha in (0.2, 0.4):
        assert least[alpha] == pytest.approx(alpha**2 * least[1.0], rel=1e-9)


@pytest.mark.parametrize("kind", ["dcgd", "diana"])
def test_one_client_with_whole_messages_is_gradient_descent(kind):
    data, options = random_quadratics(n=1, d=5), {"flix_alpha": 0.6, "start": "ones", "step": 0.1}
    whole, same = Run("flix", data, **options), Run(kind, data, **options)
    for _ in range(10):
        assert same.go().x == pytest.approx(whole.go().x, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.3, [0.1, 0.4, 1.0, 0.0, 0.7, 0.5]])
def test_the_gradient_is_the_derivative_of_the_objective(alpha):
    run = Run("flix", logistic(), flix_alpha=alpha, l2=0.1, start="ones")
    x = np.random.default_rng(3).normal(size=5)
    value = Risk(run, logistic(), alpha, 0.1).value
    run.start_from(model=x[None])
    assert run.measured()["objective"] == pytest.approx(value(x), rel=1e-12)
    step = float(run.flix.step)
    numeric = scipy.optimize.approx_fprime(x, value, 1e-6)
    assert (x - run.go().x) / step == pytest.approx(numeric, abs=1e-6)


def root_of(risk, d=5):
    """Where the gradient of ``risk`` vanishes, by MINPACK."""
    options = {"jac": lambda w: risk(w)[2], "tol": 1e-15}
    return scipy.optimize.root(lambda w: risk(w)[1], np.zeros(d), **options).x


@pytest.mark.parametrize("reference", ["newton", "lbfgs"])
@pytest.mark.parametrize("alpha", [1.0, 0.4, [0.1, 0.4, 1.0, 0.0, 0.7, 0.5]], ids=str)
def test_minimisers_are_those_of_scipy(alpha, reference):
    data, exact = logistic(), {"local_tolerance": 1e-15, "l2": 0.1}
    run = Run("flix", data, flix_alpha=alpha, reference=reference, **exact)
    shards = data.samples
    own = np.array([root_of(functools.partial(risk_of, *shard)) for shard in shards])
    assert run.flix.optima.numpy() == pytest.approx(own, abs=1e-13)
    for shard, found in zip(shards, run.flix.optima.numpy(), strict=True):
        assert np.linalg.norm(risk_of(*shard, found)[1]) < 1e-14

    def risk(w):
        some = zip(np.broadcast_to(alpha, 6), own, shards, strict=True)
        parts = [(a, *risk_of(*shard, a * w + (1 - a) * o)) for a, o, shard in some]
        return tuple(sum(a**k * part[k] for a, *part in parts) / 6 for k in range(3))

    best, found = root_of(risk), run.flix.reference.numpy()
    # L-BFGS sees no more of the gradient than the rounding of the objective lets it.
    close = {"newton": 1e-13, "lbfgs": 1e-7}[reference]
    assert found == pytest.approx(best, abs=close)
    assert np.linalg.norm(risk(best)[1]) < 1e-15
    assert np.linalg.norm(risk(found)[1]) < close
    assert abs(risk(found)[0] - risk(best)[0]) < 1e-14
    assert abs(float(run.flix.least) - risk(best)[0]) < 1e-14


def test_minimisers_are_those_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    data = logistic()
    run = Run("flix", data, flix_alpha=1.0, l2=0.1, local_tolerance=1e-15)
    x, y = (np.concatenate(each) for each in zip(*data.samples, strict=True))

    def fitted(x, y):
        options = {"fit_intercept": False, "solver": "newton-cholesky", "tol": 1e-14}
        return LogisticRegression(C=1 / (0.1 * len(y)), **options).fit(x, y).coef_[0]

    assert run.flix.reference.numpy() == pytest.approx(fitted(x, y), abs=1e-14)
    for found, sample in zip(run.flix.optima.numpy(), data.samples, strict=True):
        assert found == pytest.approx(fitted(*sample), abs=1e-13)


@pytest.mark.parametrize("solver", ["gd", "lbfgs", "newton"])
def test_every_solver_finds_the_local_optima(solver):
    run = Run("flix", logistic(), l2=0.1, local_solver=solver, local_tolerance=1e-8)
    exact = Run("flix", logistic(), l2=0.1)
    assert torch.allclose(run.flix.optima, exact.flix.optima, atol=1e-6)
    assert float(run.flix.gradient_norm.max()) < (1e-8 if solver == "gd" else 1e-6)


@pytest.mark.parametrize("kind", ["dcgd", "diana"])
def test_without_compression_every_method_is_gradient_descent(kind):
    step = {"step": 0.7, "flix_alpha": 0.6, "l2": 0.1}
    plain = Run("flix", logistic(), **step).go(30)
    for compression in (None, ("rand_k", {"k": 5})):
        other = Run(kind, logistic(), compression, **step).go(30)
        assert other.x == pytest.approx(plain.x, rel=1e-12, abs=1e-12)


def test_dianas_memory_is_the_mean_of_its_clients():
    run = Run("diana", logistic(), ("rand_k", {"k": 2}), flix_alpha=0.6, l2=0.1)
    for _ in range(20):
        run.go()
        assert torch.allclose(run.state.memories.mean(0), run.state.memory, atol=1e-15)


def test_dianas_memories_begin_with_the_gradients_of_those_who_take_part():
    data = logistic(participation=0.5)
    options = {"flix_alpha": 0.6, "l2": 0.1, "start": "ones", "memory_start": "gradients"}
    run = Run("diana", data, ("rand_k", {"k": 2}), **options)
    there = run.participants
    assert len(there) == 3
    gradients = Risk(run, data, 0.6, 0.1).gradients(run.x)
    run.go()
    expected = np.zeros_like(gradients)
    expected[there] = gradients[there]
    assert run.state.memories.numpy() == pytest.approx(expected, abs=1e-15)
    assert run.state.memory.numpy() == pytest.approx(expected.mean(0), abs=1e-15)


def test_diana_has_no_floor():
    # The model has no regulariser: its strong convexity comes from the data, so a step by hand.
    c = Constants(0.6, np.full(10, 5.0), 1.0, omega=4.0, beta=0.2)
    options = {"flix_alpha": 0.6, "start": "ones", "step": c.diana_step}
    data = random_quadratics()
    diana = Run("diana", data, ("rand_k", {"k": 4}), **options).go(600)
    away = float(((diana.x - diana.flix.reference.numpy()) ** 2).sum())
    assert away < 1e-8
    still = Risk(diana, data, 0.6, risk=quadratic_risk).gradients(diana.flix.reference.numpy())
    assert np.square(diana.state.memories.numpy() - still).sum(1).mean() < 1e-8


def test_scafflix_ends_at_the_minimum_in_closed_form_with_unequal_steps():
    draw = np.random.default_rng(4)
    roots, centres = draw.normal(size=(5, 3, 3)), draw.normal(size=(5, 3))
    # L_i differ by a factor of 100, and so do the steps.
    matrices = [s * (r @ r.T + np.eye(3)) for s, r in zip((1, 3, 10, 30, 100), roots, strict=True)]
    alpha = [0.2, 0.5, 1.0, 0.0, 0.7]
    weighted = [a**2 * m for a, m in zip(alpha, matrices, strict=True)]
    right = sum(w @ c for w, c in zip(weighted, centres, strict=True))
    x = np.linalg.solve(sum(weighted), right)
    data = quadratics(matrices, list(centres))
    options = {"flix_alpha": alpha, "scafflix_p": 0.3, "start": "ones", **EXACT}
    run = Run("scafflix", data, **options).go(200)
    assert run.x == pytest.approx(x, abs=1e-9)
    steps = 1 / np.array([np.linalg.eigvalsh(m)[-1] for m in matrices])
    assert run.flix.smoothness.numpy() == pytest.approx(1 / steps, rel=1e-9)
    # h_i is the gradient of f_i at T_i(x), where alpha_i is positive; the alpha_i h_i add up to 0.
    slopes = [a * m @ (x - c) for a, m, c in zip(alpha, matrices, centres, strict=True)]
    assert run.state.variates.numpy() == pytest.approx(np.array(slopes), abs=1e-6)
    assert np.array(alpha) @ run.state.variates.numpy() == pytest.approx(np.zeros(3), abs=1e-9)


def test_scafflix_takes_the_steps_of_scaffnew_where_clients_have_no_optimum_of_their_own():
    data, p, rounds, step = random_quadratics(n=4, d=3), 0.4, 12, 0.15
    run = Run("scafflix", data, flix_alpha=1.0, scafflix_p=p, start="zeros", step=step)
    matrices = [x.T @ x / len(x) for x, _ in data.samples]
    sides = [x.T @ y.ravel() / len(x) for x, y in data.samples]
    x, h = np.zeros(3), np.zeros((4, 3))
    for k in range(1, rounds + 1):
        rows = np.tile(x, (4, 1))
        for _ in range(int(Draws(0, k).stream("coin").geometric(p))):
            slopes = [m @ w - b for m, w, b in zip(matrices, rows, sides, strict=True)]
            rows = rows - step * (np.array(slopes) - h)
        x = rows.mean(0)
        h += p / step * (x - rows)
        assert run.go().x == pytest.approx(x, abs=1e-12)
        assert run.state.variates.numpy() == pytest.approx(h, abs=1e-11)
    assert run.exchange.ledger.up_floats == 4 * 3 * rounds


def test_the_lyapunov_function_falls_as_theorem_four_says():
    data, compression = random_quadratics(n=8, d=6), ("rand_k", {"k": 2})
    c = Constants(0.5, np.full(8, 5.0), 1.0, omega=2.0, beta=1 / 3)
    step, rounds, values = c.diana_step, 40, []
    rate = c.diana_rate(step)
    for seed in range(6):
        run = Run("diana", data, compression, seed=seed, flix_alpha=0.5, start="ones", step=step)
        reference = run.flix.reference
        h = torch.from_numpy(Risk(run, data, 0.5, risk=quadratic_risk).gradients(reference.numpy()))

        def lyapunov(run=run, reference=reference, h=h):
            away = float((run.flix.model[0] - reference).square().sum())
            sigma = float((2.0 * (run.state.memories - h).square().sum(1)).mean())
            return away + 4 * step**2 / (8 * c.beta) * sigma

        start = lyapunov()
        run.go(rounds)
        values.append(lyapunov())
    assert np.mean(values) <= rate**rounds * start


def test_the_ledger_counts_what_the_paper_plots():
    run = Run("diana", logistic(), ("rand_k", {"k": 2}), l2=0.1).go(11)
    # The average of the first round sends d + 1 numbers, the ten others k.
    assert run.exchange.ledger.up_floats == 6 * (5 + 1) + 6 * 2 * 10
    assert run.exchange.ledger.up_bits == 64 * run.exchange.ledger.up_floats


def test_smoothness_is_the_largest_eigenvalue_of_the_hessian_bound():
    run = Run("local", logistic())
    found = smoothness(run.model, run.clients, Regulariser("l2", 0.1))
    for i, (x, _) in enumerate(logistic().samples):
        expected = np.linalg.eigvalsh(x.T @ x)[-1] / (4 * len(x)) + 0.1
        assert float(found[i]) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("alpha", [0.2, 0.7, 1.0])
def test_the_variance_of_what_is_deployed(alpha):
    """Proposition 3: Var(T_i(x)) = (1 - alpha)^2 Var(x_i) for any x."""
    run = Run("flix", logistic(), flix_alpha=alpha, l2=0.1)
    run.start_from(model=np.random.default_rng(5).normal(size=(1, 5)))
    expected = (1 - alpha) ** 2 * variance(run.flix.optima.numpy())
    assert variance(run.models()) == pytest.approx(expected, abs=1e-14)


def test_sparse_and_dense_ways_agree():
    for bias in (False, True):
        run = Run("local", logistic(), model={"name": "linear", "bias": bias})
        w = torch.from_numpy(np.random.default_rng(0).normal(size=(6, run.model.n_parameters)))
        clients, way = run.clients, Regulariser("l2", 0.3)
        arguments = run.model, clients.rows, way, clients.shards.train
        ways = [kind(*arguments) for kind in (StackedObjective, SparseObjective)]
        assert torch.allclose(ways[0].losses(w), ways[1].losses(w), atol=1e-14)
        assert torch.allclose(ways[0].gradients(w), ways[1].gradients(w), atol=1e-14)


def test_each_client_has_the_way_that_fits_its_own_samples():
    """The first client's inputs are empty."""
    problem = logistic()
    problem.samples[0] = 0 * problem.samples[0][0], problem.samples[0][1]
    run, way = Run("local", problem, model="linear"), Regulariser("l2", 0.3)
    mixed = Objectives(run.model, way)(run.clients)
    dense = StackedObjective(run.model, run.clients.rows, way, run.clients.shards.train)
    w = torch.ones(6, run.model.n_parameters, dtype=torch.float64)
    assert torch.allclose(mixed.losses(w), dense.losses(w), atol=1e-14)
    assert torch.allclose(mixed.gradients(w), dense.gradients(w), atol=1e-14)


def shifted(data, change):
    """The same clients with ``change`` of inputs and labels."""
    return Problem([change(x, y) for x, y in data.samples], data.model)


def split_by_a_plane(x, y):
    return x, (x[:, 0] > 0).astype(int)


def with_a_column_twice(x, y):
    return np.hstack([x[:, :-1], x[:, :1]]), y


@pytest.mark.parametrize("reference", ["newton", "lbfgs", "none"])
@pytest.mark.parametrize(
    ("change", "l2", "unique"),
    [
        (lambda x, y: (x, y), 0.0, True),
        (lambda x, y: (x, y), 0.1, True),
        (split_by_a_plane, 0.1, True),
        (split_by_a_plane, 0.0, False),
        (with_a_column_twice, 0.1, True),
        (with_a_column_twice, 0.0, False),
    ],
)
def test_distances_are_from_a_minimiser_or_not_measured(reference, change, l2, unique):
    options = {"l2": l2, "local_solver": "gd", "local_tolerance": 1e-2, "reference": reference}
    run = Run("flix", shifted(logistic(), change), flix_alpha=0.3, **options)
    found = run.go(2).measured()
    assert ("objective_gap" in found) == (reference != "none")
    # L-BFGS has no Hessians to see by that there is one minimiser.
    seen = unique and (reference == "newton" or (reference == "lbfgs" and l2 > 0))
    assert ("deployed_distance" in found) == seen
