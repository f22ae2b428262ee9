"""FedMM and its twin where messages are lossy and few clients take part: S and Theta are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_fedmm import CONSTANT, MIXTURE, Run, blobs, data_of, least_squares

from mpifed.algorithms.fedmm.fedmm import FedMM, FedMMTheta, StoredFacts, statistics_or_nan
from mpifed.errors import Diverged, InputError, RunError
from mpifed.federation.clients import Draws
from mpifed.federation.participation import Bernoulli
from mpifed.state import Nothing
from mpifed.surrogate import client_means
from mpifed.surrogates.remark_one import RemarkOne

FEW = Bernoulli(p=0.3)
LOSSY = ("quantise", {"bits": 3})
ALL = {**MIXTURE, "learn": "all"}


def test_a_mixture_learnt_whole_from_lossy_messages_stays_one():
    run = Run(FedMM, data_of(np.split(blobs(), 6), FEW), ALL, LOSSY, **CONSTANT)
    first, surrogate = run.objective(), run.surrogate
    for _ in range(15):
        run.go()
        s1, s2, s3 = surrogate._blocks(run.s)
        assert torch.allclose(s2.sum(), torch.ones(()).double())
        scatter = s3 - s1[:, :, None] * s1[:, None, :] / s2[:, None, None]
        assert float(torch.linalg.eigvalsh(scatter).min()) >= -1e-9 * float(s3.abs().max())
        # Without it 1e5 to 1e8, and infinite.
        assert run.objective() < 10 * first
    assert run.objective() < first


@pytest.mark.parametrize("kind", [FedMM, FedMMTheta])
@pytest.mark.parametrize("ridge", [0.0, 0.01, 3.0])
def test_a_tiny_step_from_first_means_of_any_length_moves_nothing(kind, ridge):
    """With a penalty, means far from 0 have no covariances but larger ones."""
    surrogate = {**ALL, "init_scale": 20.0, "ridge": ridge}
    run = Run(kind, data_of(np.split(blobs(), 6)), surrogate, step_rule="constant", step=1e-100)
    first = run.theta
    assert torch.allclose(run.go().theta, first, rtol=1e-9, atol=1e-9)
    measured = run.method.measure(run.state, run.everyone, run.server, Draws(0, run.round))
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
    run = Run(FedMMTheta, data, surrogate, compressor, **CONSTANT)
    for _ in range(20):
        run.go()
        theta = run.theta
        assert torch.allclose(run.surrogate.project_parameters(theta), theta, rtol=0, atol=1e-12)
        assert np.isfinite(run.objective())


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


def fragile_run(kind, *means):
    parts = [np.full((2, 1), mean) for mean in means]
    return Run(kind, data_of(parts), "test_fedmm_domains:fragile", **CONSTANT)


@pytest.mark.parametrize("kind", [FedMM, FedMMTheta])
def test_linear_algebra_that_fails_is_a_client_that_diverged(kind):
    with pytest.raises(Diverged, match="client 1 has a value in its update that is not") as caught:
        fragile_run(kind, 1.0, -4.0, 2.0, -1.0).go()
    assert caught.value.clients == [1, 3]


def test_t_that_fails_is_the_clients_in_parameter_space_and_else_the_servers():
    with pytest.raises(Diverged, match="client 1 has a value") as caught:
        fragile_run(FedMMTheta, 1.0, 40.0).go()
    assert caught.value.clients == [1]
    run = fragile_run(FedMM, 1.0, 40.0).go()
    with pytest.raises(Diverged, match=r"the server's T\(S\) cannot be computed.*s is too large"):
        run.go()


def test_the_statistics_of_the_others_are_as_they_were():
    surrogate, z = Fragile(), torch.tensor([[1.0], [-1.0], [3.0], [5.0]]).double()
    theta = torch.ones(1).double()
    found = statistics_or_nan(surrogate, z, theta, np.array([0, 1, 2, 4]))
    assert torch.isnan(found[1]).all()
    expected = surrogate.statistics(z[2:], theta, np.array([0, 2]))
    assert torch.equal(found[[2]], expected)


COUNTS = [np.array([[0.0], [1.0], [5.0]]), np.array([[2.0], [3.0], [1.0], [7.0]])]


@pytest.mark.parametrize(("rule", "mean"), [("uniform", 2.625), ("samples", 19 / 7)])
def test_the_mean_of_all_counts_is_measured_where_it_is_asked_for(rule, mean):
    options = {**CONSTANT, "client_weights": rule}
    measured = Run(FedMM, data_of(COUNTS), {"name": "poisson", "mean": "measured"}, **options)
    by_hand = Run(FedMM, data_of(COUNTS), {"name": "poisson", "mean": mean}, **options)
    assert float(measured.state.known.facts) == pytest.approx(mean, abs=1e-15)
    assert isinstance(by_hand.state.known, Nothing)
    for _ in range(200):
        measured.go()
        by_hand.go()
    assert torch.allclose(measured.theta, by_hand.theta, rtol=0, atol=1e-12)
    # The two strategies of the paper have the same minimum.
    in_s = Run(FedMM, data_of(COUNTS), {"name": "poisson"}, **options).go(200)
    assert in_s.s.numel() == 2 and measured.s.numel() == 1
    assert torch.allclose(measured.theta, in_s.theta, rtol=0, atol=1e-9)


def test_what_was_measured_is_what_a_resumed_run_has():
    run = Run(FedMM, data_of(COUNTS), {"name": "poisson", "mean": "measured"}, **CONSTANT)
    run.state = replace(run.state, known=StoredFacts(torch.tensor([9.0]).double()))
    said = run.method.remarks(run.state, run.everyone, run.server)
    assert said[-1] == "the mean of all counts is 9"
    run.go()
    assert run.surrogate.mean == 9


def test_counts_that_are_all_zero_have_no_mean_to_know():
    with pytest.raises(InputError, match="the mean of all counts is 0; it must be above 0"):
        Run(FedMM, data_of([np.zeros((3, 1))]), {"name": "poisson", "mean": "measured"})


def smoothness(parts, weights, curvature):
    """L by numpy alone."""
    grams = [z[:, :-1].T @ z[:, :-1] / len(z) for z in parts]
    return curvature * np.linalg.eigvalsh(np.tensordot(weights, grams, 1))[-1]


@pytest.mark.parametrize("rule", ["uniform", "samples"])
@pytest.mark.parametrize("band", [1 << 16, 12])
def test_without_rho_it_is_one_over_the_measured_l(rule, band, monkeypatch):
    monkeypatch.setattr("mpifed.surrogates.quadratic.BAND", band)
    parts = [part[: 4 + i] for i, part in enumerate(least_squares())]
    weights = np.full(6, 1 / 6)
    if rule == "samples":
        weights = np.array([len(part) for part in parts]) / sum(map(len, parts))
    run = Run(FedMM, data_of(parts, targets=1), "quadratic", client_weights=rule, **CONSTANT)
    expected = smoothness(parts, weights, 1.0)
    surrogate = run.surrogate
    assert surrogate.smoothness == pytest.approx(expected, rel=1e-13)
    assert surrogate.rho == 1 / surrogate.smoothness and isinstance(run.state.known, StoredFacts)
    said = run.method.remarks(run.state, run.everyone, run.server)[-1]
    assert f"L = {expected:.6g}; rho = {1 / expected:.6g}, 1 / L" in said
    values = [run.go().objective() for _ in range(30)]
    assert (np.diff(values) <= 1e-14).all()
    # By hand it is the same run, with nothing kept.
    by_hand = Run(
        FedMM,
        data_of(parts, targets=1),
        {"name": "quadratic", "rho": surrogate.rho},
        client_weights=rule,
        **CONSTANT,
    ).go(30)
    assert torch.equal(by_hand.s, run.s) and isinstance(by_hand.state.known, Nothing)


def test_a_rho_above_one_over_l_is_warned_of_and_what_becomes_of_it_diverged():
    data = data_of(least_squares(), targets=1)
    run = Run(FedMM, data, {"name": "quadratic", "rho": 5000.0}, **CONSTANT)
    said = run.method.remarks(run.state, run.everyone, run.server)[-1]
    assert "warning: algorithm.surrogate.rho is 5000, above 1 / L = " in said
    for _ in range(12):
        run.go()
    assert bool(torch.isfinite(run.s).all())
    with pytest.raises(Diverged, match=r"the objective is \S+: the training diverged"):
        run.method.measure(run.state, run.everyone, run.server, Draws(0, run.round))
    good = Run(FedMM, data, {"name": "quadratic", "rho": 0.01}, **CONSTANT)
    assert not any(
        "warning" in line for line in good.method.remarks(good.state, *data[:1], good.server)
    )


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
        Run(FedMM, data_of(labelled(low, 1.0), targets=1), LOGISTIC, **CONSTANT).go(20)
        for low in (0.0, -1.0)
    ]
    assert torch.equal(runs[0].s, runs[1].s) and runs[0].objective() == runs[1].objective()
    expected = smoothness(labelled(0.0, 1.0), np.full(4, 0.25), 0.25)
    assert runs[0].surrogate.smoothness == pytest.approx(expected, rel=1e-13)
    assert 0 < runs[0].objective() < np.log(2)


@pytest.mark.parametrize(
    ("kinds", "found"),
    [((0.0, 1.0, 2.0), "others"), ((-1.0, 0.0, 1.0), "all three of -1, 0 and 1")],
)
def test_a_logistic_loss_refuses_other_targets(kinds, found):
    with pytest.raises(InputError, match=f"targets in {{0, 1}} or in {{-1, 1}}, .*{found}"):
        Run(FedMM, data_of(labelled(*kinds), targets=1), {**LOGISTIC, "rho": 0.1})
