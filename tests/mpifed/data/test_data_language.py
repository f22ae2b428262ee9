"""Texts as tokens: who wrote them, windows, byte pairs, and the federated file."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pyarrow
import pytest
import torch
from loading import dataset_of
from pyarrow import parquet

from mpifed.errors import InputError
from mpifed.testing import run_command

ANN, BOB = "to be, or not to be: that is the question", "in Paris, where she lived for years"
NAMES = ("train", "val", "test")


def of_files(folder):
    (folder / "ann.txt").write_text(ANN)
    (folder / "bob.txt").write_text(BOB)
    return {"raw": str(folder)}


def of_roles(folder):
    speeches = [f"ANN:\n{ANN[:9]}", f"Bob:\n{BOB}", f"ANN:\n{ANN[10:]}", ""]
    (folder / "play.txt").write_text("\n\n".join(speeches))
    return {"path": str(folder / "play.txt"), "layout": "roles"}


def of_parquet(folder):
    table = {"said": [ANN, BOB[:8], BOB[9:]], "who": ["ann", "bob", "bob"]}
    parquet.write_table(pyarrow.table(table), folder / "train-0.parquet")
    return {"raw": str(folder), "features": "said", "client": "who"}


def of_leaf(folder):
    data = {  # windows of nine characters, and the one after each
        user: {"x": [text[i : i + 9] for i in range(len(text) - 9)], "y": [*text[9:]]}
        for user, text in (("ann", ANN), ("bob", BOB))
    }
    (folder / "all.json").write_text(json.dumps({"users": [*data], "user_data": data}))
    return {"raw": str(folder)}


@pytest.mark.parametrize("write", [of_files, of_roles, of_parquet, of_leaf])
def test_clients_have_their_own_texts_in_windows(write, tmp_path):
    dataset = dataset_of("text", 2, **write(tmp_path), sequence_length=4)
    shards = dataset.load(np.arange(2), torch.float32)
    assert dataset.description.task == "sequence" and dataset.description.n_classes == 256
    bob = f"{BOB[:8]}\n{BOB[9:]}" if write is of_parquet else BOB
    for client, text in enumerate([ANN.encode(), bob.encode()]):
        parts = [getattr(shards, name).of_client(client) for name in NAMES]
        x, y = (torch.cat([getattr(p, n) for p in parts]).flatten().tolist() for n in "xy")
        n = (len(text) - 1) // 4 * 4
        assert bytes(map(int, x)) == text[:n] and bytes(y) == text[1 : n + 1]


@pytest.mark.slow  # scripts/test --all installs tokenizers before these
def test_pairs_of_bytes_become_tokens_in_a_federated_file(tmp_path):
    pytest.importorskip("tokenizers")
    options = {**of_files(tmp_path), "tokenizer": "bpe", "vocabulary": 264, "sequence_length": 4}
    made, path = dataset_of("text", 2, **options), tmp_path / "tokens.h5"
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    assert run_command(["data", "text", *words, "--clients", "2", "--output", str(path)]) == 0
    with h5py.File(path) as file:
        assert {file[f"train/{name}"].dtype for name in "xy"} == {np.dtype("uint16")}
    read = dataset_of("federated", 2, path=str(path))
    assert read.tokens_in == "uint16" and read.description.n_classes == 264
    two = [each.load(np.arange(2), torch.float64) for each in (made, read)]
    for a, b in (tuple(getattr(shards, name) for shards in two) for name in NAMES):
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and a.x.dtype == torch.float64
        assert np.array_equal(a.offsets, b.offsets) and a.x.max() > 255


def test_parquet_files_without_rows_are_refused(tmp_path):
    options = of_parquet(tmp_path)
    none = pyarrow.array([], pyarrow.string())
    parquet.write_table(pyarrow.table({"said": none, "who": none}), tmp_path / "train-0.parquet")
    with pytest.raises(InputError, match=r"\b5 tokens.*data\.sequence_length"):
        dataset_of("text", 1, **options, sequence_length=4)
