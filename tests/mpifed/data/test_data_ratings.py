"""Ratings of MovieLens and LIBSVM files: what is read, dealt to clients and refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from mpifed.data import partitioned
from mpifed.data.sources import libsvm
from mpifed.data.sources.libsvm import LibSvm
from mpifed.data.sources.ratings import Ratings, matrix, parse, selected
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone

# Movies 7, 9 and 4 have 3, 3 and 2 ratings, movie 5 one.
SMALL = """3::7::5::978300760
1::7::4::978302109
12::7::1::978301968
1::9::3::978300275
3::9::2::978824291
5::9::4::978302268
5::4::2::978302039
3::4::1::978300719
12::5::5::978302268
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "ratings.dat"
    path.write_text(SMALL)
    return path


def make(path: Path | str, n_clients: int = 2, **options) -> Ratings:
    return Ratings(n_clients, 0, Alone(), path=str(path), **options)


def test_the_most_rated_are_kept_with_ties_by_the_smaller_number(small: Path):
    table = parse(small)
    users, movies = selected(table, 3, 2, None)
    assert movies.tolist() == [7, 9]
    # Among these movies users 1 and 3 have two ratings, 5 and 12 one.
    assert users.tolist() == [1, 3, 5]
    assert matrix(table, users, movies).tolist() == [[4, 3], [5, 2], [0, 4]]
    assert selected(table, 1, 3, None)[1].tolist() == [4, 7, 9]
    assert selected(table, 1, 3, None)[0].tolist() == [3]


def test_users_are_unlabelled_rows_dealt_whole(tmp_path: Path):
    random = np.random.default_rng(0)
    stars = random.integers(0, 6, (40, 12))
    lines = [f"{u + 1}::{2 * m + 1}::{stars[u, m]}::0" for u, m in np.argwhere(stars)]
    path = tmp_path / "ratings.dat.gz"
    path.write_bytes(gzip.compress("\n".join(random.permutation(lines)).encode()))
    for partition in ("kmeans", "contiguous", "iid"):
        dataset = make(path, 3, users=40, movies=12, partition=partition, test_fraction=0.25)
        about = dataset.description
        assert (about.task, about.n_classes, about.input_shape) == ("unlabelled", 0, (12,))
        assert sorted(about.n_train + about.n_test) == [13, 13, 14] and about.n_test.sum() == 10
        shards = dataset.load(np.arange(3), torch.float32)
        assert shards.train.y.shape == (30, 0) and shards.train.y.dtype == torch.float32
        rows = torch.cat([shards.train.x, shards.test.x]).tolist()
        assert sorted(rows) == sorted(stars.astype(float).tolist())
    in_order = make(path, 3, users=40, movies=12, partition="contiguous")
    assert torch.equal(
        in_order.load(np.arange(3), torch.float64).train.x, torch.from_numpy(stars).double()
    )


def test_a_random_choice_is_of_the_seed_and_among_those_who_rate(small: Path):
    table = parse(small)
    for seed in range(20):
        users, movies = selected(table, 2, 2, np.random.default_rng(seed))
        assert set(users) <= {1, 3, 5, 12} and set(movies) <= {4, 5, 7, 9}
        assert (matrix(table, users, movies) > 0).any(axis=1).all()
        again = selected(table, 2, 2, np.random.default_rng(seed))
        assert np.array_equal(users, again[0]) and np.array_equal(movies, again[1])
    train = make(small, users=2, movies=2, choose="random", seed=5)
    same = make(small, users=2, movies=2, choose="random", seed=5)
    rows = [one.load(np.arange(2), torch.float64).train.x for one in (train, same)]
    assert torch.equal(*rows)


BAD = {
    "three fields": ("1::2::3::4\n1::2::3\n", "columns changed"),
    "six stars": ("1::2::3::4\n2::2::6::4\n", "2.0, 2.0, 6.0"),
    "half a movie": ("1::2.5::3::4\n", "1.0, 2.5, 3.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_a_sentence_that_says_where(small: Path, case: str):
    text, message = BAD[case]
    small.write_text(text)
    with pytest.raises(InputError) as refused:
        parse(small)
    assert str(small) in str(refused.value) and "\n" not in str(refused.value)
    assert message in str(refused.value)


def test_windows_lines_and_half_stars_are_read(small: Path):
    small.write_bytes(b"1::2::3.5::4\r\n2::2::3::4\r\n")
    assert parse(small).stars.tolist() == [3.5, 3]


REPOSITORY = Path(__file__).parents[3]
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}

TEXT = b"""-1 1:0.5 3:-2
+1 2:1e-3
-1 # nothing but a comment
1 1:1 2:2 3:3
-1 3:0.1
"""
DENSE = np.array([[0.5, 0, -2], [0, 1e-3, 0], [0, 0, 0], [1, 2, 3], [0, 0, 0.1]])
LABELS = [0, 1, 0, 1, 0]


def make_of_libsvm(path: Path, n_clients: int = 2, **options) -> LibSvm:
    return LibSvm(n_clients, 0, Alone(), path=str(path), **options)


def train_of(dataset: LibSvm, n_clients: int = 2, dtype=torch.float64):
    return dataset.load(np.arange(n_clients), dtype).train


@pytest.fixture
def small_of_libsvm(tmp_path: Path) -> Path:
    path = tmp_path / "small_of_libsvm"
    path.write_bytes(TEXT)
    return path


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_is_read_as_it_stands_in_any_compression(tmp_path: Path, ending: str):
    path = tmp_path / f"small_of_libsvm{ending}"
    path.write_bytes(COMPRESS[ending](TEXT))
    for given in (path, tmp_path / "small_of_libsvm"):
        dataset = make_of_libsvm(given, intercept=False)
        train = train_of(dataset)
        assert np.array_equal(train.x.numpy(), DENSE) and train.y.tolist() == LABELS
        about = dataset.description
        assert (about.source, about.n_classes, about.n_outputs) == ("libsvm-small_of_libsvm", 2, 1)
        assert about.n_train.tolist() == [2, 3] and not about.n_test.any()
    with_ones = train_of(make_of_libsvm(path)).x.numpy()
    assert np.array_equal(with_ones, np.column_stack([np.ones(5), DENSE]))


def test_a_directory_of_raw_files_is_looked_into(
    small_of_libsvm: Path, monkeypatch: pytest.MonkeyPatch
):
    def raw(directory: Path, path: str | None = None) -> LibSvm:
        return LibSvm(2, 0, Alone(), raw=str(directory), path=path)

    assert raw(small_of_libsvm.parent).description.source == "libsvm-small_of_libsvm"
    (small_of_libsvm.parent / "other.gz").write_bytes(gzip.compress(TEXT))
    assert raw(small_of_libsvm.parent, "other").description.source == "libsvm-other"
    with pytest.raises(InputError, match=r"holds 2 files; data\.path must name one"):
        raw(small_of_libsvm.parent)
    with pytest.raises(InputError, match="no such directory"):
        raw(small_of_libsvm)
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    with pytest.raises(InputError, match=r"data\.raw is empty and MPIFED_DATA"):
        LibSvm(2, 0, Alone())


def test_labels_become_what_they_mean(tmp_path: Path):
    path = tmp_path / "mushrooms"
    path.write_bytes(b"2 1:1\n1 1:2\n2 1:3\n")
    assert train_of(make_of_libsvm(path)).y.tolist() == [1, 0, 1]
    # With the published code's rule every label but -1 is 1.
    assert train_of(make_of_libsvm(path, labels="published_code")).y.tolist() == [1, 1, 1]
    path.write_bytes(b"-1 1:1\n1 1:2\n0 1:3\n")
    assert train_of(make_of_libsvm(path, labels="published_code")).y.tolist() == [0, 1, 1]
    with pytest.raises(InputError, match=r"3 labels, as \[-1\.0, 0\.0, 1\.0\]"):
        make_of_libsvm(path)


def generated(path: Path, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A file of ``n`` samples and what is in it; feature 1 is the number of the sample."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 3, (n, 6)).astype(float)
    x[:, 0] = np.arange(n)
    y = random.permutation(np.arange(n) % 2)
    lines = [
        f"{label} " + " ".join(f"{k + 1}:{v!r}" for k, v in enumerate(row.tolist()) if v)
        for label, row in zip(y, x, strict=True)
    ]
    path.write_text("\n".join(lines))
    return x, y


@pytest.mark.parametrize("partition", ["contiguous", "iid", "dirichlet", "pathological", "kmeans"])
def test_clients_keep_the_order_of_the_file_and_everything_is_dealt(tmp_path, partition):
    x, y = generated(tmp_path / "file", 103)
    dataset = make_of_libsvm(
        tmp_path / "file", 4, partition=partition, test_fraction=0.2, intercept=False
    )
    shards = dataset.load(np.arange(4), torch.float64)
    rows = []
    for split in (shards.train, shards.test):
        for client in range(4):
            own = slice(*split.offsets[client : client + 2])
            numbers = split.x[own, 0].long().numpy()
            assert np.all(np.diff(numbers) > 0)
            assert np.array_equal(split.x[own].numpy(), x[numbers])
            assert np.array_equal(split.y[own].numpy(), y[numbers])
            rows.append(numbers)
    assert sorted(np.concatenate(rows)) == list(range(103))
    for client in range(4):
        total = dataset.description.n_train[client] + dataset.description.n_test[client]
        assert dataset.description.n_test[client] == np.floor(0.2 * total + 0.5)
    assert len(shards.val.y) == 0


def test_a_client_always_keeps_something_to_train_on(tmp_path: Path):
    generated(tmp_path / "file", 4)
    about = make_of_libsvm(tmp_path / "file", 4, test_fraction=0.99).description
    assert about.n_train.tolist() == [1] * 4 and about.n_test.tolist() == [0] * 4
    with pytest.raises(InputError, match="clients is 5, but 4 samples"):
        make_of_libsvm(tmp_path / "file", 5)


def test_pieces_and_clients_asked_for_change_nothing(tmp_path: Path, monkeypatch):
    generated(tmp_path / "file", 90)
    whole = train_of(make_of_libsvm(tmp_path / "file", 7), 7, torch.float32)
    monkeypatch.setattr(partitioned, "PIECE", 8)
    monkeypatch.setattr(libsvm, "PIECE", 8)
    some = make_of_libsvm(tmp_path / "file", 7).load(np.array([1, 5]), torch.float32).train
    rows = np.concatenate([np.arange(*whole.offsets[c : c + 2]) for c in (1, 5)])
    assert torch.equal(some.x, whole.x[rows]) and torch.equal(some.y, whole.y[rows])


BAD_LIBSVM = {
    "empty": (b"", "holds no sample"),
    "words": (b"1 2:3\nfoo\n", "could not convert"),
    "not in order": (b"1 2:3 1:4\n", "sorted and unique"),
    "nan": (b"1 1:nan\n2 1:1\n", "not finite"),
    "one label": (b"1 1:1\n1 1:2\n", "1 labels"),
}


@pytest.mark.parametrize("case", BAD_LIBSVM)
def test_a_bad_file_is_refused_in_a_sentence_that_names_it(small_of_libsvm: Path, case: str):
    text, message = BAD_LIBSVM[case]
    small_of_libsvm.write_bytes(text)
    with pytest.raises(InputError) as refused:
        make_of_libsvm(small_of_libsvm)
    assert str(small_of_libsvm) in str(refused.value) and "\n" not in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "positive"),
    [("a6a", 11220, 122, 2692), ("mushrooms", 8124, 112, 4208), ("w8a", 49749, 300, 1479)],
)
def test_the_real_files(name: str, rows: int, columns: int, positive: int):
    directory = Path(os.environ.get("MPIFED_DATA", REPOSITORY / "../shared/data")) / "libsvm"
    if not directory.is_dir():
        pytest.skip(f"no LIBSVM files: there is no directory '{directory}' (MPIFED_DATA)")
    dataset = make_of_libsvm(directory / name, 50)
    train = train_of(dataset, 50, torch.float32)
    assert train.x.shape == (rows, columns + 1) and int(train.y.sum()) == positive
    assert train.offsets.tolist() == [i * rows // 50 for i in range(51)]
    assert bool((train.x[:, 0] == 1).all())
    if name == "mushrooms":
        assert bool(((train.x != 0).sum(dim=1) == 22).all())
        assert train.y[:5].tolist() == [0, 1, 1, 0, 1]
