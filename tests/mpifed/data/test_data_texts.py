"""Shakespeare as plain text: speeches, windows, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import all_rows

from mpifed.data.sources.shakespeare import (
    UNKNOWN,
    VOCABULARIES,
    Shakespeare,
    codes,
    speeches,
    texts_of_roles,
)
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone

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


def test_speeches_under_heads():
    found = speeches(HEADED)
    roles = ["FIRST CITIZEN", "ALL", "FIRST CITIZEN", "MESSENGER", "ALL"]
    assert [speech.role for speech in found] == roles
    assert found[2].lines == ("Resolved thus:", "you  are all.") and found[3].lines == ()
    texts = texts_of_roles(found)
    assert texts[0, "ALL"] == "Speak, speak. Resolved."
    assert texts[0, "FIRST CITIZEN"].endswith("speak. Resolved thus: you are all.")


def test_indented_speeches_by_play():
    found = speeches(GUTENBERG)
    assert [(speech.play, speech.role) for speech in found] == [
        (1, "COUNTESS"), (1, "BERTRAM"), (1, "COUNTESS"),
        (2, "AEGEON"), (2, "DUKE"), (2, "COUNTESS"),
    ]  # fmt: skip
    texts = texts_of_roles(found)
    # A stage direction, which is indented too, belongs to the speech as in LEAF and TFF.
    assert texts[1, "BERTRAM"] == (
        "And I in going, madam, weep o'er my father's death anew; but I must attend his "
        "Majesty's command. Exit"
    )
    assert texts[1, "COUNTESS"].endswith("husband. What hope is there?")
    assert texts[2, "AEGEON"].endswith("fall, And by the doom of death end woes and all.")
    assert texts[2, "COUNTESS"] == "Another one of this name."


words = st.text("abcdefgh,.'! -", min_size=1, max_size=40).filter(lambda line: line.strip())
names = st.text("ABCDEFGHIJKLM", min_size=2, max_size=9).filter(lambda n: not n.startswith("ACT"))
plays = st.lists(st.tuples(names, st.lists(words, min_size=1, max_size=4)), min_size=1, max_size=8)


@given(plays)
def test_either_layout_gives_back_what_was_written(written):
    headed = "\n\n".join(f"{role}:\n" + "\n".join(lines) for role, lines in written)
    indented = "\n".join(f"  {role}. " + "\n    ".join(lines) for role, lines in written)
    expected = [(role, tuple(line.strip() for line in lines)) for role, lines in written]
    for text in (headed, indented):
        assert [(speech.role, speech.lines) for speech in speeches(text)] == expected


@given(st.text(max_size=30), st.sampled_from(list(VOCABULARIES.values())))
def test_codes_are_places_in_the_vocabulary(text, vocabulary):
    expected = [vocabulary.index(c) if c in vocabulary else UNKNOWN for c in text]
    assert codes(text, vocabulary).tolist() == expected


def play_of(lengths: list[int], seed: int = 0) -> str:
    """One speech of each role R0, R1, ... with so many characters."""
    random = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnop"))
    said = ["".join(random.choice(letters, length)) for length in lengths]
    return "\n\n".join(f"R{i}:\n{line}" for i, line in enumerate(said))


def shakespeare(path: Path, n_clients: int, **options) -> Shakespeare:
    options = {"sequence_length": 5, **options}
    return Shakespeare(n_clients, 0, Alone(), path=str(path), **options)


@given(st.lists(st.integers(31, 90), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 4))
def test_windows_are_all_of_a_part_and_none_beyond(tmp_path_factory, lengths, length, stride):
    path = tmp_path_factory.mktemp("play") / "play.txt"
    path.write_text(play_of(lengths))
    options = {"sequence_length": length, "stride": stride, "min_samples": 2}
    roles = [n for n in lengths if min(4 * n // 5 - 3 * n // 5, n - 4 * n // 5) > length]
    if not roles:
        with pytest.raises(InputError, match="only 0 sources"):
            shakespeare(path, 1, **options)
        return
    dataset = shakespeare(path, len(roles), **options)
    shards = dataset.load(np.arange(len(roles)), torch.uint8)
    texts = [t for t in texts_of_roles(speeches(play_of(lengths))).values() if len(t) in roles]
    printable = VOCABULARIES["printable"]
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
    assert "".join(about.class_names) == VOCABULARIES["printable"]
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
    assert "".join(VOCABULARIES["printable"][c] for c in x[0]) == "nave "


BAD = {
    "no play": ("only a line of text", "no role speaks"),
    "empty": ("", "no role speaks"),
    "short": (play_of([20, 25]), "clients is 1, but only 0 sources .* at least 5 samples"),
}
