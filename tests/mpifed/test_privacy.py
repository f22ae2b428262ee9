"""Private updates: the noise, what it is added to, epsilon, and what is refused."""

from __future__ import annotations

import math
import re
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import rows as metrics_of
from dp_accounting import get_epsilon_gaussian
from engine_runs import prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, run
from scipy import stats
from small_runs import CASES, PLAIN, problem

from mpifed.components.registry import find_algorithm
from mpifed.config.configuration import resolve, to_mapping
from mpifed.errors import InputError, RunError
from mpifed.exchange import accounting, privacy
from mpifed.exchange.base import Round
from mpifed.federation import options as section
from mpifed.federation.federation import Federation
from mpifed.federation.options import PrivacyOptions
from mpifed.mpi.communicator import Alone

NOISE = {"noise_multiplier": 0.5, "clip_norm": 2.0, "delta": 0.01}
SIZE = 20_000


def channel_with(active=None, round=1, **options):
    engine = prepared("fedavg", "server", clients=6, privacy={**NOISE, **options})
    active = np.ones(6, bool) if active is None else active
    return engine.setup.exchange.at(round, active)


def noise_of(channel, size=SIZE, n=6):
    """What a mean of updates of zeros is."""
    rows = torch.zeros(n, size, dtype=torch.float64)
    return channel.average(rows, torch.full((n,), 1 / n).double(), rows[0]).numpy()


@pytest.mark.parametrize(("where", "deviation"), [("central", 1 / 6), ("local", 1 / math.sqrt(6))])
def test_noise_is_normal_with_the_stated_deviation(where, deviation):
    noise = noise_of(channel_with(where=where))
    assert stats.kstest(noise / deviation, "norm").pvalue > 1e-3
    assert noise.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * SIZE))


@pytest.mark.parametrize("where", ["central", "local"])
def test_noise_is_drawn_anew_in_each_round_and_again_on_a_resume(where):
    one, again, next_one = (noise_of(channel_with(round=k, where=where)) for k in (1, 1, 2))
    assert np.array_equal(one, again)
    assert abs(np.corrcoef(one, next_one)[0, 1]) < 5 / math.sqrt(SIZE)


def test_noise_of_clients_is_independent():
    options, ids = PrivacyOptions(**{**NOISE, "where": "local"}), np.array([1, 4])
    n = np.zeros(6, int)
    round = Round(Federation(Alone(), n, n > 0, n + 1), 0, 1, np.ones(6, bool))
    drawn = privacy.noised(torch.zeros(2, SIZE), ids, round, options)
    assert abs(np.corrcoef(drawn.numpy())[0, 1]) < 5 / math.sqrt(SIZE)


def test_a_client_moves_the_sum_by_at_most_the_clip_norm():
    rows = torch.zeros(6, 30, dtype=torch.float64)
    moved, before = rows.clone(), torch.ones(30).double()
    moved[2], rows[:, 0], moved[:, 0] = 1e6, 0.1, 0.1
    weights = torch.tensor([0.9, 0, 0, 0, 0, 0.1]).double()  # clients count alike
    one, other = (channel_with().average(before + r, weights, before) for r in (rows, moved))
    assert float((6 * (one - other)).norm()) <= NOISE["clip_norm"] + 0.1 + 1e-9
    small = float((other - one)[1:].norm())
    assert small == pytest.approx(2 / 6, rel=1e-6)


def test_the_denominator_is_the_expected_number_of_participants():
    who, options = {"name": "bernoulli", "p": 0.5}, {**NOISE, "noise_multiplier": 1e-9}
    engine = prepared("fedavg", "server", clients=6, privacy=options, participation=who)
    active = np.arange(6) < 2
    rows = torch.ones(2, 4, dtype=torch.float64) * 0.5
    channel = engine.setup.exchange.at(1, active)
    made = channel.average(rows, torch.ones(2).double(), 0 * rows[0])
    assert made.tolist() == pytest.approx([2 * 0.5 / 3] * 4)


# -- epsilon


def test_epsilon_of_a_gaussian_is_that_of_its_definition():
    """Balle and Wang (2018), Theorem 8, have delta."""
    for z, rounds in ((1.0, 1), (2.0, 10), (5.0, 100)):
        epsilon, mu = accounting.gaussian(z, rounds, 1e-5), math.sqrt(rounds) / z
        delta = stats.norm.cdf(mu / 2 - epsilon / mu)
        delta -= math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-9)


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (20.0, 3), (0.1, 2000), (0.05, 6), (1e-8, 1)])
@pytest.mark.parametrize("delta", [1e-2, 1e-10])
def test_epsilon_without_sampling_is_that_of_another_program(z, rounds, delta):
    naive = get_epsilon_gaussian(z / math.sqrt(rounds), delta)
    assert accounting.gaussian(z, rounds, delta) == pytest.approx(naive, rel=1e-9)


# At delta = 1e-5, on a grid of 20 times as many points; with hardly any noise, as without sampling.
FINE = [(0.05, 6, 1353.6096), (0.1, 2000, 53582.2315), (1e-13, 6, 3e26), (1e-100, 6, 3e200)]


@pytest.mark.parametrize(("z", "rounds", "fine"), FINE)
def test_little_noise_and_many_rounds_take_little_memory(z, rounds, fine):
    accounting.poisson_sampled(0.5, 1.0, 1, 1e-5)  # which imports what it needs
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * 10**8, limits[1]))
    try:
        epsilon = accounting.poisson_sampled(0.5, z, rounds, 1e-5)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    unsampled = accounting.gaussian(z, rounds, 1e-5)
    assert epsilon == pytest.approx(fine, rel=1e-5) and epsilon <= unsampled
    assert accounting.sampled_without_replacement(10, 5, z, rounds, 1e-5) <= unsampled


def test_epsilon_of_poisson_sampling_is_that_of_convolved_losses():
    """The loss of a round is log(dP / dQ); those of independent rounds add up."""
    q, z, rounds, step = 0.5, 1.3, 6, 2e-4
    x = np.linspace(-16, 17, 400_001)
    without = stats.norm.pdf(x, 0, z)
    sampled = (1 - q) * without + q * stats.norm.pdf(x, 1, z)
    found = []
    for p, other in ((sampled, without), (without, sampled)):
        places = np.rint(np.log(p / other) / step).astype(int)
        one = np.bincount(places - places.min(), p * (x[1] - x[0]))
        size = rounds * (len(one) - 1) + 1
        whole = np.fft.irfft(np.fft.rfft(one, size) ** rounds, size)
        losses = (rounds * places.min() + np.arange(size)) * step
        grid = np.arange(2.4, 2.9, 1e-3)
        excess = -np.expm1(np.minimum(grid[:, None] - losses[::20], 0))
        delta = excess @ np.add.reduceat(whole, np.arange(0, size, 20))
        found.append(grid[np.searchsorted(-delta, -0.01)])
    assert accounting.poisson_sampled(q, z, rounds, 0.01) == pytest.approx(max(found), abs=5e-3)
    assert max(found) == pytest.approx(2.626, abs=5e-3)


@given(z=st.floats(0.7, 5), rounds=st.integers(1, 50))
@settings(max_examples=4, deadline=None)
def test_sampling_helps_and_rounds_cost(z, rounds):
    whole = accounting.gaussian(z, rounds, 1e-5)
    assert accounting.poisson_sampled(1.0, z, rounds, 1e-5) == pytest.approx(whole, rel=1e-3)
    assert accounting.poisson_sampled(0.1, z, rounds, 1e-5) < whole
    assert accounting.gaussian(z, rounds + 1, 1e-5) > whole
    assert accounting.gaussian(z, 0, 1e-5) == 0


@pytest.mark.parametrize(
    ("who", "where", "wanted"),
    [
        (1.0, "central", lambda k: accounting.gaussian(2.0, k, 0.01)),
        ({"name": "dropout", "rate": 0.1, "recovery": 0.4}, "central", None),
        ({"name": "bernoulli", "p": 0.3}, "central", "poisson"),
        (0.5, "central", "without"),
        (1.0, "local", lambda k: accounting.gaussian(1.0, k, 0.01)),
    ],
)
def test_epsilon_is_that_of_how_participants_are_drawn(who, where, wanted):
    options = {**NOISE, "noise_multiplier": 2.0, "where": where}
    made = resolve({**PLAIN, "clients": 10, "privacy": options, "participation": who})
    n = np.zeros(10, int)
    federation = Federation(Alone(), n, n > 0, n + 1, made.participation)
    found = accounting.accountant_of(made.privacy, federation, 0)(7)
    naive = {
        None: lambda k: accounting.gaussian(2.0, k, 0.01),
        "poisson": lambda k: accounting.poisson_sampled(0.3, 2.0, k, 0.01),
        "without": lambda k: accounting.sampled_without_replacement(10, 5, 1.0, k, 0.01),
    }.get(wanted if not callable(wanted) else 0, wanted)
    assert found == naive(7)


def test_locally_a_round_without_a_client_costs_it_nothing():
    options = PrivacyOptions(noise_multiplier=20.0, clip_norm=2.0, delta=0.01, where="local")
    n = np.zeros(10, int)
    federation = Federation(Alone(), n, n > 0, n + 1, 0.2)
    accountant = accounting.accountant_of(options, federation, 0)
    counts = {accounting.gaussian(10.0, k, 0.01): k for k in range(31)}
    most = [counts[accountant(rounds)] for rounds in (1, 10, 30, 10)]
    assert most[0] == 1 and most[1] == most[3] and 1 < most[1] < most[2] < 30


def test_epsilon_is_in_the_files_of_a_run(tmp_path):
    given = {**SMALL, "clients": 5, "privacy": {**NOISE, "noise_multiplier": 1.0}}
    run("synthetic-fedem", given, tmp_path / "run")
    found = [float(row["epsilon"]) for row in metrics_of(tmp_path / "run")]
    assert found == [accounting.gaussian(1.0, k, 0.01) for k in (0, 2, 4)]
    summary = (tmp_path / "run" / "summary.json").read_text(encoding="utf-8")
    assert f'"epsilon": {found[-1]}' in summary
    log = (tmp_path / "run" / "log.txt").read_text("utf-8")
    assert re.search(rf"epsilon\b.* {found[-1]:.4g}\b", log)


# -- configurations


def test_a_missing_accountant_is_said_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(section, "PACKAGE", "not_there")
    with pytest.raises(InputError, match=r"privacy\..* pip install 'mpifed\[privacy\]'"):
        resolve({**PLAIN, "privacy": NOISE})


def test_a_run_without_noise_does_not_mention_privacy():
    assert "privacy" not in to_mapping(resolve(PLAIN))
    assert to_mapping(resolve({**PLAIN, "privacy": NOISE}))["privacy"]["where"] == "central"


def test_clients_count_alike_where_they_add_the_noise():
    channel = channel_with(where="local", noise_multiplier=1e-9)
    rows = torch.eye(6, dtype=torch.float64)
    weights = torch.arange(1, 7).double() / 21
    assert channel.average(rows, weights, 0 * rows[0]).tolist() == pytest.approx([1 / 6] * 6)


def test_a_method_that_sends_more_than_it_declares_is_stopped():
    channel, rows = channel_with(), torch.zeros(6, 3)
    channel.send(rows)
    with pytest.raises(RunError, match=r"several messages.*aggregates = "):
        channel.send(rows)
    for call in (
        lambda: channel.gather(rows[:, 0]),
        lambda: channel.products(rows),
        lambda: channel.among(np.ones(6, bool)),
        lambda: channel.sum(rows, rows[:, 0].double()),
    ):
        with pytest.raises(RunError, match=r"noise.*private.*aggregates = "):
            call()


ONE = [
    name
    for name, exchange in (case.values for case in CASES)
    if exchange == "server"
    and find_algorithm(name).aggregates == "mean"
    and find_algorithm(name).communicates
]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["central", "local"])
@pytest.mark.parametrize("name", ONE)
def test_every_method_of_one_mean_can_be_private(name, where):
    own = problem(name, "server")["clients"]
    engine = prepared(name, "server", privacy={**NOISE, "delta": 0.1 / own, "where": where})
    for _ in range(3):
        engine.advance()
    assert engine.digest()
