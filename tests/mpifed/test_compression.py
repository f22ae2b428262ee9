"""Compressors: what their formulas promise, and that a row does not depend on the others."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from convex import Run, clients_of, logistic
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import mpifed
from mpifed.algorithms.flix.flix import Dcgd, Diana
from mpifed.algorithms.flix.objective import partial_gradients
from mpifed.config.configuration import resolve, to_mapping
from mpifed.errors import InputError, RunError
from mpifed.exchange import compression
from mpifed.exchange.compression import Compressor, Quantise, build, proven_contraction
from mpifed.federation import reduction
from mpifed.federation.clients import Draws
from mpifed.federation.federation import Federation
from mpifed.federation.reduction import SparseRows, add_scaled, gathered, weighted_sum
from mpifed.local.linear_objective import objective_of
from mpifed.local.objective import Regulariser
from mpifed.models.linear import linear
from mpifed.mpi.communicator import Alone, world
from mpifed.results.configurations import read_stored
from mpifed.testing import run_rounds

DTYPES = [torch.float32, torch.float64]
UNBIASED = [
    {"name": "identity"},
    {"name": "rand_k", "k": 3},
    {"name": "rand_k", "fraction": 0.3, "indices": "explicit"},
    {"name": "quantise"},
    {"name": "quantise", "bits": 2},
    {"name": "quantise", "bits": 12, "block": 4},
    {"name": "quantise", "levels": 5, "norm": "l2"},
    {"name": "quantise", "levels": 1, "norm": "l2", "block": 7},
    {"name": "natural"},
    {"name": "bernoulli", "p": 0.3},
    {"name": "bernoulli", "p": 0.6, "inner": {"name": "natural"}},
    {"name": "composition"},
    {"name": "composition", "outer": "natural", "inner": {"name": "rand_k", "k": 4}},
    {
        "name": "bernoulli",
        "inner": {"name": "composition", "outer": {"name": "quantise", "bits": 3}},
    },
]
BIASED = [
    {"name": "top_k", "k": 2},
    {"name": "top_k", "fraction": 0.5},
    {"name": "sign"},
    {"name": "bernoulli", "p": 0.5, "inner": {"name": "top_k", "k": 2}},
    {
        "name": "composition",
        "outer": {"name": "quantise", "levels": 1, "norm": "l2"},
        "inner": {"name": "top_k", "k": 4},
    },
]
ALL = UNBIASED + BIASED


def label(section):
    return "-".join(str(v) for v in section.values()).replace(" ", "")


each = pytest.mark.parametrize("section", ALL, ids=label)
each_unbiased = pytest.mark.parametrize("section", UNBIASED, ids=label)


def random_rows(clients, size, seed=0, dtype=torch.float64):
    x = np.random.default_rng(seed).standard_t(3, size=(clients, size))
    return torch.from_numpy(x).to(dtype)


def repeated(section, row, times, seed=3):
    """What arrives of one row from ``times`` clients, float64 (times, size), and the compressor."""
    compressor = build(section)
    arrived = compressor(row.expand(times, -1).clone(), Draws(seed, 1), np.arange(times))
    return arrived.double(), compressor


@each_unbiased
@pytest.mark.parametrize("dtype", DTYPES)
def test_unbiased_within_five_standard_errors_and_omega(section, dtype):
    times, row = 20000, random_rows(1, 10, seed=1, dtype=dtype)
    arrived, compressor = repeated(section, row, times)
    assert compressor.unbiased and arrived.shape == (times, 10)
    error = arrived.mean(dim=0) - row[0].double()
    rounding = 1e-7 * row.abs().max()
    assert (error.abs() <= 5 * arrived.std(dim=0) / math.sqrt(times) + rounding).all()
    squares = ((arrived - row.double()) ** 2).sum(dim=1)
    bound = compressor.omega(10) * float((row.double() ** 2).sum())
    assert squares.mean() <= bound + 5 * squares.std() / math.sqrt(times) + rounding
    assert compressor.contraction(10) == pytest.approx(1 / (1 + compressor.omega(10)))


@pytest.mark.parametrize("section", BIASED, ids=label)
def test_biased_ones_have_a_contraction_and_no_omega(section):
    times, row = 4000, random_rows(1, 10, seed=2)
    arrived, compressor = repeated(section, row, times)
    squares = ((arrived - row) ** 2).sum(dim=1)
    bound = (1 - compressor.contraction(10)) * float((row**2).sum())
    assert squares.mean() <= bound + 5 * squares.std() / math.sqrt(times)
    assert not compressor.unbiased
    with pytest.raises(ValueError, match=r"biased.*omega"):
        compressor.omega(10)


def test_the_error_of_signs_is_what_their_scale_leaves():
    rows = random_rows(4, 50)
    rows[0, :7] = 0
    arrived = build("sign")(rows, Draws(0, 1), np.arange(4))
    expected = (rows**2).sum(1) - rows.abs().sum(1) ** 2 / 50
    assert torch.allclose(((arrived - rows) ** 2).sum(1), expected, rtol=1e-12)


def test_rand_k_is_uniform_over_all_subsets_and_exact_over_their_enumeration():
    row = torch.tensor([[1.0, -2.0, 0.5, 3.0, -0.25]], dtype=torch.float64)
    arrived, compressor = repeated({"name": "rand_k", "k": 2}, row, 20000)
    subsets = list(itertools.combinations(range(5), 2))
    codes = ((arrived != 0).numpy() @ (1 << np.arange(5))).astype(int)
    counts = np.array([(codes == (1 << a) + (1 << b)).sum() for a, b in subsets])
    assert counts.sum() == 20000
    assert ((counts - 2000) ** 2 / 2000).sum() < 33.7  # 1 - 1e-4 quantile, 9 degrees of freedom
    # One message for each of the ten subsets: their mean is the exact expectation.
    outcomes = torch.stack(
        [arrived[np.flatnonzero(codes == (1 << a) + (1 << b))[0]] for a, b in subsets]
    )
    assert torch.allclose(outcomes.mean(dim=0), row[0], atol=1e-15)
    error = ((outcomes - row) ** 2).sum(dim=1).mean()
    assert error == pytest.approx(1.5 * float((row**2).sum()), rel=1e-14)
    assert compressor.omega(5) == 1.5


def test_rand_k_of_clients_and_rounds_and_purposes_are_independent():
    compressor, ones = build({"name": "rand_k", "k": 20}), torch.ones(400, 40).double()
    kept = [
        compressor(ones, Draws(0, k), np.arange(400), purpose).numpy() > 0
        for k, purpose in [(1, "a"), (2, "a"), (1, "b")]
    ]
    for one, other in [(kept[0], kept[1]), (kept[0], kept[2]), (kept[0][1:], kept[0][:-1])]:
        # Both keep a coordinate with probability 1/4; correlation within rows is negative.
        assert abs((one & other).mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / one.size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keeping_all_coordinates_is_the_identity(dtype):
    rows = random_rows(4, 9, dtype=dtype)
    for name in ("rand_k", "top_k"):
        for options in ({"k": 9}, {"fraction": 1.0}):
            compressor = build({"name": name, **options})
            assert torch.equal(compressor(rows, Draws(0, 1), np.arange(4)), rows)
            assert compressor.contraction(9) == 1
    assert build({"name": "rand_k", "k": 9}).omega(9) == 0


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        elements=st.floats(-10, 10, width=16),
    ),
    st.integers(1, 12),
)
def test_top_k_keeps_the_largest_and_of_ties_the_first(x, k):
    rows, size = torch.from_numpy(x), x.shape[1]
    k = min(k, size)
    compressor = build({"name": "top_k", "k": k})
    arrived = compressor(rows, Draws(0, 1), np.arange(len(x))).numpy()
    expected = np.zeros_like(x)
    for i, row in enumerate(x):
        kept = sorted(range(size), key=lambda j: (-abs(row[j]), j))[:k]
        expected[i, kept] = row[kept]
    assert np.array_equal(arrived, expected)
    lost = ((arrived - x) ** 2).sum(axis=1)
    assert (lost <= (1 - compressor.contraction(size)) * (x**2).sum(axis=1) + 1e-9).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [None, 7])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantiser_has_exactly_the_variance_of_its_formula(dtype, block, bits):
    times, row = 20000, random_rows(1, 20, seed=4, dtype=dtype)
    arrived, compressor = repeated({"name": "quantise", "bits": bits, "block": block}, row, times)
    s, x = 2 ** (bits - 1) - 1, row[0].double().numpy()
    exact = 0.0
    for part in np.split(x, range(block or 20, 20, block or 20)):
        u = s * np.abs(part) / np.abs(part).max()
        exact += (np.abs(part).max() / s) ** 2 * ((u % 1) * (1 - u % 1)).sum()
    squares = ((arrived - row.double()) ** 2).sum(dim=1)
    # A float64 r becomes a float32, which moves the largest number off the grid of levels.
    moved = 20 * np.abs(x).max() ** 2 / s * 1e-7
    assert abs(squares.mean() - exact) < 5 * squares.std() / math.sqrt(times) + moved
    assert compressor.omega(20) == pytest.approx((block or 20) / (4 * s**2))
    assert exact <= compressor.omega(20) * (x**2).sum()


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize(("bits", "dtype"), [(2, np.int8), (8, np.int8), (9, np.int16)])
def test_levels_fit_their_bits_without_the_lowest(bits, dtype, norm):
    rows = random_rows(50, 33, seed=5) * torch.logspace(-200, 30, 50).double()[:, None]
    rows[0] = 0
    rows[1, 1:] = 0
    compressor = Quantise(bits=bits, norm=norm, block=10)
    levels, scales = compressor.encode(rows, Draws(1, 1), np.arange(50))
    assert levels.dtype == dtype and scales.dtype == np.float32 and scales.shape == (50, 4)
    s = 2 ** (bits - 1) - 1
    assert levels.min() >= -s and levels.max() <= s
    assert norm == "l2" or (levels.max() == s and levels.min() == -s)
    assert (np.sign(levels) * np.sign(rows.numpy()) >= 0).all()
    arrived = compressor(rows, Draws(1, 1), np.arange(50))
    received = np.frombuffer(levels.tobytes(), dtype).reshape(levels.shape)
    assert np.array_equal(compressor.decode(received, scales), arrived.numpy())
    assert not arrived[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    levels=st.lists(st.integers(-127, 127), min_size=1, max_size=40), exponent=st.integers(-9, 9)
)
def test_quantiser_leaves_its_own_grid_alone(dtype, levels, exponent):
    row = torch.tensor([[127, *levels]], dtype=dtype) * 2.0**exponent
    for k in range(3):
        assert torch.equal(build("quantise")(row, Draws(0, k), np.array([0])), row)


@pytest.mark.parametrize("dtype", DTYPES)
def test_natural_compression_rounds_to_the_powers_of_two_beside_a_number(dtype):
    finfo = torch.finfo(dtype)
    numbers = [
        1.0,
        -4.0,
        3.0,
        -0.7,
        1e-30,
        5.5e20,
        0.0,
        finfo.tiny,
        finfo.tiny / 4,
        -finfo.tiny * 3,
    ]
    row = torch.tensor([numbers], dtype=dtype)
    arrived, _ = repeated("natural", row, 4000)
    for x, column in zip(row[0].double().tolist(), arrived.T, strict=True):
        low = 0.0 if abs(x) < finfo.tiny else 2.0 ** math.floor(math.log2(abs(x)))
        high = 2 * low if low else finfo.tiny
        got = {abs(v) for v in column.tolist()}
        assert got <= ({low, high} if abs(x) != low else {low})
        assert all(v * x >= 0 for v in column.tolist())
        chance = (abs(x) - low) / (high - low)
        share = float((column.abs() == high).double().mean())
        assert abs(share - chance) <= 5 * math.sqrt(chance * (1 - chance) / 4000)


def test_natural_compression_reaches_its_omega():
    # The worst x is 4/3 of a power of two: (4/3 - 1) (2 - 4/3) / (4/3)^2 = 1/8.
    arrived, compressor = repeated("natural", torch.full((1, 1000), 4 / 3).double(), 200)
    assert ((arrived - 4 / 3) ** 2).mean() / (4 / 3) ** 2 == pytest.approx(1 / 8, rel=0.02)
    assert compressor.omega(1000) == 1 / 8


@each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [10, 301, 40_001])
def test_rows_do_not_depend_on_who_else_is_here(section, dtype, size):
    clients = 23 if size < 1000 else 7
    compressor, rows = build(section), random_rows(clients, size, seed=6, dtype=dtype)
    ids = np.random.default_rng(1).permutation(1000)[:clients]
    draws = Draws(4, 9)
    whole = compressor(rows, draws, ids)
    assert whole.dtype == dtype and whole.shape == rows.shape
    for part in (slice(0, 1), slice(3, 4), slice(2, 7), slice(5, None, 2), [6, 1, 4]):
        alone = compressor(rows[part].clone(), draws, ids[part])
        assert torch.equal(alone, whole[part])
        for count in ("bits", "floats"):
            sizes = (size, rows.itemsize) if count == "bits" else (size,)
            counts = getattr(compressor, count)(*sizes, draws, ids)
            assert counts.dtype == np.int64 and counts.shape == (clients,)
            assert np.array_equal(
                getattr(compressor, count)(*sizes, draws, ids[part]), counts[part]
            )


@each
def test_rows_are_left_as_they_were_and_draws_decide(section):
    compressor, rows, ids = build(section), random_rows(30, 50, seed=7), np.arange(30)
    before = rows.clone()
    one = compressor(rows, Draws(0, 1), ids)
    assert torch.equal(rows, before)
    assert torch.equal(one, compressor(rows, Draws(0, 1), ids))
    deterministic = section["name"] in ("identity", "top_k", "sign")
    for other in (Draws(1, 1), Draws(0, 2)):
        assert torch.equal(one, compressor(rows, other, ids)) == deterministic
    assert torch.equal(one, compressor(rows, Draws(0, 1), ids, "other")) == deterministic


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_stays_zero_and_what_is_not_finite_is_not_hidden(section, dtype):
    compressor, ids = build(section), np.arange(40)
    rows = random_rows(40, 12, seed=8, dtype=dtype)
    rows[::4] = 0
    clean = compressor(rows, Draws(0, 1), ids)
    assert not clean[::4].any() and clean.isfinite().all()
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = rows.clone()
        spoilt[1::4, 5] = bad
        arrived = compressor(spoilt, Draws(0, 1), ids)
        assert (~arrived[1::4].isfinite()).any(dim=1).all()
        assert torch.equal(arrived[2::4], clean[2::4])


def test_levels_of_what_is_not_finite_are_zeros():
    rows = torch.tensor([[1.0, math.inf, -2.0], [3.0, 4.0, 0.0], [math.nan, 0.5, 1.0]])
    levels, scales = Quantise().encode(rows, Draws(0, 1), np.arange(3))
    assert levels.any(axis=1).tolist() == [False, True, False]
    assert np.isfinite(scales).ravel().tolist() == [False, True, False]


def test_chosen_coordinates_of_a_stochastic_gradient_are_those_of_the_minibatch():
    options = {"gradient": "stochastic", "step": 0.1, "start": "ones", "local": {"batch_size": 4}}
    whole = Run(Dcgd, logistic(n=1, d=100), **options)
    chosen = Run(Dcgd, logistic(n=1, d=100), ("rand_k", {"k": 2}), **options)
    start = whole.x.copy()
    moved, kept = whole.go().x - start, chosen.go().x - start
    here = np.flatnonzero(kept)
    assert len(here) == 2 and kept[here] == pytest.approx(100 / 2 * moved[here])


@pytest.mark.parametrize(
    ("section", "bits32", "bits64", "floats"),
    [
        ("none", 32 * 300, 64 * 300, 300),
        ({"name": "rand_k", "k": 30}, 32 * 30, 64 * 30, 30),
        ({"name": "rand_k", "fraction": 0.1, "indices": "explicit"}, 64 * 30, 96 * 30, 30),
        ({"name": "top_k", "k": 30}, 64 * 30, 96 * 30, 30),
        ({"name": "top_k", "k": 30, "indices": "log2"}, 41 * 30, 73 * 30, 30),
        ({"name": "top_k", "k": 200}, 32 * 300, 64 * 300, 200),
        ("sign", 300 + 32, 300 + 32, 300),
        ("quantise", 8 * 300 + 32, 8 * 300 + 32, 300),
        ({"name": "quantise", "bits": 4, "block": 256}, 4 * 300 + 64, 4 * 300 + 64, 300),
        ({"name": "quantise", "levels": 5, "norm": "l2"}, 4 * 300 + 32, 4 * 300 + 32, 300),
        ("natural", 9 * 300, 12 * 300, 300),
        ("composition", 8 * 30 + 32, 8 * 30 + 32, 30),
        (
            {"name": "composition", "outer": "natural", "inner": {"name": "top_k", "k": 30}},
            (32 + 9) * 30,
            (32 + 12) * 30,
            30,
        ),
    ],
)
def test_bits_and_numbers_of_a_message(section, bits32, bits64, floats):
    compressor, ids = build(section), np.arange(5)
    assert compressor.bits(300, 4, Draws(0, 1), ids).tolist() == [bits32] * 5
    assert compressor.bits(300, 8, Draws(0, 1), ids).tolist() == [bits64] * 5
    assert compressor.floats(300, Draws(0, 1), ids).tolist() == [floats] * 5


def test_a_closed_gate_costs_nothing_and_an_open_one_what_is_inside():
    compressor = build({"name": "bernoulli", "p": 0.25, "inner": {"name": "rand_k", "k": 4}})
    draws, ids = Draws(2, 3), np.arange(4000)
    sent = compressor(torch.ones(4000, 20).double(), draws, ids).any(dim=1).numpy()
    assert np.array_equal(compressor.bits(20, 8, draws, ids), np.where(sent, 4 * 64, 0))
    assert np.array_equal(compressor.floats(20, draws, ids), np.where(sent, 4, 0))
    assert abs(sent.mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 4000)
    assert compressor.omega(20) == pytest.approx(20 - 1)


def test_constants_of_combined_compressors():
    parts = {"outer": {"name": "quantise", "bits": 4}, "inner": {"name": "rand_k", "k": 7}}
    both = build({"name": "composition", **parts})
    assert both.omega(70) == pytest.approx(10 * (1 + 7 / (4 * 7**2)) - 1)
    after_top = build({"name": "composition", **parts, "inner": {"name": "top_k", "k": 7}})
    assert after_top.contraction(70) == pytest.approx(0.1 / (1 + 7 / (4 * 7**2)))
    gated = build({"name": "bernoulli", "p": 0.5, "inner": {"name": "top_k", "k": 7}})
    assert gated.contraction(70) == 0.05
    l2 = build({"name": "quantise", "levels": 3, "norm": "l2"})
    assert l2.omega(4) == pytest.approx(4 / 9) and l2.omega(400) == pytest.approx(20 / 3)


@pytest.mark.mpi
def test_int8_levels_through_mpi_are_what_the_sum_is_made_of():
    """Every rank sends its clients' messages as bytes; the first decodes them and adds up."""
    communicator, each = world(), 3
    n = communicator.size * each
    ids = communicator.rank * each + np.arange(each)
    rows = random_rows(n, 41, seed=9)[ids]
    compressor, draws = Quantise(block=10), Draws(2, 3)
    levels, scales = compressor.encode(rows, draws, ids)
    decoded = compressor(rows, draws, ids)
    summed = weighted_sum(federation_of(communicator, n), decoded, np.ones(each), ids)
    assert levels.dtype == np.int8
    if communicator.rank:
        communicator.mpi4py.Send(levels, dest=0, tag=1)
        communicator.mpi4py.Send(scales, dest=0, tag=2)
        return
    arrived = [compressor.decode(levels, scales)]
    for source in range(1, communicator.size):
        communicator.mpi4py.Recv(levels, source=source, tag=1)
        communicator.mpi4py.Recv(scales, source=source, tag=2)
        arrived.append(compressor.decode(levels, scales))
    everyone = torch.from_numpy(np.concatenate(arrived))
    assert torch.equal(everyone, compressor(random_rows(n, 41, seed=9), draws, np.arange(n)))
    alone = federation_of(Alone(), n)
    assert torch.equal(summed, weighted_sum(alone, everyone, np.ones(n), np.arange(n)))


# Sections that ask for compressors: what is refused, spelled out, listed; a user's own.


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"name": "composition", "outer": "test_compression:Sign"},
            "compression.outer.*'test_compression:Sign'.*quantise.*natural",
        ),
    ],
)
def test_senseless_sections_are_refused_with_the_reason(section, words):
    with pytest.raises(InputError, match=words):
        build(section)


class Sign(Compressor):
    """The signs times the mean magnitude; a user's own, biased."""

    def contraction(self, size):
        return 1 / size

    def __call__(self, rows, draws, ids, purpose="compression"):
        return rows.sign() * rows.abs().mean(dim=1, keepdim=True)

    def bits(self, size, itemsize, draws, ids, purpose="compression"):
        return np.full(len(ids), size + 8 * itemsize, np.int64)

    def floats(self, size, draws, ids, purpose="compression"):
        return np.full(len(ids), 1, np.int64)


def test_a_users_own_compressor_works_alone_and_inside():
    row = torch.tensor([[1.0, -3.0]])
    section = {"name": "test_compression:Sign"}
    assert build(section)(row, Draws(0, 1), np.array([0])).tolist() == [[2.0, -2.0]]
    gated = build({"name": "bernoulli", "p": 0.5, "inner": section})
    assert not gated.unbiased and gated.contraction(2) == 0.25


class Halved(Compressor):
    """A user's own that says no more than it must."""

    def __call__(self, rows, draws, ids, purpose="compression"):
        return rows / 2

    def bits(self, size, itemsize, draws, ids, purpose="compression"):
        return np.full(len(ids), size, np.int64)


class Claimed(Halved):
    """Unbiased, it says, without saying how far."""

    unbiased = True


def test_what_is_sent_and_its_bits_are_enough_and_nothing_is_proven_of_it():
    made = build("test_compression:Halved")
    assert not made.unbiased and made.contraction(9) == 0
    assert made.floats(9, Draws(0, 1), np.arange(2)).tolist() == [9, 9]
    with pytest.raises(InputError, match=r"Halved .*contraction.*exchange\.consensus_step"):
        proven_contraction(made, 9)
    with pytest.raises(InputError, match=r"Claimed .*omega"):
        build("test_compression:Claimed").contraction(9)


def test_gossip_of_what_nothing_is_proven_of_takes_a_step_that_is_given(tmp_path):
    words = {"compression": "test_compression:Halved", "clients": 4, "rounds": 2}
    with pytest.raises(InputError, match=r"exchange\.consensus_step"):
        mpifed.run("synthetic-gossip", output=tmp_path / "none", **words)
    assert not (tmp_path / "none" / "metrics.csv").exists()
    step = {"exchange.consensus_step": 0.5}
    run = mpifed.run("synthetic-gossip", output=tmp_path / "half", **words, **step)
    assert run.metrics["consensus_distance"][-1] > 0


def test_configurations_spell_out_the_options_inside():
    configuration = resolve({"compression": {"name": "composition", "inner": {"k": 5}}})
    section = to_mapping(configuration)["compression"]
    assert section == {
        "name": "composition",
        "outer": {"name": "quantise", "bits": 8, "levels": None, "block": None, "norm": "max"},
        "inner": {"name": "rand_k", "k": 5, "fraction": 0.1, "indices": "seed"},
    }
    assert resolve({"compression": section}) == configuration
    with pytest.raises(InputError, match=r"compression\.inner\.outer\.bits.* 99.* 2.* 16"):
        inner = {"name": "composition", "outer": {"name": "quantise", "bits": 99}}
        resolve({"compression": {"name": "bernoulli", "inner": inner}})


GATE = {"name": "bernoulli", "p": 0.5}
LISTS = {
    "two": (["rand_k", "natural"], {"name": "composition", "inner": "rand_k", "outer": "natural"}),
    "share": (
        [{"name": "top_k", "k": 0.1}, {"name": "quantise"}],
        {"name": "composition", "inner": {"name": "top_k", "fraction": 0.1}},
    ),
    "gate": (
        ["rand_k", "natural", GATE],
        {**GATE, "inner": {"name": "composition", "inner": "rand_k", "outer": "natural"}},
    ),
    "one": (["sign"], "sign"),
}


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_compressors_is_applied_in_order(kind):
    parts, whole = LISTS[kind]
    rows, draws, ids = random_rows(5, 60, seed=1), Draws(3, 2), np.arange(5)
    listed, expected = build(parts), build(whole)
    assert torch.equal(listed(rows, draws, ids), expected(rows, draws, ids))
    for each in ("bits", "floats"):
        sizes = [
            getattr(one, each)(60, *([4] if each == "bits" else []), draws, ids)
            for one in (listed, expected)
        ]
        np.testing.assert_array_equal(*sizes)
    assert listed.unbiased == expected.unbiased
    assert listed.contraction(60) == expected.contraction(60)
    if listed.unbiased:
        assert listed.omega(60) == expected.omega(60)


def test_runs_store_a_list_of_compressors_as_a_list(tmp_path):
    words = {"algorithm": "fedavg", "clients": 3, "rounds": 2, "data.n_test": 5}
    parts, whole = LISTS["share"]
    listed = mpifed.run("synthetic-fedem", output=tmp_path / "a", compression=parts, **words)
    other = mpifed.run("synthetic-fedem", output=tmp_path / "b", compression=whole, **words)
    assert listed.summary["state_digest"] == other.summary["state_digest"]
    assert listed.summary["up_bits"] == other.summary["up_bits"]
    stored = read_stored(tmp_path / "a" / "config.yaml")["compression"]
    assert [part["name"] for part in stored] == ["top_k", "quantise"] and stored[0]["k"] == 0.1
    again = mpifed.run(output=tmp_path / "a", resume=True, rounds=3)
    assert again.summary["rounds"] == 3


# Messages of a few coordinates: bit for bit what whole rows with zeros give.


def drawn(clients, size, k, seed=0, dtype=torch.float64):
    draw = np.random.default_rng(seed)
    columns = np.stack([draw.choice(size, k, replace=False) for _ in range(clients)])
    values = draw.normal(size=(clients, k)) * 10.0 ** draw.integers(-9, 9, (clients, k))
    return SparseRows(columns, torch.from_numpy(values).to(dtype), size)


def whole(rows):
    found = torch.zeros(len(rows.columns), rows.size, dtype=rows.values.dtype)
    return found.scatter_(1, torch.from_numpy(rows.columns), rows.values)


def federation_of(communicator, n):
    ids = np.arange(n)
    return Federation(communicator, ids * communicator.size // n, ids < 0, ids + 1)


def bytes_of(values):
    return np.ascontiguousarray(values).tobytes()


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.floats(0, 1),
    st.integers(0, 99),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([7, 1 << 18]),
)
def test_sums_and_additions_are_those_of_whole_rows(clients, size, share, seed, dtype, pieces):
    rows = drawn(clients, size, max(1, int(share * size)), seed, dtype)
    weights, ids = np.linspace(0.1, 1.7, clients), np.arange(clients)
    alone = federation_of(Alone(), clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduction, "CACHED", pieces)
        few = weighted_sum(alone, rows, weights, ids)
        all_of_them = weighted_sum(alone, whole(rows), weights, ids)
    assert bytes_of(few) == bytes_of(all_of_them)
    before = drawn(clients, size, size, seed + 1, dtype)
    sums = (
        add_scaled(whole(before), rows, 0.3),
        add_scaled(whole(before), whole(rows), 0.3),
    )
    assert torch.equal(*sums)
    assert torch.equal(gathered(whole(rows), rows.columns), rows.values)


def test_nobody_here_and_what_is_not_finite():
    none = SparseRows(np.zeros((0, 3), np.int64), torch.zeros(0, 3).double(), 5)
    assert (
        weighted_sum(federation_of(Alone(), 9), none, np.ones(0), np.arange(0)).tolist() == [0] * 5
    )
    rows = drawn(4, 9, 2)
    rows.values[2, 1] = np.inf
    with pytest.raises(RunError, match="client 7 "):
        weighted_sum(federation_of(Alone(), 9), rows, np.ones(4), np.array([5, 6, 7, 8]))


@pytest.mark.parametrize("size", [8, 301, 5000])
def test_rand_k_names_the_coordinates_that_it_keeps(size):
    compressor, draws, ids = build({"name": "rand_k", "fraction": 0.1}), Draws(3, 2), np.arange(40)
    columns = compressor.coordinates(size, draws, ids, "p")
    kept = compressor.select(torch.zeros(40, size), draws, ids, "p")
    assert np.array_equal(np.nonzero(kept)[1].reshape(40, -1), np.sort(columns))
    assert build({"name": "rand_k", "fraction": 0.5}).coordinates(size, draws, ids, "p") is None


def problem(bias, density, n=5, m=40, d=30):
    draw = np.random.default_rng(4)
    xs = [draw.normal(size=(m, d)) * (draw.random((m, d)) < p) for p in np.resize(density, n)]
    data = clients_of(xs, [draw.integers(2, size=m) for _ in range(n)], "classification")
    return data[0], linear(data[1], bias=bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("density", [(0.1,), (0.9,), (0.1, 0.9)])
@pytest.mark.parametrize("kind", ["l2", "nonconvex"])
def test_coordinates_of_gradients_are_those_of_whole_ones(bias, density, kind):
    clients, model = problem(bias, density)
    objective = objective_of(model, clients, Regulariser(kind, 0.2))
    w = torch.randn(5, model.n_parameters, generator=torch.Generator().manual_seed(1)).double()
    columns = drawn(5, model.n_parameters, 4).columns
    found = partial_gradients(objective, w, columns)
    assert bytes_of(found) == bytes_of(gathered(objective.gradients(w), columns))
    w[3, 2] = np.nan
    assert partial_gradients(objective, w, columns) is None


@pytest.mark.parametrize("method", [Dcgd, Diana])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_a_run_is_the_same_by_few_coordinates_and_by_whole_rows(method, participation, monkeypatch):
    def run():
        data = logistic(d=24, participation=participation)
        made = Run(method, data, ("rand_k", {"k": 3}), flix_alpha=0.4, l2=0.1).go(30)
        return made.x.tobytes(), vars(made.exchange.ledger)

    few = run()
    monkeypatch.setattr(compression, "FEW", 0)
    assert run() == few


@pytest.mark.parametrize("name", ["top_k", "rand_k"])
@pytest.mark.parametrize(
    ("size", "index"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10), (1025, 11)]
)
def test_an_index_takes_the_fewest_bits_that_tell_all_coordinates_apart(name, size, index):
    compressor = build({"name": name, "k": 1, "indices": "log2"})
    assert compressor.bits(size, 4, Draws(0, 1), np.arange(2)).tolist() == [32 + index] * 2


def test_a_server_adds_in_the_next_round_what_a_biased_compressor_has_kept_back():
    xs, ys = (
        np.array([[[1.0, 0.5], [0.0, 2.0]], [[2.0, 0.0], [1.0, 1.0]]]),
        [[1.0, 3.0], [4.0, 0.0]],
    )
    model = {"name": "linear", "bias": False, "loss": "half_squared"}
    options = {"local": {"lr": 0.1}, "compression": {"name": "top_k", "k": 1}, "model": model}
    rounds = run_rounds("fedavg", list(zip(xs, ys, strict=True)), rounds=0, **options)
    w, residual = rounds.state.model.numpy()[0], np.zeros((2, 2))
    for _ in range(4):
        sent = np.zeros((2, 2))
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            message = -0.1 * x.T @ (x @ w - y) / 2 + residual[i]
            largest = np.abs(message).argmax()
            sent[i, largest] = message[largest]
            residual[i] = message - sent[i]
        w = w + sent.mean(0)
        rounds.advance()
        assert rounds.state.model[0].numpy() == pytest.approx(w, abs=1e-14)
        assert rounds.memory.feedback.residual.numpy() == pytest.approx(residual, abs=1e-14)
    assert residual.any()
