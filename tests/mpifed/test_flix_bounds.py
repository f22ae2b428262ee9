"""What Gasanov et al. 2021 prove, on random problems and over seeds."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from convex import Run, logistic, problem_of, random_quadratics
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_flix import (
    Constants,
    Risk,
    largest_distance,
    nonconvex_risk,
    risk_of,
    spread,
    variance,
)

from mpifed.model import Regulariser, smoothness
from mpifed.testing import load_dataset

norm = np.linalg.norm
SEEDS = st.integers(0, 2**16)
COEFFICIENTS = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4)
QUICK = settings(max_examples=10, deadline=None)


def points(seed, d=3, count=2):
    return 3 * np.random.default_rng(seed).normal(size=(count, d))


@QUICK
@given(SEEDS, COEFFICIENTS)
def test_the_constants_of_proposition_two_bound_the_curvature(seed, alpha):
    problem = logistic(4, 10, 3, seed)
    run = Run("flix", problem, flix_alpha=alpha, l2=0.2, reference="none")
    risk, (x, y) = Risk(run, problem, alpha, 0.2), points(seed)
    c = risk.constants()
    apart, change = x - y, risk.gradient(x) - risk.gradient(y)
    assert norm(change) <= c.l_alpha * norm(apart) * (1 + 1e-9)
    assert change @ apart >= c.mu_alpha * (apart @ apart) * (1 - 1e-9)


@QUICK
@given(SEEDS, st.floats(0.0, 1.0))
def test_proposition_three_holds_at_any_point(seed, alpha):
    run = Run("flix", logistic(4, 10, 3, seed), flix_alpha=alpha, l2=0.2, reference="none")
    run.start_from(model=points(seed)[:1])
    expected = (1 - alpha) ** 2 * variance(run.flix.optima.numpy())
    assert variance(run.models()) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@QUICK
@given(SEEDS, COEFFICIENTS)
def test_lemma_one_and_proposition_four(seed, alpha):
    problem = logistic(4, 10, 3, seed)
    run = Run("flix", problem, flix_alpha=alpha, l2=0.2)
    risk, (x, _) = Risk(run, problem, alpha, 0.2), points(seed)
    squares, away = np.square(alpha) * risk.smooth, x - risk.optima
    pairs = zip(problem.samples, risk.optima, strict=True)
    alone = [risk_of(*sample, w, 0.2)[0] for sample, w in pairs]
    bound = np.mean(alone) + (squares * np.square(away).sum(1)).mean() / 2
    assert risk.value(x) <= bound * (1 + 1e-9)
    assert norm(risk.gradient(x)) <= (squares * norm(away, axis=1)).mean() * (1 + 1e-9)
    c, off = risk.constants(), norm(x - run.flix.reference.numpy())
    assert norm(risk.gradient(x)) <= c.l_alpha * off * (1 + 1e-9)
    assert risk.value(x) - float(run.flix.least) <= c.l_alpha / 2 * off**2 * (1 + 1e-9)


@QUICK
@given(SEEDS, st.floats(0.05, 1.0))
def test_the_average_is_within_theorem_one_and_proposition_five(seed, alpha):
    problem = logistic(4, 10, 3, seed)
    run = Run("flix", problem, flix_alpha=alpha, l2=0.2).go()
    optima, smooth = run.flix.optima.numpy(), run.flix.smoothness.numpy()
    c = Risk(run, problem, alpha, 0.2).constants()
    gap = run.metrics["objective_gap"]
    assert gap <= c.l_alpha * spread(optima, smooth) / 2 * (1 + 1e-9)
    assert spread(optima, smooth) <= largest_distance(optima)
    away = ((run.x - optima) ** 2).sum(1)
    off = float(((run.x - run.flix.reference.numpy()) ** 2).sum())
    assert off <= (smooth * away).mean() / 0.2 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("samples", "clients"), [(300, 40), (41, 4), (7, 7), (9, 2), (2, 1), (8124, 50)]
)
def test_the_split_is_the_paper_s(samples, clients, tmp_path):
    """Client i has rows floor((i - 1) r / n) + 1 to floor(i r / n), all counted from 1."""
    file = tmp_path / "numbers"
    file.write_text("".join(f"{row % 2} 1:{row}\n" for row in range(1, samples + 1)))
    dataset = load_dataset({"name": "libsvm", "path": str(file), "intercept": False}, clients)
    train = dataset.load(np.arange(clients), torch.float64).train
    for i in range(1, clients + 1):
        first, last = (i - 1) * samples // clients + 1, i * samples // clients
        assert train.of_client(i - 1).x[:, 0].tolist() == list(range(first, last + 1))
    if clients == 50:  # mushrooms
        assert {*dataset.description.n_train} == {162, 163}


RAND = ("rand_k", {"k": 2})
OMEGA = 5 / 2 - 1


def over_seeds(kind, rounds, look, seeds=3, **options):
    """Means over seeds of what ``look(run)`` returns after every round, (rounds, ...)."""
    seen = []
    for seed in range(seeds):
        run = Run(kind, logistic(), RAND, seed=seed, flix_alpha=0.6, start="ones", **options)
        seen.append([look(run.go()) for _ in range(rounds)])
    return np.mean(seen, axis=0), run


def expected_distances(curvatures, slopes, away, step, k, rounds):
    """E||x^t - x*||^2 of DCGD with rand-k on quadratics, t from 0 to ``rounds``, without sampling.

    Gradients at x* + e are slopes_i + curvatures_i e, and their slopes add up to zero; what rand-k
    makes of v has second moments v_a v_b p off the diagonal and v_a^2 d / k on it, with p =
    d (k - 1) / (k (d - 1)). So mean and second moments of e obey a linear recursion.
    """
    n, d = slopes.shape
    kept, both = d / k, d * (k - 1) / (k * (d - 1))
    shrink = np.eye(d) - step * curvatures.mean(0)
    mean, second, found = away, np.outer(away, away), [away @ away]
    for _ in range(rounds):
        noise = np.zeros((d, d))
        for h, g in zip(curvatures, slopes, strict=True):
            cross = np.outer(g, h @ mean)
            moments = np.outer(g, g) + cross + cross.T + h @ second @ h
            noise += (both - 1) * moments + (kept - both) * np.diag(np.diag(moments))
        second = shrink @ second @ shrink + (step / n) ** 2 * noise
        mean = shrink @ mean
        found.append(np.trace(second))
    return np.array(found)


@pytest.mark.slow
def test_dcgd_nears_its_floor_as_expected_and_theorem_three_bounds_it():
    n, d, k, alpha, rounds, seeds = 10, 20, 4, 0.6, 150, 6
    data = random_quadratics(n, d)
    x, y = (np.array(each) for each in zip(*data.samples, strict=True))
    hessians = np.einsum("imj,imk->ijk", x, x) / x.shape[1]
    centres = np.array([np.linalg.solve(a, b) for a, b in zip(x, y, strict=True)])
    best = np.linalg.solve(hessians.sum(0), np.einsum("ijk,ik->j", hessians, centres))
    curvatures = alpha**2 * hessians
    slopes = np.einsum("ijk,ik->ij", curvatures, best - centres)
    values = np.linalg.eigvalsh(hessians)
    omega, strong = d / k - 1, values[:, 0].min()
    c = Constants(alpha, values[:, -1], strong, omega=omega)
    # The model has no regulariser: its strong convexity comes from the data, so a step by hand.
    step = c.dcgd_step
    options = {"flix_alpha": alpha, "start": "ones", "step": step}
    runs = [Run("dcgd", data, ("rand_k", {"k": k}), seed=seed, **options) for seed in range(seeds)]
    squares = [[((run.go().x - best) ** 2).sum() for _ in range(rounds)] for run in runs]
    expected = expected_distances(curvatures, slopes, np.ones(d) - best, step, k, rounds)
    floor = 2 * step * omega * (slopes**2).sum() / (n**2 * alpha**2 * strong)
    bound = (1 - step * alpha**2 * strong) ** np.arange(rounds + 1) * expected[0] + floor
    assert (expected <= bound).all()
    for t in (1, 3, 10, 30, 100, 150):
        seen = np.array(squares)[:, t - 1]
        assert seen.mean() <= bound[t]
        assert abs(seen.mean() - expected[t]) < 4.5 * seen.std(ddof=1) / np.sqrt(seeds)
    late = np.array(squares)[:, rounds // 2 :].mean(1)
    assert late.mean() == pytest.approx(expected[-1], rel=0.1)
    assert floor / 100 < late.mean() < floor


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dcgd", "diana"])
def test_convex_rates_hold_for_the_mean_iterate(kind):
    """Theorems 5 and 6, on the objective at the mean of x^1 to x^k."""

    def gap(run):
        run.sum = getattr(run, "sum", 0) + run.x
        return Risk(run, logistic(), 0.6, 0.05).value(run.sum / run.round) - float(run.flix.least)

    rounds = 40
    gaps, run = over_seeds(kind, rounds, gap, setting="convex", l2=0.05)
    risk, x0 = Risk(run, logistic(), 0.6, 0.05), np.ones(5)
    reference = run.flix.reference.numpy()
    beta = 1 / (1 + OMEGA)
    c, n, step = risk.constants(OMEGA, beta), 6, float(run.flix.step)
    first, away = risk.value(x0) - float(run.flix.least), np.square(x0 - reference).sum()
    noise = (OMEGA * np.square(risk.gradients(reference)).sum(1)).mean()
    k = np.arange(1, rounds + 1)
    if kind == "dcgd":
        assert step == pytest.approx(1 / (4 * (c.l_alpha + 2 * c.m1 / n)), rel=1e-9)
        bound = 2 * first / k + away / (step * k) + 2 * step * (2 / n) * noise
    else:
        # Memories begin at zero, so that sigma_0 is the noise at the optimum.
        bound = (2 * first + 4 * step * noise / (n * beta) + away / step) / k
    assert (gaps <= bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dcgd", "diana"])
def test_nonconvex_rates_hold(kind):
    """Theorems 7 and 8; all losses are positive, so 0 stands for their infima."""
    options = {
        "regulariser": "nonconvex",
        "l2": 0.1,
        "local_solver": "lbfgs",
        "reference": "none",
        "smoothness": "safe" if kind == "diana" else "paper",
    }
    if kind == "diana":
        options["memory_start"] = "gradients"

    risk = {"alpha": 0.6, "l2": 0.1, "risk": nonconvex_risk}

    def slope(run):
        return np.square(Risk(run, logistic(), **risk).gradient(run.x)).sum()

    squares, run = over_seeds(kind, 30, slope, **options)
    found = Risk(run, logistic(), **risk)
    c, step = found.constants(OMEGA, 1 / (1 + OMEGA)), float(run.flix.step)
    first = found.value(np.ones(5))
    k = np.arange(1, 31)
    if kind == "dcgd":
        growth = (1 + 2 * c.l_alpha * step**2 * c.m1 / 6) ** k
        assert (np.minimum.accumulate(squares) <= 2 * growth * first / (step * k)).all()
    else:
        assert (np.cumsum(squares) / k <= 2 * first / (step * k)).all()


def test_dcgd_has_no_floor_where_all_clients_are_alike():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 5))
    y = (x @ draw.normal(size=5) > 0).astype(int)
    data = problem_of([x] * 6, [y] * 6, "classification")
    run = Run("dcgd", data, RAND, flix_alpha=0.6, l2=0.2, start="ones").go(250)
    assert abs(run.metrics["objective_gap"]) < 1e-9


@pytest.mark.parametrize(
    ("compression", "participation"),
    [
        (None, 0.5),
        (RAND, {"name": "bernoulli", "p": 0.5}),
        pytest.param(None, {"name": "bernoulli", "p": 0.5}, marks=pytest.mark.slow),
        pytest.param(RAND, 0.5, marks=pytest.mark.slow),
    ],
)
def test_diana_converges_though_only_some_take_part(participation, compression):
    data = logistic(participation=participation)
    run = Run("diana", data, compression, flix_alpha=0.6, l2=1.0, start="ones")
    for _ in range(10):
        run.go(20)
        assert torch.allclose(run.state.memories.mean(0), run.state.memory, atol=1e-13)
    assert abs(run.metrics["objective_gap"]) < 1e-9


def test_dcgd_of_some_is_unbiased():
    """The mean step over all draws of participants is that of gradient descent."""
    data = logistic(n=4, participation=0.5)
    options = {"step": 0.5, "start": "ones", "l2": 0.1}
    whole = Run("dcgd", logistic(n=4), **options).go()
    moved = [Run("dcgd", data, seed=seed, reference="none", **options).go().x for seed in range(20)]
    error = np.std(moved, axis=0) / np.sqrt(len(moved))
    assert (np.abs(np.mean(moved, axis=0) - whole.x) < 4.5 * error).all()


@pytest.mark.slow
def test_error_feedback_brings_top_k_to_the_minimum():
    data = logistic()
    run = Run("flix", data, ("top_k", {"k": 1}), flix_alpha=0.6, l2=0.2, start="ones", step=0.2)
    assert run.go(300).measured()["objective_gap"] < 1e-3
    # Fed back, what is left is the clients' disagreement, which falls with the step.
    finer = Run("flix", data, ("top_k", {"k": 1}), flix_alpha=0.6, l2=0.2, start="ones", step=0.05)
    assert finer.go(1200).measured()["objective_gap"] < run.metrics["objective_gap"]


@pytest.mark.slow
def test_the_step_is_that_of_the_theorem_for_what_is_sent():
    data, options = logistic(), {"flix_alpha": 0.6, "l2": 0.2, "start": "ones"}
    sent, gradients = (Run(kind, data, RAND, **options) for kind in ("flix", "dcgd"))
    assert float(sent.flix.step) == float(gradients.flix.step)
    assert float(sent.flix.step) < float(Run("flix", data, **options).flix.step)
    c = Risk(sent, data, 0.6, 0.2).constants()
    fed_back = Run("flix", data, ("top_k", {"k": 2}), **options)
    # delta of top-k is k / d
    assert float(fed_back.flix.step) == pytest.approx(2 / 5 / (20 * c.l_alpha))
    before = fed_back.measured()["objective_gap"]
    assert fed_back.go(1500).measured()["objective_gap"] < 0.02 * before


@pytest.mark.parametrize(
    "compression",
    [
        ("top_k", {"k": 5}),
        ("top_k", {"k": None, "fraction": 1.0}),
        ("composition", {"outer": "none", "inner": {"name": "top_k", "k": 5}}),
        ("bernoulli", {"p": 1.0, "inner": {"name": "top_k", "k": 5}}),
    ],
    ids=str,
)
def test_a_biased_compressor_that_keeps_nothing_back_leaves_gradient_descent(compression):
    options = {"flix_alpha": 0.6, "l2": 0.2, "start": "ones"}
    plain, sent = (Run("flix", logistic(), how, **options) for how in (None, compression))
    assert float(sent.flix.step) == float(plain.flix.step)
    for _ in range(20):
        assert sent.go().x == pytest.approx(plain.go().x, rel=1e-13, abs=1e-13)
    assert "strongly_convex theorem" in sent.remarks()
    assert "error feedback" not in sent.remarks()


def test_theorems_are_quoted_only_where_they_hold():
    options = {"l2": 0.2, "start": "average", "flix_alpha": 0.5}

    def told(kind, compression=None, data=None, **more):
        return Run(kind, data or logistic(), compression, **{**options, **more}).remarks()

    assert "Theorem 2: " in told("flix")
    assert "partial participation" not in told("flix")
    assert "partial participation" in told("flix", data=logistic(participation=0.5))
    assert "Theorem 3: " in told("dcgd", RAND)
    assert "Theorem 4: " in told("diana", RAND)
    for kind in ("flix", "dcgd", "diana"):
        assert "Theorem" not in told(kind, None if kind == "flix" else RAND, step=0.1)
        assert "Theorem" not in told(kind, data=logistic(participation=0.5))
        assert "Theorem" not in told(kind, smoothness="published_code")
    for setting in ("convex", "nonconvex"):
        # The step is then another one than that of Theorems 3 and 4.
        assert "Theorem" not in told("dcgd", RAND, setting=setting)
        assert "Theorem" not in told("diana", RAND, setting=setting)
    assert "Theorem" not in told("flix", RAND)
    assert "Theorem" not in told("flix", ("top_k", {"k": 2}))
    bold = told("diana", RAND, control_variate_rate=1.0)
    assert re.search(r"control_variate_rate 1 .*1 / \(1 \+ omega\)", bold)
    assert "Theorem" not in bold


@QUICK
@given(SEEDS)
def test_smoothness_of_random_quadratics(seed):
    run = Run("local", random_quadratics(3, 4, seed))
    found = smoothness(run.model, run.clients, Regulariser())
    assert (found <= 5 + 1e-6).all()
    assert (found >= 1).all()
