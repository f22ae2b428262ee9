"""What Gasanov et al. 2021 prove, on random problems and over seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from old_convex import Run, clients_of, logistic, random_quadratics
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.algorithms.flix import theorems as theory
from mpifed.algorithms.flix.flix import Dcgd, Diana, Flix
from mpifed.data.partitions import partition
from mpifed.federation.clients import Draws
from mpifed.federation.participation import Bernoulli
from mpifed.local.linear_objective import smoothness

SEEDS = st.integers(0, 2**16)
COEFFICIENTS = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4)
QUICK = settings(max_examples=10, deadline=None)


class Risk:
    """f~ of a run: values and gradients at a point."""

    def __init__(self, run):
        self.run, self.objective, self.optima = run, run.method.objective, run.flix.optima

    def value(self, x):
        return float(self.objective.losses(self.optima, x, self.run.clients).mean())

    def gradients(self, x):
        return self.objective.gradients(self.optima, x, self.run.clients, Draws(0, 1))

    def gradient(self, x):
        return self.gradients(x).mean(0)

    def constants(self, omega=0.0, beta=1.0):
        alpha = self.objective.alpha(self.run.clients.ids)
        strong = self.run.method.regulariser.strong_convexity
        smooth = self.run.flix.smoothness.numpy()
        return theory.constants(alpha, smooth, max(0.0, strong), omega, beta)


def points(seed, d=3, count=2):
    return torch.from_numpy(3 * np.random.default_rng(seed).normal(size=(count, d)))


@QUICK
@given(SEEDS, COEFFICIENTS)
def test_the_constants_of_proposition_two_bound_the_curvature(seed, alpha):
    run = Run(Flix, logistic(4, 10, 3, seed), flix_alpha=alpha, l2=0.2, reference="none")
    risk, (x, y) = Risk(run), points(seed)
    c = risk.constants()
    apart, change = x - y, risk.gradient(x) - risk.gradient(y)
    assert float(change.norm()) <= c.l_alpha * float(apart.norm()) * (1 + 1e-9)
    assert float(change @ apart) >= c.mu_alpha * float(apart @ apart) * (1 - 1e-9)


@QUICK
@given(SEEDS, st.floats(0.0, 1.0))
def test_proposition_three_holds_at_any_point(seed, alpha):
    run = Run(Flix, logistic(4, 10, 3, seed), flix_alpha=alpha, l2=0.2, reference="none")
    served = run.method.objective.mixed(run.flix.optima, points(seed)[0], run.clients).numpy()
    expected = (1 - alpha) ** 2 * theory.variance(run.flix.optima.numpy())
    assert theory.variance(served) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@QUICK
@given(SEEDS, COEFFICIENTS)
def test_lemma_one_and_proposition_four(seed, alpha):
    run = Run(Flix, logistic(4, 10, 3, seed), flix_alpha=alpha, l2=0.2)
    risk, (x, _) = Risk(run), points(seed)
    squares = torch.tensor(alpha, dtype=torch.float64) ** 2 * run.flix.smoothness
    away = x - run.flix.optima
    least = float(run.method.objective.risks(run.clients).losses(run.flix.optima).mean())
    bound = least + float((squares * away.square().sum(1)).mean()) / 2
    assert risk.value(x) <= bound * (1 + 1e-9)
    assert float(risk.gradient(x).norm()) <= float((squares * away.norm(dim=1)).mean()) * (1 + 1e-9)
    c, off = risk.constants(), float((x - run.flix.reference).norm())
    assert float(risk.gradient(x).norm()) <= c.l_alpha * off * (1 + 1e-9)
    assert risk.value(x) - float(run.flix.least) <= c.l_alpha / 2 * off**2 * (1 + 1e-9)


@QUICK
@given(SEEDS, st.floats(0.05, 1.0))
def test_the_average_is_within_theorem_one_and_proposition_five(seed, alpha):
    run = Run(Flix, logistic(4, 10, 3, seed), flix_alpha=alpha, l2=0.2).go()
    optima, smooth = run.flix.optima.numpy(), run.flix.smoothness.numpy()
    c = Risk(run).constants()
    gap = run.measured()["objective_gap"]
    assert gap <= c.l_alpha * theory.spread(optima, smooth) / 2 * (1 + 1e-9)
    assert theory.spread(optima, smooth) <= theory.largest_distance(optima)
    away = ((run.x - optima) ** 2).sum(1)
    off = float(((run.x - run.flix.reference.numpy()) ** 2).sum())
    assert off <= (smooth * away).mean() / 0.2 * (1 + 1e-9)


@QUICK
@given(st.integers(1, 300), st.integers(1, 40))
def test_the_split_is_the_paper_s(samples, clients):
    clients = min(clients, samples)
    labels = np.zeros(samples, np.int64)
    options = {"contiguous_rule": "floor", "min_samples": 1}
    parts = partition("contiguous", labels, clients, np.random.default_rng(0), options)
    assert np.concatenate(parts).tolist() == list(range(samples))
    for i, part in enumerate(parts, start=1):
        # Rows floor((i - 1) r / n) + 1 to floor(i r / n), counted from 1.
        assert part[0] + 1 == (i - 1) * samples // clients + 1
        assert part[-1] + 1 == i * samples // clients
        assert len(part) in (samples // clients, -(-samples // clients))


def test_mushrooms_split_into_fifty():
    options = {"contiguous_rule": "floor", "min_samples": 1}
    parts = partition("contiguous", np.zeros(8124, np.int64), 50, np.random.default_rng(0), options)
    assert {len(part) for part in parts} == {162, 163}


RAND = ("rand_k", {"k": 2})
OMEGA = 5 / 2 - 1


def over_seeds(kind, rounds, look, seeds=5, **options):
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


def test_dcgd_nears_its_floor_as_expected_and_theorem_three_bounds_it():
    n, d, k, alpha, rounds, seeds = 10, 20, 4, 0.6, 200, 10
    data = random_quadratics(n, d)
    train = data[0].shards.train
    x, y = train.x.numpy().reshape(n, -1, d), train.y.numpy().reshape(n, -1)
    hessians = np.einsum("imj,imk->ijk", x, x) / x.shape[1]
    centres = np.array([np.linalg.solve(a, b) for a, b in zip(x, y, strict=True)])
    best = np.linalg.solve(hessians.sum(0), np.einsum("ijk,ik->j", hessians, centres))
    curvatures = alpha**2 * hessians
    slopes = np.einsum("ijk,ik->ij", curvatures, best - centres)
    values = np.linalg.eigvalsh(hessians)
    omega, strong = d / k - 1, values[:, 0].min()
    c = theory.constants(np.full(n, alpha), values[:, -1], strong, omega=omega)
    # The model has no regulariser: its strong convexity comes from the data, so a step by hand.
    step = theory.dcgd_step(c, "strongly_convex")
    options = {"flix_alpha": alpha, "start": "ones", "step": step}
    runs = [Run(Dcgd, data, ("rand_k", {"k": k}), seed=seed, **options) for seed in range(seeds)]
    squares = [[((run.go().x - best) ** 2).sum() for _ in range(rounds)] for run in runs]
    expected = expected_distances(curvatures, slopes, np.ones(d) - best, step, k, rounds)
    floor = 2 * step * omega * (slopes**2).sum() / (n**2 * alpha**2 * strong)
    assert floor == pytest.approx(theory.dcgd_floor(c, step, omega * (slopes**2).sum() / n))
    bound = (1 - step * alpha**2 * strong) ** np.arange(rounds + 1) * expected[0] + floor
    assert (expected <= bound).all()
    for t in (1, 3, 10, 30, 100, 200):
        seen = np.array(squares)[:, t - 1]
        assert seen.mean() <= bound[t]
        assert abs(seen.mean() - expected[t]) < 4.5 * seen.std(ddof=1) / np.sqrt(seeds)
    late = np.array(squares)[:, rounds // 2 :].mean(1)
    assert late.mean() == pytest.approx(expected[-1], rel=0.1)
    assert floor / 100 < late.mean() < floor


@pytest.mark.parametrize("kind", [Dcgd, Diana])
def test_convex_rates_hold_for_the_mean_iterate(kind):
    """Theorems 5 and 6, on the objective at the mean of x^1 to x^k."""

    def gap(run):
        run.sum = getattr(run, "sum", 0) + run.x
        mean = torch.from_numpy(run.sum / run.round)
        return Risk(run).value(mean) - float(run.flix.least)

    rounds = 40
    gaps, run = over_seeds(kind, rounds, gap, setting="convex", l2=0.05)
    risk, x0 = Risk(run), torch.ones(5, dtype=torch.float64)
    reference = run.flix.reference
    beta = 1 / (1 + OMEGA)
    c, n, step = risk.constants(OMEGA, beta), 6, float(run.flix.step)
    first, away = risk.value(x0) - float(run.flix.least), float((x0 - reference).square().sum())
    noise = float((OMEGA * risk.gradients(reference).square().sum(1)).mean())
    k = np.arange(1, rounds + 1)
    if kind is Dcgd:
        assert step == pytest.approx(1 / (4 * (c.l_alpha + 2 * c.m1 / n)), rel=1e-9)
        bound = 2 * first / k + away / (step * k) + 2 * step * (2 / n) * noise
    else:
        # Memories begin at zero, so that sigma_0 is the noise at the optimum.
        bound = (2 * first + 4 * step * noise / (n * beta) + away / step) / k
    assert (gaps <= bound).all()


@pytest.mark.parametrize("kind", [Dcgd, Diana])
def test_nonconvex_rates_hold(kind):
    """Theorems 7 and 8; all losses are positive, so 0 stands for their infima."""
    options = {
        "regulariser": "nonconvex",
        "l2": 0.1,
        "local_solver": "lbfgs",
        "reference": "none",
        "smoothness": "safe" if kind is Diana else "paper",
    }
    if kind is Diana:
        options["memory_start"] = "gradients"

    def slope(run):
        return float(Risk(run).gradient(torch.from_numpy(run.x)).square().sum())

    squares, run = over_seeds(kind, 30, slope, **options)
    c, step = Risk(run).constants(OMEGA, 1 / (1 + OMEGA)), float(run.flix.step)
    first = Risk(run).value(torch.ones(5, dtype=torch.float64))
    k = np.arange(1, 31)
    if kind is Dcgd:
        growth = (1 + 2 * c.l_alpha * step**2 * c.m1 / 6) ** k
        assert (np.minimum.accumulate(squares) <= 2 * growth * first / (step * k)).all()
    else:
        assert (np.cumsum(squares) / k <= 2 * first / (step * k)).all()


def test_dcgd_has_no_floor_where_all_clients_are_alike():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 5))
    y = (x @ draw.normal(size=5) > 0).astype(int)
    data = clients_of([x] * 6, [y] * 6, "classification")
    run = Run(Dcgd, data, RAND, flix_alpha=0.6, l2=0.2, start="ones").go(600)
    assert abs(run.measured()["objective_gap"]) < 1e-14


@pytest.mark.parametrize(
    ("compression", "participation"),
    [
        (None, 0.5),
        (RAND, Bernoulli(p=0.5)),
        pytest.param(None, Bernoulli(p=0.5), marks=pytest.mark.slow),
        pytest.param(RAND, 0.5, marks=pytest.mark.slow),
    ],
)
def test_diana_converges_though_only_some_take_part(participation, compression):
    data = logistic(participation=participation)
    run = Run(Diana, data, compression, flix_alpha=0.6, l2=1.0, start="ones")
    for _ in range(15):
        run.go(25)
        assert torch.allclose(run.state.memories.mean(0), run.state.memory, atol=1e-13)
    assert abs(run.measured()["objective_gap"]) < 1e-12


def test_dcgd_of_some_is_unbiased():
    """The mean step over all draws of participants is that of gradient descent."""
    data = logistic(n=4, participation=0.5)
    options = {"step": 0.5, "start": "ones", "l2": 0.1}
    whole = Run(Dcgd, logistic(n=4), **options).go()
    moved = [Run(Dcgd, data, seed=seed, reference="none", **options).go().x for seed in range(40)]
    error = np.std(moved, axis=0) / np.sqrt(len(moved))
    assert (np.abs(np.mean(moved, axis=0) - whole.x) < 4.5 * error).all()


@pytest.mark.slow
def test_error_feedback_brings_top_k_to_the_minimum():
    data = logistic()
    run = Run(Flix, data, ("top_k", {"k": 1}), flix_alpha=0.6, l2=0.2, start="ones", step=0.2)
    assert run.go(300).measured()["objective_gap"] < 1e-3
    # Fed back, what is left is the clients' disagreement, which falls with the step.
    finer = Run(Flix, data, ("top_k", {"k": 1}), flix_alpha=0.6, l2=0.2, start="ones", step=0.05)
    assert finer.go(1200).measured()["objective_gap"] < run.measured()["objective_gap"]


@pytest.mark.slow
def test_the_step_is_that_of_the_theorem_for_what_is_sent():
    data, options = logistic(), {"flix_alpha": 0.6, "l2": 0.2, "start": "ones"}
    sent, gradients = (Run(kind, data, RAND, **options) for kind in (Flix, Dcgd))
    assert float(sent.flix.step) == float(gradients.flix.step)
    assert float(sent.flix.step) < float(Run(Flix, data, **options).flix.step)
    c = sent.method.constants(sent.state, sent.clients, sent.server)
    fed_back = Run(Flix, data, ("top_k", {"k": 2}), **options)
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
    plain, sent = (Run(Flix, logistic(), how, **options) for how in (None, compression))
    assert float(sent.flix.step) == float(plain.flix.step)
    for _ in range(20):
        assert sent.go().x == pytest.approx(plain.go().x, rel=1e-13, abs=1e-13)
    told = " ".join(sent.method.remarks(sent.state, sent.clients, sent.server))
    assert "of the strongly_convex theorem" in told
    assert "error feedback" not in told


def test_theorems_are_quoted_only_where_they_hold():
    options = {"l2": 0.2, "start": "average", "flix_alpha": 0.5}

    def told(kind, compression=None, data=None, **more):
        run = Run(kind, data or logistic(), compression, **{**options, **more})
        return " ".join(run.method.remarks(run.state, run.clients, run.server))

    assert "Theorem 2: " in told(Flix)
    assert "partial participation" not in told(Flix)
    assert "partial participation" in told(Flix, data=logistic(participation=0.5))
    assert "Theorem 3: " in told(Dcgd, RAND)
    assert "Theorem 4: " in told(Diana, RAND)
    for kind in (Flix, Dcgd, Diana):
        assert "Theorem" not in told(kind, None if kind is Flix else RAND, step=0.1)
        assert "Theorem" not in told(kind, data=logistic(participation=0.5))
        assert "Theorem" not in told(kind, smoothness="published_code")
    for setting in ("convex", "nonconvex"):
        # The step is then another one than that of Theorems 3 and 4.
        assert "Theorem" not in told(Dcgd, RAND, setting=setting)
        assert "Theorem" not in told(Diana, RAND, setting=setting)
    assert "Theorem" not in told(Flix, RAND)
    assert "Theorem" not in told(Flix, ("top_k", {"k": 2}))
    bold = told(Diana, RAND, control_variate_rate=1.0)
    assert "control_variate_rate 1 is above 1 / (1 + omega)" in bold
    assert "Theorem" not in bold


@QUICK
@given(SEEDS)
def test_smoothness_of_random_quadratics(seed):
    clients, description = random_quadratics(3, 4, seed)
    model = Run(Flix, (clients, description)).model
    found = smoothness(model, clients, Run(Flix, (clients, description)).method.regulariser)
    assert (found <= 5 + 1e-6).all()
    assert (found >= 1).all()
