"""LIBSVM and MovieLens files: the values of another reader come out, or one sentence."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from structures import EXAMPLES, a_sentence

from mpifed.errors import InputError
from mpifed.testing import load_dataset

DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
ODD = ["", "nan", "-inf", "1e999", "1_0", "١", "0x10", "x", "1,2", "9" * 5000, "-0", "\x00", "\x1b"]


def number_in(text: str) -> float | None:
    """A finite number in ASCII digits, or None."""
    found = float(text) if DECIMAL.fullmatch(text) else math.inf
    return found if math.isfinite(found) else None


# LIBSVM.

VALUES = st.one_of(st.sampled_from(ODD), st.floats(-1e9, 1e9).map(repr))
FEATURES = st.one_of(
    st.sampled_from([*ODD, "0", "-4", "2.0", "1e1", "2147483647", "2147483648", str(2**63)]),
    st.integers(1, 9).map(str),
)


@st.composite
def samples(draw) -> list[list[str]]:
    """Lines of a LIBSVM file as words: a valid file, one word of which may be replaced."""
    lines = []
    for _ in range(draw(st.integers(0, 4))):
        features = sorted(draw(st.sets(st.integers(1, 9), max_size=3)))
        words = [f"{k}:{draw(st.floats(-1e9, 1e9))!r}" for k in features]
        lines.append([draw(st.sampled_from(["-1", "1", "+1"])), *words])
    # A data set has two labels, and some samples.
    lines += [[label, "1:1"] for label in ("-1", "1") * 3]
    if lines and draw(st.booleans()):
        line = draw(st.sampled_from(lines))
        place = draw(st.integers(0, len(line) - 1))
        pair = st.tuples(FEATURES, VALUES).map(":".join)
        odd = draw(VALUES if place == 0 else st.one_of(pair, VALUES, st.just("1:2:3")))
        how = draw(st.sampled_from(["replace", "insert", "repeat", "swap"]))
        if how == "replace":
            line[place] = odd
        elif how == "insert":
            line.insert(place, odd)
        elif how == "repeat":
            line.append(line[place])
        else:
            line.reverse()
    return lines


def sample_in(words: list[str]) -> tuple[float, dict[int, float]] | None:
    """The label and the features of a line, or None if it is wrong; the format's own rules."""
    label, found, last = number_in(words[0]), {}, 0
    for word in words[1:]:
        feature, _, text = word.partition(":")
        value = number_in(text)
        if not re.fullmatch("[0-9]{1,10}", feature) or value is None:
            return None
        if not last < int(feature) < 2**31:
            return None
        last = int(feature)
        found[last] = value
    return None if label is None else (label, found)


@EXAMPLES
@given(lines=samples(), ends=st.sampled_from(["\n", "\r\n", " # 1:2 x\n\n"]))
def test_any_libsvm_file_has_the_values_of_another_reader_or_is_refused(lines, ends, tmp_path):
    path = tmp_path / "samples.txt"
    path.write_bytes("".join(" ".join(words) + ends for words in lines).encode())
    # A line that holds no word is no sample.
    lines = [words for line in lines if (words := " ".join(line).split())]
    expected = [sample_in(words) for words in lines]
    try:
        data = {"name": "libsvm", "path": str(path), "intercept": False}
        train = load_dataset(data, 1).load(np.arange(1), torch.float64).train
    except InputError as error:
        a_sentence(error, path)
        labels = {sample[0] for sample in expected if sample is not None}
        widest = max(k for sample in expected if sample is not None for k in (1, *sample[1]))
        # Or it is right, but of other labels, or of more features than memory takes.
        assert None in expected or labels != {-1, 1} or widest > 10**6
        return
    assert None not in expected
    assert train.y.tolist() == [int(label > 0) for label, _ in expected]
    width = max(k for _, features in expected for k in (1, *features))
    dense = [[features.get(k + 1, 0.0) for k in range(width)] for _, features in expected]
    assert train.x.tolist() == dense


def test_fields_that_are_missing_in_a_line_are_not_taken_from_another(tmp_path):
    path = tmp_path / "ratings.dat"
    for text in (b"1 5::2::3::4\n::2::3::4\n", b"1::2::3::4::5\n1::2::3\n"):
        path.write_bytes(text)
        try:
            table = load_dataset({"name": "ratings", "path": str(path), "users": 1, "movies": 1}, 1)
        except InputError as error:
            a_sentence(error, path)
        else:
            raise AssertionError(table)
