"""Facts of real published files; conftest.py leaves this out where they are not at hand."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
import torch
from loading import all_rows, dataset_of, labels_by_client, texts_of_clients
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
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    assert len(paragraphs) == 7222
    spoken: dict[str, str] = {}
    for head, _, lines in (paragraph.partition("\n") for paragraph in paragraphs):
        spoken[head.upper()] = f"{spoken.get(head.upper(), '')} {lines}"
    assert len(spoken) == 303
    texts = [" ".join(lines.split()) for lines in spoken.values()]
    n = np.array(list(map(len, texts)))
    shortest = np.min([3 * n // 5, 4 * n // 5 - 3 * n // 5, n - 4 * n // 5], axis=0)
    used = [text for text, part in zip(texts, shortest, strict=True) if part > 1]
    options = {"sequence_length": 1, "choose": "first", "min_samples": 2}
    dataset = dataset_of(
        "shakespeare", len(used), path=str(REAL / "shakespeare" / "input.txt"), **options
    )
    # All but heads, line ends and repeated spaces is somebody's.
    assert texts_of_clients(dataset) == used
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
