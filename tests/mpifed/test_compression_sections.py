"""Sections that ask for compressors: what is refused, spelled out, listed; a user's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.config.configuration import resolve, to_mapping
from mpifed.errors import InputError
from mpifed.exchange.compression import Compressor, build
from mpifed.federation.clients import Draws


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"name": "rand_k", "k": 0}, "compression.k is 0"),
        ({"name": "bernoulli", "inner": {"name": "rand_k", "kk": 3}}, "compression.inner.kk"),
        ({"name": "composition", "inner": "quantise"}, "sends every coordinate"),
        ({"name": "composition", "outer": "bernoulli"}, "gate goes around"),
        (
            {"name": "composition", "outer": "test_compression_sections:Sign"},
            "is biased",
        ),
    ],
)
def test_senseless_sections_are_refused_with_the_reason(section, words):
    with pytest.raises(InputError, match=words):
        build(section)


def test_more_coordinates_than_there_are_is_refused():
    compressor = build({"name": "rand_k", "k": 11})
    for use in (compressor.omega, compressor.contraction):
        with pytest.raises(InputError, match=r"k is 11; it must be at most .* 10"):
            use(10)
    with pytest.raises(InputError):
        compressor(torch.ones(1, 10), Draws(0, 1), np.array([0]))


class Sign(Compressor):
    """The signs times the mean magnitude; a user's own, biased."""

    unbiased = False

    def omega(self, size):
        raise ValueError("biased")

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
    section = {"name": "test_compression_sections:Sign"}
    assert build(section)(row, Draws(0, 1), np.array([0])).tolist() == [[2.0, -2.0]]
    gated = build({"name": "bernoulli", "p": 0.5, "inner": section})
    assert not gated.unbiased and gated.contraction(2) == 0.25


def test_configurations_spell_out_the_options_inside():
    configuration = resolve({"compression": {"name": "composition", "inner": {"k": 5}}})
    section = to_mapping(configuration)["compression"]
    assert section == {
        "name": "composition",
        "outer": {"name": "quantise", "bits": 8, "levels": None, "block": None, "norm": "max"},
        "inner": {"name": "rand_k", "k": 5, "fraction": 0.1, "indices": "seed"},
    }
    assert resolve({"compression": section}) == configuration
    with pytest.raises(InputError, match=r"compression\.inner\.outer\.bits is 99"):
        inner = {"name": "composition", "outer": {"name": "quantise", "bits": 99}}
        resolve({"compression": {"name": "bernoulli", "inner": inner}})
