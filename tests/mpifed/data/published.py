"""Small files in exactly the published formats, and where real ones are."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np

REAL = Path(os.environ.get("MPIFED_DATA", Path(__file__).parents[3] / "../shared/data"))


def text_2(value: str) -> bytes:
    """A text as Python 2 pickled it: SHORT_BINSTRING."""
    return b"U" + bytes([len(value)]) + value.encode("latin1")


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)


def array_2(values: np.ndarray) -> bytes:
    """An array of bytes as numpy 1 under Python 2 pickled it, protocol 2."""
    content = values.tobytes()
    shape = b"(" + b"".join(map(number, values.shape)) + b"t"
    kind = b"cnumpy\ndtype\n" + text_2("u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + text_2("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text_2("b")
    made += b"\x87R"
    stored = b"T" + struct.pack("<i", len(content)) + content
    return made + b"(K\x01" + shape + kind + b"\x89" + stored + b"tb"


def pickle_2(values: dict[str, Any]) -> bytes:
    """A dictionary of texts, lists of numbers and texts, and arrays, as Python 2 pickled it."""
    parts = [b"\x80\x02}("]
    for key, value in values.items():
        parts.append(text_2(key))
        if isinstance(value, np.ndarray):
            parts.append(array_2(value))
        elif isinstance(value, str):
            parts.append(text_2(value))
        else:
            items = [text_2(v) if isinstance(v, str) else number(v) for v in value]
            parts.append(b"](" + b"".join(items) + b"e")
    return b"".join([*parts, b"u."])


def pickle_3(values: dict[str, Any]) -> bytes:
    return pickle.dumps(values, protocol=2)


def write_cifar_10(folder: Path, per_batch: int = 40, dump=pickle_2, test: bool = True) -> Any:
    """Five batches, the test batch and the names of labels; returns pictures and labels."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), *(["test_batch"] if test else [])]
    pictures, labels = [], []
    for name in names:
        x = random.integers(0, 256, (per_batch, 3072), np.uint8)
        y = random.permutation(np.arange(per_batch) % 10).tolist()
        files = [f"{i}.png" for i in range(per_batch)]
        about = f"batch {name}"
        values = {"batch_label": about, "labels": y, "data": x, "filenames": files}
        (folder / name).write_bytes(dump(values))
        pictures.append(x)
        labels += y
    words = ["airplane", "automobile", "bird", "cat", "deer"]
    words += ["dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(dump({"label_names": words}))
    return np.concatenate(pictures).reshape(-1, 3, 32, 32), np.array(labels)


def write_cifar_100(folder: Path, n_train: int = 400, n_test: int = 100, dump=pickle_2) -> Any:
    """The files train, test and meta; returns pictures, fine and coarse labels."""
    random = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    pictures, fine = [], []
    for name, count in (("train", n_train), ("test", n_test)):
        x = random.integers(0, 256, (count, 3072), np.uint8)
        y = random.permutation(np.arange(count) % 100)
        values = {
            "filenames": [f"{i}.png" for i in range(count)],
            "batch_label": name,
            "fine_labels": y.tolist(),
            "coarse_labels": (y // 5).tolist(),
            "data": x,
        }
        (folder / name).write_bytes(dump(values))
        pictures.append(x)
        fine.append(y)
    values = {"fine_label_names": [f"fine {i}" for i in range(100)]}
    values["coarse_label_names"] = [f"coarse {i}" for i in range(20)]
    (folder / "meta").write_bytes(dump(values))
    labels = np.concatenate(fine)
    return np.concatenate(pictures).reshape(-1, 3, 32, 32), labels, labels // 5


def idx_bytes(values: np.ndarray) -> bytes:
    head = np.array([0x800 + values.ndim, *values.shape], ">u4")
    return head.tobytes() + values.astype(np.uint8).tobytes()


def emnist_files(variant: str, n_classes: int, counts=(200, 60), first: int = 0):
    """Names and bytes of the four files of a variant, and upright images and labels."""
    random = np.random.default_rng(2)
    files, images, labels = {}, [], []
    for part, count in zip(("train", "test"), counts, strict=True):
        x = random.integers(0, 256, (count, 28, 28), np.uint8)
        y = np.arange(count) % n_classes
        stem = f"emnist-{variant}-{part}"
        stored = np.ascontiguousarray(x.transpose(0, 2, 1))
        files[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(stored))
        files[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(y + first))
        images.append(x)
        labels.append(y)
    return files, np.concatenate(images), np.concatenate(labels)
