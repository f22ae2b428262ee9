from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from fedmm_runs import Run, data_of

from mpifed.message import Compressor
from mpifed.method import Draws
from mpifed.testing import find_item


def columns(*values):
    return [np.full((3, 1), value) for value in values]


CONSTANT = {"step_rule": "constant", "step": 1.0}


def test_remark_one_to_ten_digits():
    data = data_of(columns(1.0, 4.0))
    mixed = Run("fedmm", data, "remark_one", **CONSTANT).go()
    naive = Run("fedmm_theta", data, "remark_one", **CONSTANT).go()
    assert float(mixed.theta) == pytest.approx(0.4**0.5, rel=1e-14)
    assert float(naive.theta) == pytest.approx(0.75, rel=1e-14)
    assert naive.objective() - mixed.objective() == pytest.approx(0.0460556732, abs=1e-10)
    slow = Run("fedmm", data, "remark_one", step_rule="constant", step=0.3)
    first = float(slow.s)
    slow.go(7)
    assert float(slow.s) - 2.5 == pytest.approx(0.7**7 * (first - 2.5), rel=1e-12)


MIXTURE = {"name": "gaussian_mixture", "components": 3}


def blobs(n=240, seed=0):
    draw = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [3.0, 1.0], [-2.0, 3.0]])
    return centres[draw.integers(0, 3, n)] + draw.normal(size=(n, 2))


def test_a_mixture_is_learnt_as_centrally_for_any_sharding():
    z = blobs()
    by_first = z[np.argsort(z[:, 0])]
    runs = [
        Run("fedmm", data_of(np.split(each, cuts)), MIXTURE, client_weights="samples", **CONSTANT)
        for each, cuts in [(z, []), (z, [60, 100, 101]), (by_first, [50, 170])]
    ]
    start, values = runs[0].s, []
    for run in runs:
        run.begin(start)
    for _ in range(15):
        for run in runs:
            run.go()
        values.append(runs[0].objective())
        for run in runs[1:]:
            assert torch.allclose(run.s, runs[0].s, atol=1e-12)
    assert (np.diff(values) <= 1e-12).all()
    theta = Run("fedmm_theta", data_of(np.split(by_first, [50, 170])), MIXTURE, **CONSTANT)
    theta.begin(runs[0].algorithm.parameters(runs[0].surrogate, start)).go(15)
    assert theta.objective() > runs[0].objective() + 1e-3


def least_squares(n=6, q=5, m=8, seed=0, same=False):
    draw = np.random.default_rng(seed)
    parts = []
    for _ in range(1 if same else n):
        x = draw.normal(size=(m, q))
        parts.append(np.hstack([x, x @ draw.normal(size=(q, 1)) + draw.normal(size=(m, 1))]))
    return parts * n if same else parts


def quadratic(rho, **options):
    return {"name": "quadratic", "loss": "least_squares", "rho": rho, **options}


def gradients(parts, w):
    return [z[:, :-1].T @ (z[:, :-1] @ w - z[:, -1]) / len(z) for z in parts]


def test_the_quadratic_surrogate_is_gradient_descent():
    parts, rho, gamma = least_squares(), 0.05, 0.4
    run = Run("fedmm", data_of(parts, targets=1), quadratic(rho), step_rule="constant", step=gamma)
    w = run.theta.numpy().copy()
    for _ in range(20):
        run.go()
        w -= gamma * rho * np.mean(gradients(parts, w), axis=0)
        assert run.theta.numpy() == pytest.approx(w, abs=1e-12)


def test_with_random_sparsification_it_is_diana_step_by_step():
    parts, rho, gamma, rate = least_squares(), 0.05, 0.4, 0.2
    compressor = find_item("compression", "rand_k")(k=2)
    run = Run(
        "fedmm",
        data_of(parts, targets=1),
        quadratic(rho),
        ("rand_k", {"k": 2}),
        step_rule="constant",
        step=gamma,
        control_variate_rate=rate,
    )
    w, h = run.theta.numpy().copy(), np.zeros((6, 5))
    for round in range(1, 30):
        run.go()
        difference = torch.from_numpy(np.array(gradients(parts, w)) - h)
        sent = compressor(difference, Draws(0, round), np.arange(6), "compression 0").numpy()
        w -= gamma * rho * (h.mean(0) + sent.mean(0))
        h += rate * sent
        assert run.theta.numpy() == pytest.approx(w, abs=1e-11)
        assert -run.state.variates.numpy() / rho == pytest.approx(h, abs=1e-10)


class Gate(Compressor):
    """Algorithm 4's compressor: U_i / p of rand_k's messages, for the clients in ``present``."""

    unbiased = True
    present = np.zeros(0, int)

    def __init__(self, *, p: float) -> None:
        self.inner, self.p = find_item("compression", "rand_k")(k=2), p

    def omega(self, size):
        return (self.inner.omega(size) + 1) / self.p - 1

    def __call__(self, rows, draws, ids, purpose="compression"):
        u = torch.from_numpy(np.isin(ids, Gate.present))
        return self.inner(rows, draws, ids, purpose) * (u[:, None] / self.p)

    def bits(self, size, itemsize, draws, ids, purpose="compression"):
        return self.inner.bits(size, itemsize, draws, ids, purpose)

    def floats(self, size, draws, ids, purpose="compression"):
        return self.inner.floats(size, draws, ids, purpose)


def test_participation_may_be_folded_into_compression():
    """Algorithm 2 is Algorithm 4."""
    parts, p = least_squares(), 0.5
    options = {"step_rule": "constant", "step": 0.05, "control_variate_rate": 0.2}
    some = data_of(parts, {"name": "bernoulli", "p": p}, targets=1)
    two = Run("fedmm", some, quadratic(0.1), ("rand_k", {"k": 2}), **options)
    gate = "test_fedmm:Gate", {"p": p}
    four = Run("fedmm", data_of(parts, targets=1), quadratic(0.1), gate, **options)
    for _ in range(60):
        Gate.present = two.participants
        two.go()
        four.go()
        assert torch.allclose(two.s, four.s, rtol=0, atol=1e-13)
        assert torch.allclose(two.state.variates, four.state.variates, rtol=0, atol=1e-13)
        mean = two.state.variates.mean(0)
        assert torch.allclose(mean, two.state.variate, rtol=0, atol=1e-13)


def test_control_variates_converge_where_without_them_it_stalls():
    parts = least_squares()
    data = data_of(parts, {"name": "bernoulli", "p": 0.5}, targets=1)
    solution = np.linalg.lstsq(
        np.concatenate([z[:, :-1] for z in parts]), np.concatenate([z[:, -1] for z in parts]), None
    )[0]
    options = {"step_rule": "constant", "step": 0.2}
    away = {}
    for rate, rounds in ((0.2, 400), (0.0, 100)):
        run = Run(
            "fedmm",
            data,
            quadratic(0.4),
            ("rand_k", {"k": 2}),
            control_variate_rate=rate,
            **options,
        ).go(rounds)
        away[rate] = np.linalg.norm(run.theta.numpy() - solution)
        if rate:
            statistics = run.algorithm.statistics(
                run.surrogate, run.theta, run.clients.shards.train
            )
            assert torch.allclose(run.state.variates, statistics - run.s, atol=1e-13)
    assert away[0.2] < 1e-9 and away[0.0] > 1e-3


def test_with_everyone_and_no_loss_control_variates_cancel():
    parts = least_squares()
    plain = Run("fedmm", data_of(parts, targets=1), quadratic(0.1), step=0.5)
    start = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 5)))
    other = Run(
        "fedmm", data_of(parts, targets=1), quadratic(0.1), step=0.5, control_variate_rate=0.7
    ).begin(plain.s, start)
    assert torch.allclose(plain.go(25).s, other.go(25).s, atol=1e-12)


def test_equal_clients_make_a_fixed_number_of_participants_immaterial():
    parts = least_squares(same=True)
    all_of_them = Run("fedmm", data_of(parts, targets=1), quadratic(0.1), step=0.5).go(12)
    half = Run("fedmm", data_of(parts, 0.5, targets=1), quadratic(0.1), step=0.5).go(12)
    assert torch.allclose(all_of_them.s, half.s, atol=1e-13)


def test_equal_clients_nearly_agree_with_control_variates_too():
    """Not exactly: V_i of clients that took part at other times differ."""
    parts = least_squares(n=20, same=True)
    options = {"step_rule": "constant", "step": 0.05, "control_variate_rate": 0.01}
    whole = Run("fedmm", data_of(parts, targets=1), quadratic(0.1), **options)
    half = Run("fedmm", data_of(parts, 0.5, targets=1), quadratic(0.1), **options)
    first = whole.s
    apart = torch.linalg.vector_norm(whole.go(100).s - half.go(100).s)
    assert 0 < apart < 0.01 * torch.linalg.vector_norm(whole.s - first)


class Tenth(Gate):
    """A compressor of omega = 0.1."""

    def __init__(self) -> None:
        super().__init__(p=1.0)

    def omega(self, size):
        return 0.1


def test_the_rate_of_control_variates_that_the_theorem_asks_for():
    """omega_p = 1.2 for omega = 0.1, p = 0.5, and alpha <= 1 / 2.2."""
    data = data_of(least_squares(), {"name": "bernoulli", "p": 0.5}, targets=1)
    run = Run("fedmm", data, quadratic(0.1), ("test_fedmm:Tenth", {}), control_variate_rate=0.6)
    first, second, *_ = run.remarks()
    assert re.search("omega_p 1.2.* 0.4545", first)
    assert re.search("control_variate_rate.* 0.6", second)


def test_the_first_oracle_is_forgotten_or_kept():
    rng = np.random.default_rng(0)
    z = rng.uniform(1, 2, (40, 1))
    kept = Run("sa_ssmm", data_of([z]), "remark_one", step_rule="inverse_kept", batch=4)
    gone = Run("sa_ssmm", data_of([z]), "remark_one", step_rule="inverse", batch=4)
    first, seen = float(kept.s), []
    for round in range(1, 9):
        sample = kept.algorithm.samples(kept.clients, Draws(0, round)).x
        seen.append(float(sample.mean()))
        assert float(kept.go().s) == pytest.approx(np.mean([first, *seen]), rel=1e-12)
        assert float(gone.go().s) == pytest.approx(np.mean(seen), rel=1e-12)


def test_a_dictionary_improves_every_round_with_whole_shards():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(8, 5))
    parts = [theta @ (rng.normal(size=(5, 30)) * (rng.random((5, 30)) < 0.4)) for _ in range(4)]
    surrogate = {"name": "dictionary", "n_atoms": 5, "code_penalty": 0.1, "atom_penalty": 0.2}
    run = Run("fedmm", data_of([p.T for p in parts]), surrogate, **CONSTANT)
    values = [run.objective()]
    for _ in range(15):
        values.append(run.go().objective())
    assert (np.diff(values) <= 1e-7).all() and values[-1] < values[0]


def factors(n=4, m=12, p=6, seed=0):
    draw = np.random.default_rng(seed)
    atoms = draw.normal(size=(p, 3))
    return [(atoms @ draw.normal(size=(3, m))).T for _ in range(n)]


def test_factorisation_to_the_end_of_each_step_is_fedmm_with_ridge_codes():
    data = data_of(factors())
    factorised = Run("fedmgs", data, n_atoms=3, code_steps=4000, atom_steps=4000)
    surrogate = {
        "name": "dictionary",
        "n_atoms": 3,
        "codes": "ridge",
        "code_penalty": 0.1,
        "atom_penalty": 0.2,
    }
    run = Run("fedmm", data, surrogate, **CONSTANT)
    run.begin(run.surrogate.surrogate_of(factorised.state.atoms.flatten()))
    for _ in range(5):
        factorised.go()
        run.go()
        assert torch.allclose(factorised.state.atoms.flatten(), run.theta, atol=1e-8)
    assert factorised.objective() >= run.objective() - 1e-9


@pytest.mark.parametrize("codes", ["ridge", "nonnegative", "one_hot"])
def test_factorisation_decreases_its_objective_when_all_send(codes):
    run = Run("fedmgs", data_of(factors()), n_atoms=3, codes=codes)
    values = [run.go().objective() for _ in range(29)]
    assert (np.diff(values) <= 1e-10).all() and values[-1] < 0.9 * values[0]


def test_who_does_not_send_keeps_its_last_statistics_at_the_server():
    run = Run("fedmgs", data_of(factors()), n_atoms=3, senders=1)
    for k in range(1, 8):
        before = run.state
        state = run.go().state
        changed = (state.sent != before.sent).flatten(1).any(1)
        assert int(changed.sum()) == (4 if k == 1 else 1)
        assert torch.allclose(state.total, state.sent.mean(0), atol=1e-14)
    assert run.exchange.ledger.up_bits == (4 + 6) * (3 + 6) * 3 * 64
