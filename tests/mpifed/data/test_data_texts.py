"""Shakespeare as plain text: speeches, windows, and what is refused."""

from __future__ import annotations

import gzip
import itertools
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import all_rows, dataset_of, texts_of_clients

from mpifed.dataset import Dataset
from mpifed.errors import InputError

PRINTABLE = string.printable
LEAF = f"\n !\"&'(),-.{string.digits}:;>?{string.ascii_uppercase}[]{string.ascii_lowercase}}}"

HEADED = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak, speak.

First Citizen:
Resolved thus:
you  are all.

Messenger:

All:
Resolved.
"""

GUTENBERG = """Project Gutenberg's Complete Works

1603

ALL'S WELL THAT ENDS WELL

by William Shakespeare


Dramatis Personae

  KING OF FRANCE
  BERTRAM, Count of Rousillon

ACT I. SCENE 1.
Rousillon. The COUNT'S palace

Enter BERTRAM and LAFEU

  COUNTESS. In delivering my son from me, I bury a second husband.
  Bertram. And I in going, madam, weep o'er my father's
    death anew; but I must
    attend his Majesty's command.
                                                      Exit
  COUNTESS. What hope is there?
<<THIS ELECTRONIC VERSION IS COPYRIGHT>>
    not of the speech

1593

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1. A hall

AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.
DUKE. Merchant of Syracuse, plead no more;
I am not partial.

COUNTESS. Another one of this name.
"""


def texts_in(path: Path, roles: int, **options) -> list[str]:
    """The texts of the roles of a play, put together from their windows of one character."""
    options = {"sequence_length": 1, "choose": "first", "min_samples": 2, **options}
    return texts_of_clients(dataset_of("shakespeare", roles, path=str(path), **options))


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_speeches_under_heads(tmp_path: Path):
    assert texts_in(written(tmp_path / "play.txt", HEADED), 2) == [
        "Before we proceed any further, hear me speak. Resolved thus: you are all.",
        "Speak, speak. Resolved.",
    ]


def test_indented_speeches_by_play(tmp_path: Path):
    assert texts_in(written(tmp_path / "play.txt", GUTENBERG), 5) == [
        "In delivering my son from me, I bury a second husband. What hope is there?",
        # A stage direction, which is indented too, belongs to the speech as in LEAF and TFF.
        "And I in going, madam, weep o'er my father's death anew; but I must attend his "
        "Majesty's command. Exit",
        "Proceed, Solinus, to procure my fall, And by the doom of death end woes and all.",
        "Merchant of Syracuse, plead no more; I am not partial.",
        "Another one of this name.",
    ]


words = st.text("abcdefgh,.'! -", min_size=1, max_size=40).filter(lambda line: line.strip())
names = st.text("ABCDEFGHIJKLM", min_size=2, max_size=9).filter(lambda n: not n.startswith("ACT"))
plays = st.lists(st.tuples(names, st.lists(words, min_size=1, max_size=4)), min_size=1, max_size=8)


@given(plays)
def test_either_layout_gives_back_what_was_written(tmp_path_factory, play):
    path = tmp_path_factory.mktemp("play") / "play.txt"
    spoken = [(role, ["a word before them", *lines]) for role, lines in play]
    headed = "\n\n".join(f"{role}:\n" + "\n".join(lines) for role, lines in spoken)
    indented = "\n".join(f"  {role}. " + "\n    ".join(lines) for role, lines in spoken)
    expected: dict[str, str] = {}
    for role, lines in spoken:
        expected[role] = " ".join([expected.get(role, ""), *lines])
    texts = [" ".join(text.split()) for text in expected.values()]
    for text in (headed, indented):
        assert texts_in(written(path, text), len(texts)) == texts


@given(st.sampled_from([("printable", PRINTABLE), ("leaf", LEAF)]), st.data())
def test_codes_are_places_in_the_vocabulary(tmp_path_factory, named, data):
    name, vocabulary = named
    letters = [letter for letter in vocabulary if not letter.isspace()]
    text = data.draw(st.text(letters, min_size=20, max_size=60))
    path = written(tmp_path_factory.mktemp("play") / "play.txt", f"R:\n{text}")
    x, y = all_rows(shakespeare(path, 1, vocabulary=name, sequence_length=1), torch.uint8)
    codes = [vocabulary.index(letter) for letter in text]
    ends = [0, 3 * len(text) // 5, 4 * len(text) // 5, len(text)]
    parts = list(itertools.pairwise(ends))
    assert x[:, 0].tolist() == [code for a, b in parts for code in codes[a : b - 1]]
    assert y.tolist() == [code for a, b in parts for code in codes[a + 1 : b]]


def play_of(lengths: list[int], seed: int = 0) -> str:
    """One speech of each role R0, R1, ... with so many characters."""
    random = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnop"))
    said = ["".join(random.choice(letters, length)) for length in lengths]
    return "\n\n".join(f"R{i}:\n{line}" for i, line in enumerate(said))


def shakespeare(path: Path, n_clients: int, **options) -> Dataset:
    options = {"sequence_length": 5, **options}
    return dataset_of("shakespeare", n_clients, path=str(path), **options)


@given(st.lists(st.integers(31, 90), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 4))
def test_windows_are_all_of_a_part_and_none_beyond(tmp_path_factory, lengths, length, stride):
    path = tmp_path_factory.mktemp("play") / "play.txt"
    path.write_text(play_of(lengths))
    options = {"sequence_length": length, "stride": stride, "min_samples": 2}
    roles = [n for n in lengths if min(4 * n // 5 - 3 * n // 5, n - 4 * n // 5) > length]
    if not roles:
        with pytest.raises(InputError, match=r"clients.*\b1\b.*\b0 sources"):
            shakespeare(path, 1, **options)
        return
    dataset = shakespeare(path, len(roles), **options)
    shards = dataset.load(np.arange(len(roles)), torch.uint8)
    spoken = [speech.partition("\n")[2] for speech in play_of(lengths).split("\n\n")]
    texts = [text for text in spoken if len(text) in roles]
    printable = PRINTABLE
    for client, text in enumerate(texts):
        ends = [0, 3 * len(text) // 5, 4 * len(text) // 5, len(text)]
        for which, split in enumerate((shards.train, shards.val, shards.test)):
            part = text[ends[which] : ends[which + 1]]
            expected = [
                (part[i : i + length], part[i + length])
                for i in range(0, len(part) - length, stride)
            ]
            rows = slice(split.offsets[client], split.offsets[client + 1])
            x = ["".join(printable[c] for c in row) for row in split.x[rows].tolist()]
            y = [printable[c] for c in split.y[rows].tolist()]
            assert list(zip(x, y, strict=True)) == expected


@given(st.floats(0.3, 1), st.integers(1, 3), st.integers(0, 3))
def test_a_fraction_of_all_windows_is_drawn_by_the_seed(tmp_path_factory, fraction, stride, seed):
    path = tmp_path_factory.mktemp("play") / "play.txt"
    path.write_text(play_of([900, 1200, 1500]))
    options = {"stride": stride, "min_samples": 2, "choose": "first", "seed": seed}
    whole, part = (shakespeare(path, 3, fraction=share, **options) for share in (1, fraction))
    about = part.description
    count = sum(own.sum() for own in (about.n_train, about.n_val, about.n_test))
    total = len(all_rows(whole)[0])
    assert count == np.floor(fraction * total + 0.5)
    for name in ("train", "val", "test"):
        some, every = (getattr(d.load(np.arange(3), torch.uint8), name) for d in (part, whole))
        for client in range(3):
            taken, known = (
                [(*x, y) for x, y in zip(s.x[rows].tolist(), s.y[rows].tolist(), strict=True)]
                for s in (some, every)
                for rows in [slice(s.offsets[client], s.offsets[client + 1])]
            )
            remaining = iter(known)
            assert all(window in remaining for window in taken)
    train = part.load(np.arange(3), torch.uint8).train
    assert np.array_equal(about.label_counts, np.bincount(train.y, minlength=100))
    assert shakespeare(path, 3, fraction=fraction, **options).description.n_train.tolist() == (
        about.n_train.tolist()
    )


def test_the_description_of_a_text(tmp_path: Path):
    path = tmp_path / "play.txt.gz"
    path.write_bytes(gzip.compress(play_of([200, 300, 60]).encode()))
    dataset = shakespeare(path, 2, choose="largest")
    about = dataset.description
    assert (about.source, about.input_shape, about.n_classes) == ("shakespeare-play", (5,), 100)
    assert about.n_train.tolist() == [120 - 5, 180 - 5]
    assert "".join(about.class_names) == PRINTABLE
    train = dataset.load(np.arange(2), torch.float32).train
    assert train.x.dtype == torch.float32 and train.x.max() < 100
    assert np.array_equal(about.label_counts, np.bincount(train.y.numpy(), minlength=100))
    assert shakespeare(path, 2, vocabulary="leaf").description.n_classes == 80
    part = dataset.load(np.array([1]), torch.float32).train
    assert torch.equal(part.x, train.x[train.offsets[1] :])


def test_the_next_character_at_every_position(tmp_path: Path):
    path = tmp_path / "play.txt"
    path.write_text(play_of([200, 300]))
    options = {"sequence_length": 7, "stride": 3}
    every, last = (shakespeare(path, 2, targets=t, **options) for t in ("every", "next"))
    about = every.description
    assert (about.task, about.target_shape, about.output_shape) == ("sequence", (7,), (7, 100))
    for name in ("train", "val", "test"):
        one, other = (getattr(d.load(np.arange(2), torch.float32), name) for d in (every, last))
        assert torch.equal(one.x, other.x) and one.y.shape == (len(one.x), 7)
        assert torch.equal(one.y[:, -1], other.y)
        assert torch.equal(one.y[:, :-1], one.x[:, 1:].long())
    train = every.load(np.arange(2), torch.uint8).train
    assert np.array_equal(about.label_counts, np.bincount(train.y.flatten(), minlength=100))
    found = last.load(np.arange(2), torch.uint8).train.y
    assert np.array_equal(last.description.label_counts, np.bincount(found, minlength=100))


def test_characters_beyond_the_vocabulary_are_left_out(tmp_path: Path):
    path = tmp_path / "play.txt"
    path.write_text("R:\n" + "naïve “café” " * 20, encoding="utf-8")
    x, _ = all_rows(shakespeare(path, 1), torch.uint8)
    assert "".join(PRINTABLE[c] for c in x[0]) == "nave "
