"""Facts of real published files; conftest.py leaves this out where they are not at hand."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
import torch
from loading import all_rows, dataset_of, labels_by_client
from published import REAL


def test_cifar_10():
    _, y = all_rows(dataset := dataset_of("cifar10", 10, raw=str(REAL / "cifar10")), torch.float32)
    assert np.bincount(y).tolist() == [400] * 10
    x, _ = all_rows(dataset, torch.float32)
    assert x.mean((0, 2, 3)) == pytest.approx([0.49, 0.48, 0.45], abs=0.005)


def test_cifar_100():
    dataset = dataset_of("cifar100", 10, raw=str(REAL / "cifar100"))
    _, y = all_rows(dataset, torch.float32)
    assert np.bincount(y).tolist() == [40] * 100
    assert {len(labels) for labels in labels_by_client(dataset)} == {400}


def test_shakespeare():
    with lzma.open(REAL / "shakespeare" / "input.txt.xz", "rt", encoding="utf-8") as file:
        text = file.read()
    found = speeches(text)
    assert len(found) == 7222
    assert {speech.play for speech in found} == {0}
    roles = texts_of_roles(found)
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    assert len(paragraphs) == 7222
    assert len(roles) == len({part.strip().split("\n")[0].upper() for part in paragraphs}) == 303
    heads = sum(len(speech.role) + 1 for speech in found)
    # All but heads, line ends and repeated spaces is somebody's.
    letters = sum(not character.isspace() for character in text)
    said = sum(not character.isspace() for own in roles.values() for character in own)
    blanks = sum(speech.role.count(" ") for speech in found)
    assert said == letters - (heads - blanks)
    dataset = dataset_of("shakespeare", 100, path=str(REAL / "shakespeare" / "input.txt"))
    assert dataset.description.n_train.sum() == dataset.description.label_counts.sum()


@pytest.mark.slow
def test_omniglot():
    folder = REAL / "omniglot"
    sizes = {}
    for number, count in ((1, 2720), (2, 3120)):
        dataset = dataset_of(
            "omniglot", 20, raw=str(folder / f"images_background_small{number}.zip")
        )
        sizes[number] = sum(len(labels) for labels in labels_by_client(dataset))
        assert dataset.description.input_shape == (105, 105) and sizes[number] == count
    both = dataset_of("omniglot", 40, raw=str(folder), size=28)
    assert {len(labels) for labels in labels_by_client(both)} == {136, 106}
    assert both.description.n_classes == 242


@pytest.mark.slow
def test_mnist():
    x, y = all_rows(
        dataset_of("mnist", 10, raw=str(REAL / "mnist"), partition="iid"), torch.float32
    )
    assert x.shape == (70000, 28, 28) and np.bincount(y).min() == 6313
