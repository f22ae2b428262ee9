from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from edits import attribute, edit, put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpifed.data import federated_file
from mpifed.data.base import Description, Shards, Split
from mpifed.data.federated_file import SPLITS, Contents, FederatedFile, read_contents, write
from mpifed.errors import InputError, RunError
from mpifed.mpi.communicator import Alone

per_example = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40
)


def random_shards(contents: Contents, seed: int) -> Shards:
    """All clients' shards as they would be stored."""
    random = np.random.default_rng(seed)
    about = contents.description

    def split(name: str) -> Split:
        offsets = contents.offsets(name)
        shape = (offsets[-1], *about.input_shape)
        if contents.stored == "uint8":
            x = random.integers(0, 256, shape).astype(np.uint8)
        else:
            x = random.normal(size=shape).astype(contents.stored)
        y = random.integers(0, about.n_classes, offsets[-1])
        return Split(torch.from_numpy(x), torch.from_numpy(y), offsets)

    return Shards(np.arange(about.n_clients), *map(split, SPLITS))


def blocks_of(shards: Shards, size: int) -> Iterator[Shards]:
    for start in range(0, len(shards.client_ids), size):
        clients = np.arange(start, min(start + size, len(shards.client_ids)))
        yield Shards(clients, *(some(getattr(shards, name), clients) for name in SPLITS))


def some(split: Split, clients: np.ndarray) -> Split:
    ranges = [np.arange(*split.offsets[client : client + 2]) for client in clients]
    rows = np.concatenate([np.zeros(0, np.int64), *ranges])
    return Split(split.x[rows], split.y[rows], np.cumsum([0, *map(len, ranges)]))


def same(a: Split, b: Split) -> bool:
    return (
        torch.equal(a.x, b.x)
        and a.x.dtype == b.x.dtype
        and torch.equal(a.y, b.y)
        and np.array_equal(a.offsets, b.offsets)
    )


def described(n_train, n_val, n_test, shape=(3,), n_classes=4, **options) -> Contents:
    counts = (np.array(count, np.int64) for count in (n_train, n_val, n_test))
    return Contents(Description("test", shape, n_classes, *counts), "natural", 7, **options)


@pytest.fixture
def usable(tmp_path: Path) -> Path:
    """A file of three clients: float32, 3 features, 4 labels."""
    contents = described([4, 1, 7], [0, 2, 0], [1, 1, 3])
    path = tmp_path / "usable.h5"
    write(path, contents, [random_shards(contents, 0)], {"answer": 42})
    return path


@st.composite
def layouts(draw) -> Contents:
    n_clients = draw(st.integers(1, 6))
    counts = [
        draw(st.lists(st.integers(least, 9), min_size=n_clients, max_size=n_clients))
        for least in (1, 0, 1)
    ]
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 5), (2, 1, 3)]))
    stored = draw(st.sampled_from(["uint8", "float32", "float64"]))
    divisor = draw(st.sampled_from([1, 16, 255])) if stored == "uint8" else 1
    return described(*counts, shape, draw(st.integers(1, 5)), stored=stored, divisor=divisor)


@given(layouts(), st.integers(1, 6), st.integers(1, 60), st.data())
@per_example
def test_what_was_written_is_read_by_any_owner(tmp_path, contents, block, piece, data):
    path = tmp_path / "round.h5"
    shards = random_shards(contents, 1)
    write(path, contents, blocks_of(shards, block), {})
    n_clients = contents.description.n_clients
    clients = np.array(data.draw(st.sets(st.integers(0, n_clients - 1)).map(sorted)), np.int64)
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federated_file, "PIECE", piece)
        dataset = FederatedFile(n_clients, 0, Alone(), path=str(path))
        loaded = dataset.load(clients, dtype)
    assert dataset.contents.same_rows(contents)
    for name in SPLITS:
        expected = some(getattr(shards, name), clients)
        x = expected.x.to(dtype)
        if contents.divisor > 1:
            x /= contents.divisor
        assert same(getattr(loaded, name), Split(x, expected.y, expected.offsets))


def test_a_file_says_where_it_comes_from(usable: Path):
    with h5py.File(usable) as file:
        assert (file.attrs["source"], file.attrs["partition"]) == (b"test", b"natural")
        assert (file.attrs["seed"], file.attrs["n_classes"], file.attrs["version"]) == (7, 4, 1)
        assert json.loads(file.attrs["options"]) == {"answer": 42}
        assert file["train/offsets"][()].tolist() == [0, 4, 5, 12]
        assert file["train/x"].shape == (12, 3) and file["test/y"].shape == (5,)


def test_the_same_data_are_the_same_bytes(tmp_path: Path):
    contents = described([4, 1, 7], [0, 2, 0], [1, 1, 3])
    for name in ("a", "b"):
        write(tmp_path / name, contents, blocks_of(random_shards(contents, 0), 2), {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_by_the_users_own_hand_is_read(tmp_path: Path):
    path = tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update(source="mine", partition="by hand", seed=0, n_classes=2)
        for split in SPLITS:
            file[f"{split}/x"] = np.arange(8, dtype=">f4").reshape(4, 2)
            file[f"{split}/y"] = np.array([0, 1, 1, 0], np.int8)
            file[f"{split}/offsets"] = np.array([0, 1, 4], np.int32)
    loaded = FederatedFile(2, 0, Alone(), path=str(path)).load(np.array([1]), torch.float32)
    assert loaded.train.x.tolist() == [[2, 3], [4, 5], [6, 7]]
    assert loaded.test.y.tolist() == [1, 1, 0]


def no_hdf5(path: Path) -> None:
    path.write_text("x,y\n1,2\n")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


BAD = {
    "no file": (lambda path: path.unlink(), "no such file"),
    "another format": (no_hdf5, "signature not found"),
    "truncated": (cut, "truncated"),
    "a version to come": (attribute("version", 2), "version is 2"),
    "no labels": (attribute("n_classes", 0), "'n_classes' is 0"),
    "falling offsets": (put("train/offsets", [0, 5, 4, 12]), "never fall"),
    "offsets in fractions": (put("train/offsets", [0.0, 4.0, 5.0, 12.0]), "whole numbers"),
    "x in texts": (put("val/x", np.array([b"ab", b"c"])), "allowed: uint8"),
    "clients differ": (put("val/offsets", [0, 2]), "same number of clients"),
    "a client without training": (put("train/offsets", [0, 4, 4, 12]), "client 1 has no training"),
    "too high a label": (edit(lambda f: f["train/y"].__setitem__(4, 4)), "label 4, .. of client 1"),
    "nan": (edit(lambda f: f["train/x"].__setitem__((5, 1), np.nan)), "not finite .. of client 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unusable_file_is_refused_in_a_sentence_that_names_it(usable: Path, case: str):
    damage, message = BAD[case]
    damage(usable)
    with pytest.raises(InputError) as refused:
        FederatedFile(3, 0, Alone(), path=str(usable)).load(np.arange(3), torch.float32)
    text = str(refused.value)
    assert str(usable) in text and "\n" not in text
    assert all(part in text for part in message.split(" .. "))


def test_a_value_that_the_runs_type_cannot_hold_is_refused(tmp_path: Path):
    contents = described([1], [0], [1], stored="float64")
    shards = random_shards(contents, 0)
    shards.train.x[0, 0] = 1e300
    write(tmp_path / "big.h5", contents, [shards], {})
    dataset = FederatedFile(1, 0, Alone(), path=str(tmp_path / "big.h5"))
    assert dataset.load(np.arange(1), torch.float64).train.x[0, 0] == 1e300
    with pytest.raises(InputError, match="not finite"):
        dataset.load(np.arange(1), torch.float32)


def test_another_number_of_clients_is_refused_with_both(usable: Path):
    with pytest.raises(InputError, match=r"clients is 5, .* holds 3 clients"):
        FederatedFile(5, 0, Alone(), path=str(usable))


def test_a_file_that_vanishes_before_it_is_read_is_refused(usable: Path):
    dataset = FederatedFile(3, 0, Alone(), path=str(usable))
    usable.unlink()
    with pytest.raises(InputError, match="no such file"):
        dataset.load(np.arange(3), torch.float32)


@given(st.data())
@per_example
def test_truncation_is_recognised_anywhere(usable: Path, tmp_path: Path, data):
    whole = usable.read_bytes()
    path = tmp_path / "cut.h5"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InputError):
        read_contents(path)


@given(st.data())
@settings(per_example, max_examples=200)
def test_damage_is_a_sentence_or_other_numbers_but_nothing_else(usable, tmp_path, data):
    damaged = bytearray(usable.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.h5"
    path.write_bytes(damaged)
    try:
        FederatedFile(3, 0, Alone(), path=str(path)).load(np.arange(3), torch.float32)
    except InputError as error:
        assert "flipped.h5" in str(error)


def test_a_source_that_fails_leaves_nothing(tmp_path: Path):
    contents = described([4, 1, 7], [0, 2, 0], [1, 1, 3])
    path = tmp_path / "failed.h5"
    path.write_text("what stood there before")

    def failing() -> Iterator[Shards]:
        yield next(blocks_of(random_shards(contents, 0), 1))
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        write(path, contents, failing(), {})
    assert [*tmp_path.glob("**/*.h5*")] == [path]
    assert path.read_text() == "what stood there before"


@pytest.mark.parametrize("blocks", [slice(0, 2), slice(1, 3)])
def test_a_source_that_forgets_clients_is_a_mistake(tmp_path: Path, blocks: slice):
    contents = described([4, 1, 7], [0, 2, 0], [1, 1, 3])
    with pytest.raises(ValueError, match="expected"):
        write(tmp_path / "a.h5", contents, [*blocks_of(random_shards(contents, 0), 1)][blocks], {})
    assert not [*tmp_path.glob("*.h5*")]


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path):
    contents = described([3000], [0], [10], shape=(100,))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(RunError, match=r"full\.h5' cannot be written"):
            write(tmp_path / "full.h5", contents, [random_shards(contents, 0)], {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [*tmp_path.glob("*full*")] and not [*tmp_path.glob(".*full*")]
