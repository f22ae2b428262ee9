"""Long messages: what a user contributed is shortened, and the sentence around it is whole."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.__main__ import main
from topologies.inputs import CUT, LONGEST, one_line

BEFORE = "the value of data.path, which isn't what it must be, is"
AFTER = (
    "but there is no such file, plain or with .gz, .xz or .bz2; it must be a file that can be "
    "read, and the closest one here isn't 'digits' but 'a9a'"
)

VALUES = {
    "a word": "x" * 600,
    "a very long word": "x" * 10**6,
    "a path": "/data/of/someone" * 60,
    "a quoted path with spaces": "'" + "/data of/some one" * 60 + "'",
    "a long text in double quotes": '"' + "it's a text " * 10**4 + 'of words"',
    "a list of numbers": str(list(range(400))),
    "a very long list": str(list(range(10**5))),
    "names": ", ".join(f"experiment-{number}" for number in range(60)),
    "two paths": "/data/of/someone" * 30 + " or " + "/data/of/another" * 30,
    "a path with spaces": "/data of/some one" * 60,
    "nothing that prints": "\x1b" * 1000,
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_sentence_around_a_long_value_is_whole(kind):
    value = VALUES[kind]
    line = one_line(f"{BEFORE} {value}, {AFTER}")
    assert len(line) <= LONGEST and line.isprintable()
    assert line.startswith(BEFORE + " ")
    assert line.endswith(AFTER)
    shown = line[len(BEFORE) : -len(AFTER)].strip()
    assert CUT in shown or re.search(r"\[\d+ more\]", shown)
    assert shown[0] == value[0] or not value[0].isprintable()
    assert len(line) > LONGEST - 20  # no more is left out than has to be


def test_a_path_is_shown_from_its_root_to_its_name():
    path = "/scratch/" + "deep/" * 200 + "config.yaml"
    line = one_line(f"{path} cannot be read: No such file or directory")
    assert line.startswith("/scratch/deep/")
    assert line.endswith("/config.yaml cannot be read: No such file or directory")


def test_a_list_says_how_many_it_does_not_show():
    names = [f"component-{number}" for number in range(99)]
    line = one_line(f"algorithm.name is 'x'; allowed: {', '.join(names)}, or a path")
    (hidden,) = map(int, re.findall(r"\[(\d+) more\]", line))
    shown = re.findall(r"component-\d+", line)
    assert shown == names[: (99 - hidden + 1) // 2] + names[-((99 - hidden) // 2) :]
    assert line.endswith("component-98, or a path")
    # Of a list that is longer than is looked at nobody counts.
    assert "more]" not in one_line(f"allowed: {', '.join(names * 99)}")


@given(st.lists(st.text("abc", min_size=1, max_size=30), min_size=40))
def test_no_word_is_cut_that_is_not_long(words):
    text = " ".join(words)
    line = one_line(text)
    assert len(line) <= LONGEST
    begin, _, end = line.partition(f" {CUT} ")
    assert text.startswith(begin) and text.endswith(end)
    assert {*line.split()} <= {*words, CUT}


@given(st.text(min_size=1), st.integers(0, 2000), st.integers(20, 700))
def test_a_line_is_never_too_long(text, times, longest):
    line = one_line(text * times, longest)
    assert line.isprintable() and len(line) <= longest
    assert one_line(line, longest) == line


@pytest.mark.parametrize("words", [["show", "ring:n=" + "9" * 900]])
def test_the_command_keeps_the_end_of_its_messages(words, capsys):
    assert main(words) == 2
    line = capsys.readouterr().err
    assert len(line) <= LONGEST + 1 and CUT in line
    assert line.rstrip()[-1] != "."
