"""Federated HDF5 files: the values of another reader come out, or one sentence."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structures import EXAMPLES, a_sentence

from mpifed.errors import InputError
from mpifed.testing import load_dataset

SPLITS = ("train", "val", "test")
X_TYPES = {"uint8", "float32", "float64"}
WIDE = [0, -1, 2, 2**31, 2**62, 2**63 - 1, -(2**63)]
CHANGES = ["gone", "type", "shape", "entry", "longer", "empty", "odd", "stored"]
CHANGES += ["attribute", "everywhere"]


@st.composite
def whole_file(draw) -> dict[str, Any]:
    """A valid file: data sets by their place, attributes of the root and of x."""
    n_clients, width = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    task = draw(st.sampled_from(["classification", "multi_label", "regression", "unlabelled"]))
    n_classes = 0 if task == "unlabelled" else draw(st.integers(1, 3))
    x_type = draw(st.sampled_from(["u1", "<f4", ">f4", "<f8", ">f8"]))
    divisor = draw(st.sampled_from([1, 255])) if x_type == "u1" else 1
    places: dict[str, Any] = {}
    attributes: dict[str, Any] = {"": {"n_classes": n_classes, "source": "test", "seed": 7}}
    attributes[""] |= {"partition": "natural", "task": task}
    for split in SPLITS:
        least = int(split != "val")
        size = {"min_size": n_clients, "max_size": n_clients}
        ends = np.cumsum([0, *draw(st.lists(st.integers(least, 3), **size))])
        n = int(ends[-1])
        places[f"{split}/x"] = np.arange(n * width).reshape(n, width).astype(x_type)
        shape = (n,) if task == "classification" else (n, n_classes)
        most = {"classification": n_classes, "multi_label": 2}.get(task, 9)
        y_type = draw(st.sampled_from(["u1", ">i8", "i4"]))
        places[f"{split}/y"] = (np.arange(math.prod(shape)) % most).reshape(shape).astype(y_type)
        places[f"{split}/offsets"] = ends.astype(draw(st.sampled_from(["i8", ">i4", "u8"])))
        if divisor != 1:
            attributes[f"{split}/x"] = {"divisor": divisor}
    return {"places": places, "attributes": attributes}


@st.composite
def changed(draw) -> dict[str, Any]:
    """A file of which one or two parts may be missing, of another form or wrong."""
    file = draw(whole_file())
    places, attributes = file["places"], file["attributes"]
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(places)))
        array = places[name]
        how = draw(st.sampled_from(CHANGES))
        if how == "attribute":
            owner = attributes[draw(st.sampled_from(sorted(attributes)))]
            key = draw(st.sampled_from(sorted(owner)))
            odd = [0, -1, 1, 2**63 - 1, 2**64 - 1, 1.5, "x", "1", b"\xff", True, np.arange(2), None]
            value = draw(st.sampled_from([*odd, h5py.Empty("i8"), "\x1b[31m" * 200]))
            owner.pop(key) if value is None else owner.__setitem__(key, value)
        elif how == "everywhere":
            divisor = draw(st.sampled_from([None, 0, 16, 2**53, 2**63 - 1, 2**64 - 1]))
            for place in (f"{split}/x" for split in SPLITS):
                if divisor is not None:
                    attributes[place] = {"divisor": divisor}
                elif isinstance(places.get(place), np.ndarray):
                    places[place] = places[place][..., :0]
        elif how == "gone":
            del places[name]
        elif not isinstance(array, np.ndarray):
            continue
        elif how == "type":
            types = ["f8", ">f4", "f2", ">i2", "u8", "i8", "u1", "S3", "?", "c8"]
            places[name] = array.astype(draw(st.sampled_from(types)))
        elif how == "shape":
            places[name] = array[None] if draw(st.booleans()) else array.reshape(-1)
        elif how == "entry" and array.size and array.dtype.kind in "iuf":
            floating = array.dtype.kind == "f"
            odd = st.floats(width=32) if floating else st.sampled_from(WIDE)
            wide = array if floating else array.astype(np.int64)
            wide.reshape(-1)[draw(st.integers(0, array.size - 1))] = draw(odd)
            places[name] = wide
        elif how == "longer" and len(array):
            places[name] = np.concatenate([array, array[-1:]])
        elif how == "empty":
            places[name] = array[..., :0]
        elif how == "odd":
            others = [h5py.SoftLink("/nowhere"), h5py.SoftLink(f"/{name}"), h5py.Empty("f8")]
            others += [h5py.ExternalLink("other.h5", "/x"), "group", np.dtype("f8")]
            places[name] = draw(st.sampled_from(others))
        elif how == "stored" and array.size:
            places[name] = ("chunks", array)
    return file


def write(path: Path, file: dict[str, Any]) -> None:
    with h5py.File(path, "w") as made:
        for name, value in file["places"].items():
            if isinstance(value, str):
                made.create_group(name)
            elif isinstance(value, tuple):
                made.create_dataset(name, data=value[1], chunks=True, compression="gzip")
            else:
                made[name] = value
        for name, values in file["attributes"].items():
            if not name or isinstance(made.get(name), h5py.Dataset):
                for key, value in values.items():
                    made[name or "/"].attrs[key] = value


def count(value: Any) -> int | None:
    """A whole number as h5py gives it back: a bool becomes none."""
    right = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if right else None


def shards_in(file: dict[str, Any]) -> dict[str, tuple[list, list, list[int]]] | None:
    """x, y and offsets of each split, read without numpy's arithmetic; None where it is wrong."""
    root = file["attributes"][""]
    n_classes, seed = count(root.get("n_classes")), count(root.get("seed"))
    texts = [root.get(name) for name in ("source", "partition")]
    task = root.get("task", "classification")
    tasks = ("classification", "multi_label", "regression", "unlabelled")
    if n_classes is None or seed is None or not isinstance(task, str) or task not in tasks:
        return None
    if not all(isinstance(text, (str, bytes)) for text in texts):
        return None
    if n_classes != 0 if task == "unlabelled" else not 1 <= n_classes < 2**63:
        return None
    found, forms, n_clients = {}, set(), set()
    for split in SPLITS:
        x, y, ends = (plain(file["places"].get(f"{split}/{n}")) for n in ("x", "y", "offsets"))
        if x is None or y is None or ends is None or x.ndim < 1:
            return None
        divisor = count(file["attributes"].get(f"{split}/x", {}).get("divisor", 1))
        if x.dtype.name not in X_TYPES or divisor is None or not 1 <= divisor < 2**53:
            return None
        if ends.dtype.kind not in "iu" or ends.ndim != 1 or len(ends) < 2:
            return None
        rows = ends.tolist()
        if rows[0] != 0 or rows != sorted(rows) or not rows[-1] == len(x) == len(y):
            return None
        if not targets_fit(y, task, n_classes):
            return None
        sizes = [b - a for a, b in itertools.pairwise(rows)]
        if min(sizes) < 1 and (split == "train" or (split == "test" and any(sizes))):
            return None
        if not all(map(math.isfinite, x.reshape(-1).tolist())) or 0 in x.shape[1:]:
            return None
        forms.add((x.shape[1:], x.dtype.name, divisor))
        n_clients.add(len(sizes))
        inputs = (x.astype(np.float64) / divisor).tolist()
        found[split] = (inputs, y.astype(np.float64).tolist(), rows)
    return found if len(forms) == 1 and len(n_clients) == 1 else None


def targets_fit(y: np.ndarray, task: str, n_classes: int) -> bool:
    values = y.reshape(-1).tolist()
    if task == "classification":
        right = y.dtype.kind in "iu" and y.ndim == 1
        return right and all(0 <= value < n_classes for value in values)
    kinds = "biu" if task == "multi_label" else "biuf"
    if y.dtype.kind not in kinds or y.ndim != 2 or y.shape[1] != n_classes:
        return False
    if task == "multi_label":
        return all(value in (0, 1) for value in values)
    return all(map(math.isfinite, values))


def plain(value: Any) -> np.ndarray | None:
    value = value[1] if isinstance(value, tuple) else value
    return value if isinstance(value, np.ndarray) else None


@EXAMPLES
@given(file=changed())
def test_any_federated_file_has_the_shards_of_another_reader_or_is_refused(file, tmp_path):
    path = tmp_path / "data.h5"
    write(path, file)
    expected = shards_in(file)
    offsets = plain(file["places"].get("train/offsets"))
    n_clients = max(1, len(offsets) - 1) if offsets is not None and offsets.ndim else 1
    try:
        dataset = load_dataset(str(path), n_clients)
        shards = dataset.load(np.arange(n_clients), torch.float64)
    except InputError as error:
        a_sentence(error, path)
        assert expected is None
        return
    assert expected is not None
    for name, (x, y, rows) in expected.items():
        split = getattr(shards, name)
        assert split.x.tolist() == x and split.y.double().tolist() == y
        assert split.offsets.tolist() == rows


def small(path: Path, change: Callable[[h5py.File], None]) -> Path:
    """A file of one client that ``change`` has changed."""
    with h5py.File(path, "w") as file:
        file.attrs.update(n_classes=2, source="test", partition="natural", seed=7)
        for split in SPLITS:
            file[f"{split}/x"] = np.ones((2, 3), np.float32)
            file[f"{split}/y"] = np.array([0, 1])
            file[f"{split}/offsets"] = np.array([0, 2])
        change(file)
    return path


def declare(file: h5py.File) -> None:
    """10^12 samples that are not stored."""
    n = 10**12
    for name, shape, kind in (("x", (n, 3), "f4"), ("y", (n,), "i8")):
        del file[f"train/{name}"]
        file.create_dataset(f"train/{name}", shape, kind, chunks=(1000, *shape[1:]))
    file["train/offsets"][:] = [0, n]


@pytest.mark.parametrize("what", ["class_names", "client_names"])
def test_half_of_a_surrogate_pair_is_no_name(tmp_path, what):
    names = json.dumps(["a\ud800", "b"][: 1 + (what == "class_names")]).encode()
    path = small(
        tmp_path / "d.h5", lambda f: f.create_dataset(what, data=np.frombuffer(names, "u1"))
    )
    with pytest.raises(InputError, match=rf"/{what}.*'a\\ud800'.*UTF-8") as refused:
        load_dataset(str(path), 1)
    a_sentence(refused.value, path)
