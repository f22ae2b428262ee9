"""What a server's average is over, and how it weighs who takes part."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from commands import TINY, call, rows
from convex import Run, quadratics, random_labels, random_quadratics
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, unlike_one_rank
from small_runs import CHOOSE_OR_CORRECT, OWN, refused, rounds_of
from torch.profiler import ProfilerActivity, profile

from mpifed.testing import names, run_rounds

# They average over clusters, correct steps by variates that add up to zero, or need gossip.
OTHERS = {"clustered", "ifca", *CHOOSE_OR_CORRECT}


def rounds_at(counts, participation=1.0, compression=None, **options):
    """Rounds at a server of clients with so many samples."""
    problem = random_labels(counts, (1,), participation=participation)
    exchange = {"name": "server", **options}
    return Run("fedavg", problem, compression, exchange=exchange)


def server_of(counts, participation=1.0, compression=None, **options):
    return rounds_at(counts, participation, compression, **options).exchange


TRANSPORT = {**OWN["fedmm_ot"], "algorithm": {"name": "fedadam", "pretraining": 5}}


AVERAGED = [
    *((name, {}) for name in sorted({*names("algorithms")} - OTHERS)),
    ("fedadam", TRANSPORT),
]


@pytest.mark.parametrize(("name", "more"), AVERAGED)
def test_where_nobody_is_absent_all_are_the_participants(name, more):
    digests = []
    for over in ("participants", "all"):
        exchange = {"name": "server", "average_over": over}
        digests.append(rounds_of(name, exchange, rounds=2, **more).digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_others_refuse_averages_over_all(name):
    assert refused(name, {"name": "server", "average_over": "all"})


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=8),
    st.floats(1e-3, 1e3),
    st.data(),
)
def test_an_average_over_all_is_the_weighted_mean_whatever_the_weights_sum_to(counts, scale, data):
    n = len(counts)
    active = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    shares = np.array(counts) / sum(counts)
    x = np.random.default_rng(0).normal(size=(n, 3))
    before = np.array([1.0, -2.0, 3.0])
    channel = server_of(counts, average_over="all").at(1, active)
    own = torch.from_numpy(shares[active] * scale)
    found = channel.average(torch.from_numpy(x[active]), own, torch.from_numpy(before), scale)
    everyone = np.where(active[:, None], x, before)
    assert found.numpy() == pytest.approx(shares @ everyone, abs=1e-12)


def most_allocated(action):
    """The most bytes of tensors at once that ``action`` allocates, and what it returns."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        made = action()
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    return max(itertools.accumulate(event.nbytes() for event in events)), made


@pytest.mark.parametrize(("over", "models"), [("participants", 0.5), ("all", 1.0)])
def test_an_average_takes_the_memory_of_one_model_in_float64_beside_its_sum(over, models):
    """Or of its result, in float32, where nobody is absent."""
    n, size = 4, 100_000
    rows, before = torch.randn(n - 1, size), torch.randn(size)
    channel = server_of([1] * n, average_over=over).at(1, np.arange(n) < n - 1)
    shares, kept = torch.full((n - 1,), 1 / n, dtype=torch.float64), before.clone()
    most, found = most_allocated(lambda: channel.average(rows, shares, before))
    assert most <= 8 * size * models * 1.05
    assert torch.equal(before, kept)
    expected = rows.sum(0) / n + before / n if over == "all" else rows.mean(0)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_average_leaves_what_it_is_given_as_it_was(dtype):
    rows, before = torch.randn(2, 7).to(dtype), torch.randn(7).to(dtype)
    copies = rows.clone(), before.clone()
    channel = server_of([1] * 3, average_over="all").at(1, np.arange(3) < 2)
    channel.average(rows, torch.full((2,), 1 / 3, dtype=torch.float64), before)
    assert torch.equal(rows, copies[0]) and torch.equal(before, copies[1])


@pytest.mark.parametrize("kind", ["fomaml", "reptile"])
def test_meta_learners_move_the_share_of_those_who_take_part(kind):
    """Half of the clients over all: half of the move that they would make among themselves."""
    matrices, centres = [[[1.0]]] * 4, [[0.0], [1.0], [2.0], [3.0]]
    ends = {}
    for over in ("participants", "all"):
        exchange = {"name": "server", "average_over": over}
        data = quadratics(matrices, centres, participation=0.5)
        run = Run(kind, data, exchange=exchange, inner_step=0.1)
        ends[over] = float(run.go().x[0])
    assert ends["participants"] != 0
    assert ends["all"] == pytest.approx(ends["participants"] / 2, rel=1e-12)


@pytest.mark.parametrize("n", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_flix_over_all_converges_to_the_minimiser(n):
    exchange = {"name": "server", "average_over": "all"}
    options = {"flix_alpha": 0.7, "start": "zeros", "step": 0.2}
    run = Run("flix", random_quadratics(n=n, d=4), exchange=exchange, **options)
    assert run.go(800).measured()["objective_gap"] < 1e-15
    assert float((run.flix.model[0] - run.flix.reference).norm()) < 1e-13


SKEWED = [80, 5, 5, 5, 5]
"""One client with most of the samples."""


def chance_of(participation):
    """With what probability a client takes part, each by itself."""
    if participation["name"] == "dropout":
        rate, recovery = participation["rate"], participation["recovery"]
        return recovery / (rate + recovery)
    return participation["p"] if participation["name"] == "bernoulli" else 1 - participation["rate"]


def expected(estimate, participation, n, count):
    """The expectation of ``estimate(active)`` over all draws of who takes part.

    ``count`` clients are there where their number is fixed.
    """
    fixed = participation["name"] == "uniform"
    p = None if fixed else chance_of(participation)
    total, weight = 0.0, 0.0
    for drawn in itertools.product([False, True], repeat=n):
        active, k = np.array(drawn), sum(drawn)
        if fixed:
            chance = (k == count) / math.comb(n, k)
        else:
            chance = p**k * (1 - p) ** (n - k)
        if chance:
            total, weight = total + chance * estimate(active), weight + chance
    assert weight == pytest.approx(1)
    return total


PARTICIPATIONS = [
    {"name": "uniform", "fraction": 0.2},
    {"name": "uniform", "fraction": 0.6},
    {"name": "bernoulli", "p": 0.3},
    {"name": "dropout", "rate": 0.2, "recovery": 0.1},
    {"name": "stragglers", "rate": 0.6, "late": "miss"},
]


@pytest.mark.parametrize("counts", [SKEWED, [3, 1, 4, 1, 5, 9], [7, 7, 7]])
@pytest.mark.parametrize("participation", PARTICIPATIONS)
@pytest.mark.parametrize("compressor", [None, ("identity", {})])
def test_unbiased_weights_have_the_mean_over_all_clients_as_expectation(
    counts, participation, compressor
):
    n, shares = len(counts), np.array(counts) / sum(counts)
    chosen = {**participation, "weights": "unbiased"}
    rounds = rounds_at(counts, chosen, compressor)
    server, count = rounds.exchange, len(rounds.participants)
    x = np.random.default_rng(0).normal(size=(n, 3))
    before = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)

    def average(active):
        own, rows = torch.from_numpy(shares[active]), torch.from_numpy(x[active])
        return server.at(1, active).average(rows, own, before).numpy()

    def mean(active):
        own, rows = torch.from_numpy(shares[active]), torch.from_numpy(x[active])
        return server.at(1, active).mean(rows, own).numpy()

    assert expected(average, chosen, n, count) == pytest.approx(shares @ x, abs=1e-12)
    assert expected(mean, chosen, n, count) == pytest.approx(shares @ x, abs=1e-12)


def test_renormalised_weights_count_a_large_client_for_less():
    """Four clients at 1, and at 0 the one that has 80 % of the samples: the mean is 0.2."""
    x, shares = np.array([[0.0], [1], [1], [1], [1]]), np.array(SKEWED) / 100
    found = {}
    for weights in ("renormalised", "unbiased"):
        chosen = {"name": "uniform", "fraction": 0.2, "weights": weights}
        server = server_of(SKEWED, chosen)

        def average(active, server=server):
            own, rows = torch.from_numpy(shares[active]), torch.from_numpy(x[active])
            before = torch.zeros(1, dtype=torch.float64)
            return float(server.at(1, active).average(rows, own, before)[0])

        found[weights] = expected(average, chosen, 5, 1)
    assert found == pytest.approx({"renormalised": 0.8, "unbiased": 0.2}, abs=1e-12)


@pytest.mark.parametrize(
    ("participation", "unbiased"),
    [
        (0.2, {"name": "uniform", "fraction": 0.2, "weights": "unbiased"}),
        (
            {"name": "bernoulli", "p": 0.4},
            {"name": "bernoulli", "p": 0.4, "weights": "unbiased"},
        ),
    ],
)
def test_unbiased_weights_change_no_draw(participation, unbiased):
    one, other = (rounds_at([3] * 9, each) for each in (participation, unbiased))
    for _ in range(29):
        assert one.participants.tolist() == other.participants.tolist()
        one.go()
        other.go()


def resolved(*keys):
    return run_rounds("fedavg", rounds=0, **dict(keys)).configuration.participation


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([("participation", 0.2)], 0.2),
        (
            [("participation", 0.2), ("participation.weights", "unbiased")],
            {"name": "uniform", "fraction": 0.2, "weights": "unbiased"},
        ),
        (
            [
                ("participation", {"name": "bernoulli", "p": 0.5}),
                ("participation.weights", "renormalised"),
            ],
            {"name": "bernoulli", "p": 0.5},
        ),
    ],
)
def test_weights_go_with_every_participation(keys, expected):
    assert resolved(*keys) == resolved(("participation", expected))
    assert resolved(*reversed(keys)) == resolved(("participation", expected))


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedavg",
        pytest.param("fedem", marks=pytest.mark.slow),
        "fedadam",
        pytest.param("fomaml", marks=pytest.mark.slow),
    ],
)
def test_an_unbiased_run_is_repeated_by_its_configuration(algorithm, tmp_path, capfd):
    words = [*TINY, f"algorithm={algorithm}", "rounds=3", "evaluation.every=1", "--quiet"]
    words += ["participation={name: bernoulli, p: 0.5}"]
    one, other, plain = (tmp_path / name for name in ("one", "other", "plain"))
    assert call([*words, "--output", plain], capfd).code == 0
    assert call([*words, "participation.weights=unbiased", "--output", one], capfd).code == 0
    assert call([one / "config.yaml", "--quiet", "--output", other], capfd).code == 0
    assert rows(one) == rows(other)
    assert rows(one)[-1]["state_digest"] != rows(plain)[-1]["state_digest"]
    assert [row["up_bits"] for row in rows(one)] == [row["up_bits"] for row in rows(plain)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exchange=gossip"], "participation.weights.*'unbiased'"),
        (["exchange.average_over=all"], "participation.weights.*'unbiased'"),
    ],
)
def test_weights_that_do_not_apply_are_refused(words, said, tmp_path, capfd):
    first = ["participation=0.5", "participation.weights=unbiased"]
    done = call([*TINY, *first, *words, "--output", tmp_path / "run"], capfd)
    assert done.code == 2
    assert re.search(said, done.err)
    assert not (tmp_path / "run").exists()


UNEQUAL = "data={name: synthetic, n_test: 20, dimension: 20, seed: 20}"
LARGE = "an average renormalised over participants counts large clients for less"


@pytest.mark.parametrize(
    ("words", "remark"),
    [
        (["participation=0.5"], LARGE),
        (["participation=1.0"], None),
        (["participation=0.5", "participation.weights=unbiased"], None),
    ],
)
def test_the_log_remarks_on_weights(words, remark, tmp_path, capfd):
    done = call([*TINY[:3], UNEQUAL, *words, "rounds=1", "--output", tmp_path / "run"], capfd)
    assert done.code == 0, done.err
    log = (tmp_path / "run" / "log.txt").read_text()
    assert (LARGE in log) == (remark == LARGE)


@pytest.mark.mpi
@pytest.mark.parametrize("algorithm", ["fedavg", "fedem", "fedadam"])
@pytest.mark.parametrize(
    "participation",
    [{"name": "uniform", "fraction": 0.3}, {"name": "bernoulli", "p": 0.2}],
)
def test_ranks_agree_on_unbiased_weights(algorithm, participation, tmp_path):
    overrides = {
        **SMALL,
        "algorithm": algorithm,
        "participation": {**participation, "weights": "unbiased"},
    }
    assert unlike_one_rank(overrides, tmp_path) == []
