from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpifed.errors import Diverged, RunError
from mpifed.exchange.mixer import mixer
from mpifed.exchange.reduction import sum_and_mass, weighted_sum
from mpifed.mpi import sums as mpi_sums
from mpifed.mpi.communicator import Alone

finite = st.floats(-(2.0**99), 2.0**99, allow_nan=False, width=32)
shapes = st.tuples(st.integers(1, 12), st.integers(1, 4))


class Ranks:
    """Several ranks played by one process: the rows of all, grouped, reduced group by group."""

    def __init__(self, groups, rows, weights):
        self.groups, self.rows, self.weights = groups, rows, weights

    def sum(self):
        """What ``weighted_sum`` gives on every rank, each rank's part computed by itself."""
        largest, results = [], []

        class Probe(Alone):
            def max(self, values):
                largest.append(values.copy())
                return np.max(largest, axis=0)

        class Replay(Alone):
            def max(self, values):
                return top

            def begin_total(self, values):
                results.append(values.copy())
                return lambda: values

        for group in self.groups:
            self._one(Probe(), group)
        top = np.max(largest, axis=0)
        for group in self.groups:
            self._one(Replay(), group)
        whole = np.sum(results, axis=0)

        class Total(Replay):
            def begin_total(self, values):
                return lambda: whole

        return self._one(Total(), self.groups[0])

    def _one(self, communicator, group):
        rows = torch.from_numpy(self.rows[group])
        return weighted_sum(communicator, rows, self.weights[group], group, len(self.rows))


@settings(max_examples=60)
@given(
    st.data(),
    shapes,
    st.sampled_from([np.float32, np.float64]),
    st.lists(st.integers(1, 11), max_size=4),
)
def test_a_sum_depends_neither_on_grouping_nor_on_order(data, shape, dtype, cuts):
    rows = data.draw(hnp.arrays(np.float32, shape, elements=finite)).astype(dtype)
    rows *= dtype(1 + 2**-20)  # uses the bits that float32 has not
    weights = np.linspace(0.1, 1.7, len(rows))
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    groups = [g for g in np.split(order, sorted({c for c in cuts if c < len(rows)})) if len(g)]
    everyone = np.arange(len(rows))
    whole = weighted_sum(Alone(), torch.from_numpy(rows), weights, everyone, len(rows))
    assert np.array_equal(whole, Ranks(groups, rows, weights).sum())


@settings(max_examples=60)
@given(st.data(), shapes, st.sampled_from([np.float32, np.float64]))
def test_a_sum_is_exact_to_far_beyond_the_precision_of_the_state(data, shape, dtype):
    rows = data.draw(hnp.arrays(np.float32, shape, elements=finite)).astype(dtype)
    weights = data.draw(hnp.arrays(np.float64, shape[0], elements=st.floats(0, 1)))
    got = weighted_sum(Alone(), torch.from_numpy(rows), weights, np.arange(shape[0]), shape[0])
    bits = 61 - shape[0].bit_length()
    largest = max(
        abs(Fraction(float(np.abs(r).max())) * Fraction(w))
        for r, w in zip(rows, weights, strict=True)
    )
    for column in range(shape[1]):
        terms = [
            Fraction(float(x)) * Fraction(float(w))
            for x, w in zip(rows[:, column], weights, strict=True)
        ]
        rounding = sum(abs(t) for t in terms) / 2**52 + len(terms) * largest / 2 ** (bits - 1)
        if dtype == np.float64:
            rounding = sum(abs(t) for t in terms) / 2**52 + len(terms) * largest / 2 ** (
                2 * bits - 2
            )
        assert abs(Fraction(float(got[column])) - sum(terms)) <= rounding + Fraction(1, 2**1000)


def test_ranks_with_more_rows_and_with_fewer_reduce_in_the_same_pieces(monkeypatch):
    monkeypatch.setattr(mpi_sums.FlatSums, "columns", 10)
    pieces = []

    class Counting(Alone):
        def begin_total(self, values):
            pieces.append(values.shape)
            return values.copy

    for count in (0, 1, 14):
        summed = weighted_sum(
            Counting(), torch.ones(count, 25), np.ones(count), np.arange(count), 15
        )
        assert np.array_equal(summed, np.full(25, count))
    assert pieces == 3 * [(1, 10), (1, 10), (1, 5)]


@pytest.mark.parametrize("under_way", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_travel_while_the_next_are_made(under_way, dtype, monkeypatch):
    monkeypatch.setattr(mpi_sums.FlatSums, "columns", 10)
    monkeypatch.setattr(mpi_sums.FlatSums, "under_way", under_way)
    events, begun = [], []

    class Slow(Alone):
        def begin_total(self, values):
            number = len(begun)
            begun.append(values.copy())
            values[:] = -1  # as undefined as what MPI leaves there
            events.append(f"begin {number}")

            def ended():
                events.append(f"end {number}")
                return begun[number]

            return ended

    rows, weights = torch.randn(3, 45, dtype=dtype), np.array([0.2, 0.3, 0.5])
    expected = weighted_sum(Alone(), rows, weights, np.arange(3), 3)
    assert np.array_equal(weighted_sum(Slow(), rows, weights, np.arange(3), 3), expected)
    order = [f"begin {k}" for k in range(min(5, under_way))]
    for k in range(5):
        order += [f"begin {k + under_way}"] * (k + under_way < 5) + [f"end {k}"]
    assert events == order


@pytest.mark.parametrize("exponent", [-1000, -300, 0, 300])
@pytest.mark.parametrize("weight", [2.0**-130, 0.3, 2.0**130])
def test_sums_of_any_magnitude_are_those_of_fractions(exponent, weight):
    generator = np.random.default_rng(5)
    rows = np.ldexp(generator.uniform(-1, 1, (3, 40)), exponent)
    weights = np.array([weight, 0.0, 0.7 * weight])
    found = weighted_sum(Alone(), torch.from_numpy(rows), weights, np.arange(3), 3)
    products = rows * weights[:, None]
    whole = [float(sum(map(Fraction, column))) for column in products.T.tolist()]
    largest = np.abs(products).max()
    assert np.abs(found - whole).max() <= max(2.0**-80 * largest, np.spacing(largest))


def test_zero_rows_and_zeros_sum_to_zero():
    zeros = torch.zeros(3, 2)
    assert np.array_equal(weighted_sum(Alone(), zeros, np.ones(3), np.arange(3), 3), [0, 0])
    none = torch.zeros(0, 2)
    assert np.array_equal(weighted_sum(Alone(), none, np.ones(0), np.arange(0), 3), [0, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(value):
    rows = torch.ones(4, 3)
    rows[2, 1] = value
    with pytest.raises(RunError, match="client 7 "):
        weighted_sum(Alone(), rows, np.ones(4), np.array([5, 6, 7, 8]), 4)


def random_matrix(generator, n, density):
    w = np.triu(generator.random((n, n)) * (generator.random((n, n)) < density), 1) / n
    w = w + w.T
    np.fill_diagonal(w, 1 - w.sum(1))
    return w


@pytest.mark.parametrize("density", [0.05, 0.9])
@pytest.mark.parametrize("limbs", [2, 3])
def test_mixing_is_the_matrix_product_and_independent_of_columns_and_rows(density, limbs):
    generator = np.random.default_rng(1)
    n = 37
    w = random_matrix(generator, n, density)
    x = generator.normal(size=(n, 11)) * 10.0 ** generator.integers(-6, 3, size=(n, 1))
    exponent = int(np.frexp(np.abs(x).max())[1])
    longest = int((w != 0).sum(1).max())
    whole = mixer(scipy.sparse.csr_array(w), np.arange(n), longest, limbs)(x, exponent)
    bound = np.abs(x).max() * 2.0 ** (-40 if limbs == 2 else -52)
    assert np.abs(whole - w @ x).max() < bound
    order = generator.permutation(n)
    for rows in ([3], [5, 9, 30], list(range(20))):
        place = np.argsort(order)
        part = scipy.sparse.csr_array(w[rows][:, order])
        mixed = mixer(part, place[rows], longest, limbs)(x[order], exponent)
        assert np.array_equal(mixed, whole[rows])


def test_mixing_keeps_constants_and_the_mean_exactly():
    generator = np.random.default_rng(2)
    n = 50
    w = scipy.sparse.csr_array(random_matrix(generator, n, 0.4))
    mix = mixer(w, np.arange(n), n, 2)
    assert np.array_equal(
        mix(np.full((n, 2), 0.3, np.float32), 0), np.full((n, 2), np.float32(0.3))
    )
    x = generator.integers(-(2**20), 2**20, size=(n, 3)) / 2.0**20
    assert np.array_equal(
        mix(x, 1).sum(0) * 2**30, np.rint(mix(x, 1).sum(0) * 2**30)
    ) or np.allclose(mix(x, 1).sum(0), x.sum(0), rtol=0, atol=1e-11)


class Counted(Alone):
    """A process that counts its collectives."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def max(self, values):
        self.calls += 1
        return super().max(values)

    def begin_total(self, values):
        self.calls += 1
        return super().begin_total(values)


@settings(max_examples=60)
@given(st.data(), shapes, st.sampled_from([np.float32, np.float64]))
def test_a_sum_and_its_mass_are_those_of_two_sums_in_half_the_collectives(data, shape, dtype):
    rows = torch.from_numpy(data.draw(hnp.arrays(np.float32, shape, elements=finite)).astype(dtype))
    weights = data.draw(hnp.arrays(np.float64, shape[0], elements=st.floats(0, 1e3)))
    ids, ones = np.arange(len(rows)), torch.ones(len(rows), 1, dtype=torch.float64)
    together, apart = Counted(), Counted()
    total, mass = sum_and_mass(together, rows, weights, ids, len(rows))
    assert np.array_equal(total, weighted_sum(apart, rows, weights, ids, len(rows)))
    assert mass == weighted_sum(apart, ones, weights, ids, len(rows))[0]
    assert (together.calls, apart.calls) == (2, 4)


@pytest.mark.parametrize("which", ["row", "weight"])
def test_a_sum_with_its_mass_refuses_what_is_not_finite_by_name(which):
    rows, weights = torch.ones(3, 2), np.ones(3)
    if which == "row":
        rows[1, 1] = np.nan
    else:
        weights[1] = np.inf
    with pytest.raises(Diverged, match="client 8"):
        sum_and_mass(Alone(), rows, weights, np.array([7, 8, 9]), 3)
