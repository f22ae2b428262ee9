"""Names of labels, and how often each is trained on, pass through a federated file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from edits import put
from published import write_cifar_10
from test_data_texts import play_of

from mpifed.data.__main__ import main
from mpifed.data.federated_file import FederatedFile, read_contents
from mpifed.data.sources.shakespeare import Shakespeare
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone


@pytest.fixture
def text(tmp_path: Path) -> tuple[Path, Path]:
    """A play, and a federated file of it."""
    (tmp_path / "play.txt").write_text(play_of([300, 200]))
    output = tmp_path / "play.h5"
    words = ["shakespeare", "--path", str(tmp_path / "play.txt"), "--sequence-length", "5"]
    assert main([*words, "--output", str(output), "--clients", "2"]) == 0
    return tmp_path / "play.txt", output


def test_characters_and_their_counts_are_in_the_file(text):
    play, output = text
    made = Shakespeare(2, 0, Alone(), path=str(play), sequence_length=5)
    found = FederatedFile(2, 0, Alone(), path=str(output))
    assert found.description.class_names == made.description.class_names
    assert np.array_equal(found.description.label_counts, made.description.label_counts)
    assert found.is_uint8 and read_contents(output).stored == "uint8"
    one, other = (d.load(np.arange(2), torch.float32).train for d in (made, found))
    assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


def test_names_of_pictures_are_in_the_file(tmp_path: Path):
    write_cifar_10(tmp_path / "raw")
    output = tmp_path / "cifar.h5"
    assert (
        main(["cifar10", "--raw", str(tmp_path / "raw"), "--output", str(output), "--clients", "3"])
        == 0
    )
    about = read_contents(output).description
    assert about.class_names[9] == "truck" and about.label_counts is None


BAD = {
    "few names": (put("class_names", np.frombuffer(b'["a"]', np.uint8)), "not a list of 100 texts"),
    "few counts": (put("label_counts", np.zeros(99, int)), "is not 100 whole numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_other_names_and_counts_are_refused(text, case: str):
    damage, message = BAD[case]
    damage(text[1])
    with pytest.raises(InputError, match=message):
        read_contents(text[1])


def test_files_without_them_are_read_as_ever(text):
    with h5py.File(text[1], "r+") as file:
        del file["class_names"], file["label_counts"]
    about = read_contents(text[1]).description
    assert about.class_names == () and about.label_counts is None
