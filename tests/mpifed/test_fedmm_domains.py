"""FedMM and its twin where messages are lossy and few clients take part: S and Theta are kept."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from fedmm_runs import Run, Samples, data_of
from test_fedmm import CONSTANT, MIXTURE, blobs, least_squares

from mpifed.errors import Diverged, InputError, RunError
from mpifed.state import Nothing
from mpifed.surrogate import client_means
from mpifed.testing import find_item

FEW = {"name": "bernoulli", "p": 0.3}
LOSSY = ("quantise", {"bits": 3})
ALL = {**MIXTURE, "learn": "all"}


def test_a_mixture_learnt_whole_from_lossy_messages_stays_one():
    run = Run("fedmm", data_of(np.split(blobs(), 6), FEW), ALL, LOSSY, **CONSTANT)
    first = run.objective()
    for _ in range(15):
        run.go()
        s1, s2, s3 = run.s[:6].view(3, 2), run.s[6:9], run.s[9:].view(3, 2, 2)
        assert torch.allclose(s2.sum(), torch.ones(()).double())
        scatter = s3 - s1[:, :, None] * s1[:, None, :] / s2[:, None, None]
        assert float(torch.linalg.eigvalsh(scatter).min()) >= -1e-9 * float(s3.abs().max())
        # Without it 1e5 to 1e8, and infinite.
        assert run.objective() < 10 * first
    assert run.objective() < first


@pytest.mark.parametrize("kind", ["fedmm", "fedmm_theta"])
@pytest.mark.parametrize("ridge", [0.0, 0.01, 3.0])
def test_a_tiny_step_from_first_means_of_any_length_moves_nothing(kind, ridge):
    """With a penalty, means far from 0 have no covariances but larger ones."""
    surrogate = {**ALL, "init_scale": 20.0, "ridge": ridge}
    run = Run(kind, data_of(np.split(blobs(), 6)), surrogate, step_rule="constant", step=1e-100)
    first = run.theta
    assert torch.allclose(run.go().theta, first, rtol=1e-9, atol=1e-9)
    measured = run.measured()
    assert np.isfinite(list(measured.values())).all()
    means = first[: 3 * blobs().shape[1]]
    assert (float(means.abs().max()) > 10) == (ridge == 0)


BOX = {"name": "quadratic", "rho": 0.1, "regularisation": "box", "radius": 0.1}


@pytest.mark.parametrize(
    ("surrogate", "targets"),
    [(BOX, 1), ({**BOX, "regularisation": "ball"}, 1), (ALL, 0)],
    ids=["box", "ball", "mixture"],
)
@pytest.mark.parametrize("compressor", [None, LOSSY])
def test_the_twin_stays_where_its_penalty_is_finite(surrogate, targets, compressor):
    parts = least_squares() if targets else np.split(blobs(), 6)
    data = data_of(parts, FEW, targets=targets)
    run = Run("fedmm_theta", data, surrogate, compressor, **CONSTANT)
    for _ in range(20):
        run.go()
        theta = run.theta
        assert torch.allclose(run.surrogate.project_parameters(theta), theta, rtol=0, atol=1e-12)
        assert np.isfinite(run.objective())


RemarkOne = type(find_item("surrogate", "remark_one")(Samples([np.ones((1, 1))]).description))


class Fragile(RemarkOne):
    """Remark 1 by a factorisation: of samples, which fails below zero, and of s, above ten."""

    def statistics(self, z, theta, offsets):
        def mean(own, _):
            return torch.linalg.cholesky(own.mean(0)[None])[0] ** 2

        return client_means(mean, z, theta, offsets)

    def minimiser(self, s):
        if s.numel() and float(s.max()) > 10:
            raise RunError("s is too large")
        return super().minimiser(s)


def fragile(data):
    """A problem whose linear algebra fails on bad numbers."""
    return Fragile()


def fragile_run(kind, *means, keys=None):
    parts = [np.full((2, 1), mean) for mean in means]
    return Run(kind, data_of(parts), "test_fedmm_domains:fragile", keys=keys, **CONSTANT)


@pytest.mark.parametrize("kind", ["fedmm", "fedmm_theta"])
def test_linear_algebra_that_fails_is_a_client_that_diverged(kind):
    with pytest.raises(Diverged, match="client 1 ") as caught:
        fragile_run(kind, 1.0, -4.0, 2.0, -1.0).go()
    assert caught.value.clients == [1, 3]


def test_t_that_fails_is_the_clients_in_parameter_space_and_else_the_servers():
    with pytest.raises(Diverged, match="client 1 ") as caught:
        fragile_run("fedmm_theta", 1.0, 40.0).go()
    assert caught.value.clients == [1]
    run = fragile_run("fedmm", 1.0, 40.0).go()
    with pytest.raises(Diverged, match=r"server.*T\(S\).*s is too large"):
        run.go()


def test_the_statistics_of_the_others_are_as_they_were():
    drop = {"on_divergence": "drop"}
    run = fragile_run("fedmm", 1.0, -4.0, 2.0, -1.0, keys=drop)
    s = float(run.s)
    assert float(run.go().s) == pytest.approx(s + (1 - s + 2 - s) / 4, rel=1e-14)


COUNTS = [np.array([[0.0], [1.0], [5.0]]), np.array([[2.0], [3.0], [1.0], [7.0]])]


@pytest.mark.parametrize(("rule", "mean"), [("uniform", 2.625), ("samples", 19 / 7)])
def test_the_mean_of_all_counts_is_measured_where_it_is_asked_for(rule, mean):
    options = {**CONSTANT, "client_weights": rule}
    measured = Run("fedmm", data_of(COUNTS), {"name": "poisson", "mean": "measured"}, **options)
    by_hand = Run("fedmm", data_of(COUNTS), {"name": "poisson", "mean": mean}, **options)
    assert float(measured.state.known.facts) == pytest.approx(mean, abs=1e-15)
    assert isinstance(by_hand.state.known, Nothing)
    for _ in range(200):
        measured.go()
        by_hand.go()
    assert torch.allclose(measured.theta, by_hand.theta, rtol=0, atol=1e-12)
    # The two strategies of the paper have the same minimum.
    in_s = Run("fedmm", data_of(COUNTS), {"name": "poisson"}, **options).go(200)
    assert in_s.s.numel() == 2 and measured.s.numel() == 1
    assert torch.allclose(measured.theta, in_s.theta, rtol=0, atol=1e-9)


def test_what_was_measured_is_what_a_resumed_run_has():
    run = Run("fedmm", data_of(COUNTS), {"name": "poisson", "mean": "measured"}, **CONSTANT)
    run.start_from(known=type(run.state.known)(torch.tensor([9.0]).double()))
    again = run.resumed().advance()
    assert (
        float(again.state.known.facts) == 9 and again.algorithm.surrogate_of(again.state).mean == 9
    )
    assert "9" in again.algorithm.remarks(again.state, again.clients, again.exchange)[-1]


def test_counts_that_are_all_zero_have_no_mean_to_know():
    with pytest.raises(InputError, match=r"surrogate\.mean.*\'measured\'.* 0\b.*above 0"):
        Run("fedmm", data_of([np.zeros((3, 1))]), {"name": "poisson", "mean": "measured"})


def smoothness(parts, weights, curvature):
    """L by numpy alone."""
    grams = [z[:, :-1].T @ z[:, :-1] / len(z) for z in parts]
    return curvature * np.linalg.eigvalsh(np.tensordot(weights, grams, 1))[-1]


@pytest.mark.parametrize("rule", ["uniform", "samples"])
@pytest.mark.parametrize("q", [5, 300])
def test_without_rho_it_is_one_over_the_measured_l(rule, q):
    """With 300 parameters, E x x' is summed in two bands."""
    parts = [part[: 4 + i] for i, part in enumerate(least_squares(q=q, m=12))]
    weights = np.full(6, 1 / 6)
    if rule == "samples":
        weights = np.array([len(part) for part in parts]) / sum(map(len, parts))
    run = Run("fedmm", data_of(parts, targets=1), "quadratic", client_weights=rule, **CONSTANT)
    expected = smoothness(parts, weights, 1.0)
    surrogate = run.surrogate
    assert surrogate.smoothness == pytest.approx(expected, rel=1e-13)
    assert surrogate.rho == 1 / surrogate.smoothness and not isinstance(run.state.known, Nothing)
    assert f"L = {expected:.6g}" in run.remarks()[-1]
    values = [run.go().objective() for _ in range(30)]
    assert (np.diff(values) <= 1e-14).all()
    # By hand it is the same run, with nothing kept.
    by_hand = Run(
        "fedmm",
        data_of(parts, targets=1),
        {"name": "quadratic", "rho": surrogate.rho},
        client_weights=rule,
        **CONSTANT,
    ).go(30)
    assert torch.equal(by_hand.s, run.s) and isinstance(by_hand.state.known, Nothing)


def test_a_rho_above_one_over_l_is_warned_of_and_what_becomes_of_it_diverged():
    data = data_of(least_squares(), targets=1)
    run = Run("fedmm", data, {"name": "quadratic", "rho": 5000.0}, **CONSTANT)
    assert re.search("algorithm.surrogate.rho .*5000", run.remarks()[-1])
    for _ in range(12):
        run.go()
    assert bool(torch.isfinite(run.s).all())
    with pytest.raises(Diverged, match=r"objective.* \d\S+e\+\d+"):
        run.measured()
    good = Run("fedmm", data, {"name": "quadratic", "rho": 0.01}, **CONSTANT)
    assert not any("surrogate.rho" in line for line in good.remarks())


LOGISTIC = {"name": "quadratic", "loss": "logistic"}


def labelled(*kinds, n=4):
    """Clients whose targets are of the given kinds; the first has but one."""
    draw = np.random.default_rng(0)
    parts = []
    for i in range(n):
        x = draw.normal(size=(9, 3))
        y = np.where(x[:, 0] > 0, kinds[-1], kinds[0]) if i else np.full(9, kinds[-1])
        parts.append(np.column_stack([x, y]))
    parts[-1][: len(kinds), -1] = kinds
    return parts


def test_labels_of_minus_one_and_one_are_those_of_zero_and_one():
    runs = [
        Run("fedmm", data_of(labelled(low, 1.0), targets=1), LOGISTIC, **CONSTANT).go(20)
        for low in (0.0, -1.0)
    ]
    assert torch.equal(runs[0].s, runs[1].s) and runs[0].objective() == runs[1].objective()
    expected = smoothness(labelled(0.0, 1.0), np.full(4, 0.25), 0.25)
    assert runs[0].surrogate.smoothness == pytest.approx(expected, rel=1e-13)
    assert 0 < runs[0].objective() < np.log(2)


@pytest.mark.parametrize(
    ("kinds", "found"),
    [((0.0, 1.0, 2.0), "others"), ((-1.0, 0.0, 1.0), "-1, 0 and 1")],
)
def test_a_logistic_loss_refuses_other_targets(kinds, found):
    with pytest.raises(InputError, match=rf"\{{0, 1\}}.*\{{-1, 1\}}.*{found}"):
        Run("fedmm", data_of(labelled(*kinds), targets=1), {**LOGISTIC, "rho": 0.1})
