"""The file of samples with tags: the values of another reader come out, or one sentence."""

from __future__ import annotations

import io
import itertools
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from structures import EXAMPLES, a_sentence

from mpifed.data.sources.flix import parse
from mpifed.errors import InputError

WIDE = [0, -1, 2, 10**12, 2**62, 2**63 - 1, -(2**63)]


@st.composite
def whole_file(draw) -> dict[str, np.ndarray]:
    """The arrays of a valid file."""
    n, width, tags = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    client = np.array(draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)))
    arrays = {"client": client, "text": np.array(["never read"])}
    if draw(st.booleans()):
        values = draw(st.lists(st.integers(-9, 9), min_size=n * width, max_size=n * width))
        arrays["x"] = np.array(values, draw(st.sampled_from(["f8", ">f4", "i2"])))
        arrays["x"] = arrays["x"].reshape(n, width)
    else:
        arrays |= sparse(draw, "x", n, width)
        arrays["x_data"] = np.arange(1.0, 1 + len(arrays["x_indices"]))
        arrays["x_features"] = np.array(width)
    arrays |= sparse(draw, "y", n, tags)
    arrays["y_tags"] = np.array(tags)
    if draw(st.booleans()):
        arrays["held_out"] = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    if draw(st.booleans()):
        arrays["embeddings"] = np.ones((len(set(client.tolist())), 2))
    return arrays


def sparse(draw, name: str, n: int, width: int) -> dict[str, np.ndarray]:
    rows = [draw(st.lists(st.integers(0, width - 1), max_size=3)) for _ in range(n)]
    indices = np.array([k for row in rows for k in row], draw(st.sampled_from(["i8", ">u4", "i1"])))
    ends = np.cumsum([0, *map(len, rows)])
    return {f"{name}_indices": indices, f"{name}_indptr": ends}


@st.composite
def changed(draw) -> dict[str, Any]:
    """The arrays of a file, one or two of which may be missing, of another form or wrong."""
    arrays: dict[str, Any] = draw(whole_file())
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(arrays)))
        array = arrays[name]
        if isinstance(array, bytes):
            continue
        how = draw(st.sampled_from(["gone", "type", "shape", "entry", "longer", "empty", "raw"]))
        if how == "gone":
            del arrays[name]
        elif how == "type":
            types = ["f8", ">i4", "u8", "c16", "U9", "?", "S3", "M8[s]"]
            if array.dtype.kind in "bif":
                arrays[name] = array.astype(draw(st.sampled_from(types)))
        elif how == "shape":
            arrays[name] = array[None] if draw(st.booleans()) else array.reshape(-1)
        elif how == "entry" and array.size and array.dtype.kind in "iuf":
            odd = st.floats() if array.dtype.kind == "f" else st.sampled_from(WIDE)
            place = draw(st.integers(0, array.size - 1))
            wide = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
            wide.reshape(-1)[place] = draw(odd)
            arrays[name] = wide
        elif how == "longer" and array.ndim:
            arrays[name] = np.concatenate([array, array[-1:]])
        elif how == "empty" and array.ndim:
            arrays[name] = array[..., :0]
        elif how == "raw":
            arrays[name] = draw(st.sampled_from([b"", b"\x93NUMPY", b"no array", cut(array)]))
    return arrays


def cut(array: np.ndarray) -> bytes:
    """A stored array without its last byte."""
    stored = io.BytesIO()
    np.save(stored, array)
    return stored.getvalue()[:-1]


def write(path: Path, arrays: dict[str, Any]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = array
            if not isinstance(array, bytes):
                stored = io.BytesIO()
                np.save(stored, array)
                content = stored.getvalue()
            archive.writestr(f"{name}.npy", content)


def numbers(arrays: dict[str, Any], name: str, kinds: str, dimensions: int) -> Any:
    """An array as Python's own numbers, or None where it is not of this form."""
    array = arrays.get(name)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
        return None
    return array.tolist() if array.ndim == dimensions else None


def rows_of(arrays: dict[str, Any], name: str, width: str, values: Any) -> list[dict] | None:
    """Sums of the values by column, for each row, and None where the arrays do not fit."""
    columns = numbers(arrays, f"{name}_indices", "iu", 1)
    ends = numbers(arrays, f"{name}_indptr", "iu", 1)
    most = numbers(arrays, width, "iu", 0)
    if columns is None or not ends or most is None or most < 1:
        return None
    values = [1] * len(columns) if values is None else values
    if ends[0] != 0 or ends != sorted(ends) or not ends[-1] == len(columns) == len(values):
        return None
    if most > 10**11 or not all(0 <= column < most for column in columns):
        return None  # no memory holds a row of so many
    rows: list[dict] = [{} for _ in ends[1:]]
    for row, (start, stop) in zip(rows, itertools.pairwise(ends), strict=True):
        for column, value in zip(columns[start:stop], values[start:stop], strict=True):
            row[column] = row.get(column, 0) + value
    return rows


def tagged_in(arrays: dict[str, Any]) -> tuple[list[dict], list[dict], list[int]] | None:
    """What a file holds, read without numpy's arithmetic; None where it is wrong."""
    clients = numbers(arrays, "client", "biu", 1)
    if "x" in arrays:
        dense = numbers(arrays, "x", "biuf", 2)
        if dense is None or (dense and not dense[0]):
            return None
        x = [dict(enumerate(map(float, row))) for row in dense]
    else:
        values = numbers(arrays, "x_data", "biuf", 1)
        if values is None:
            return None
        sums = rows_of(arrays, "x", "x_features", values)
        if sums is None:
            return None
        x = sums
    y = rows_of(arrays, "y", "y_tags", None)
    if not clients or y is None or not len(x) == len(y) == len(clients):
        return None
    if not all(-(2**63) <= client < 2**63 for client in clients):
        return None
    if not all(math.isfinite(value) for row in x for value in row.values()):
        return None
    held = numbers(arrays, "held_out", "biu", 1)
    if "held_out" in arrays and (held is None or len(held) != len(clients)):
        return None
    if "embeddings" in arrays:
        rows = numbers(arrays, "embeddings", "biuf", 2)
        if not rows or len(rows) != len(set(clients)) or not rows[0]:
            return None
        if not all(math.isfinite(value) for row in rows for value in row):
            return None
    return x, y, clients


def present(rows: list[dict]) -> list[dict]:
    return [{column: value for column, value in row.items() if value} for row in rows]


@EXAMPLES
@given(arrays=changed())
def test_any_file_of_tags_has_the_values_of_another_reader_or_is_refused(arrays, tmp_path):
    path = tmp_path / "tags.npz"
    write(path, arrays)
    expected = tagged_in(arrays)
    try:
        found = parse(path)
    except InputError as error:
        a_sentence(error, path)
        assert expected is None
        return
    assert expected is not None
    x, y, clients = expected
    own = [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in found.x]
    assert present(own) == present(x)
    assert [set(row.indices.tolist()) for row in found.tags] == [set(row) for row in y]
    assert found.names[found.owner].tolist() == clients


SMALL = {
    "client": np.repeat([0, 1], 3),
    "x": np.arange(6.0)[:, None],
    "y_indices": np.zeros(6, np.int64),
    "y_indptr": np.arange(7),
    "y_tags": np.array(2),
}
