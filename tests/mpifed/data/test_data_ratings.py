"""Ratings of MovieLens and LIBSVM files: what is read, dealt to clients and refused."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import dataset_of

import mpifed
from mpifed.dataset import Dataset
from mpifed.errors import InputError

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


def make(path: Path | str, n_clients: int = 2, **options) -> Dataset:
    return dataset_of("ratings", n_clients, path=str(path), **options)


def stars(path: Path, users: int, movies: int, **options) -> np.ndarray:
    """The ratings of the users and movies that are chosen, in their order."""
    options = {"users": users, "movies": movies, "partition": "contiguous", **options}
    return make(path, 1, **options).load(np.arange(1), torch.float64).train.x.numpy()


def test_the_most_rated_are_kept_with_ties_by_the_smaller_number(small: Path):
    # Movies 7 and 9. Among these users 1 and 3 have two ratings, 5 and 12 one.
    assert stars(small, 3, 2).tolist() == [[4, 3], [5, 2], [0, 4]]
    # Movies 4, 7 and 9 of user 3.
    assert stars(small, 1, 3).tolist() == [[1, 5, 2]]


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
    # Users 1, 3, 5, 12 and movies 4, 5, 7, 9.
    ratings = np.array([[0, 0, 4, 3], [1, 0, 5, 2], [2, 0, 0, 4], [0, 5, 1, 0]])
    pairs = list(itertools.combinations(range(4), 2))
    possible = [ratings[np.ix_(users, movies)].tolist() for users in pairs for movies in pairs]
    drawn = []
    for seed in range(20):
        rows = stars(small, 2, 2, choose="random", seed=seed)
        assert rows.tolist() in possible and (rows > 0).any(axis=1).all()
        assert np.array_equal(rows, stars(small, 2, 2, choose="random", seed=seed))
        drawn.append(rows.tobytes())
    assert len(set(drawn)) > 5


BAD = {
    "three fields": ("1::2::3::4\n1::2::3\n", "columns.* 4 .* 3 .* 2\\b"),
    "six stars": ("1::2::3::4\n2::2::6::4\n", r"2\.0, 2\.0, 6\.0"),
    "half a movie": ("1::2.5::3::4\n", r"1\.0, 2\.5, 3\.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_a_sentence_that_says_where(small: Path, case: str):
    text, message = BAD[case]
    small.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        make(small)
    assert str(small) in str(refused.value) and "\n" not in str(refused.value)


def test_windows_lines_and_half_stars_are_read(small: Path):
    small.write_bytes(b"1::2::3.5::4\r\n2::2::3::4\r\n")
    assert stars(small, 2, 1).tolist() == [[3.5], [3]]


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


def make_of_libsvm(path: Path, n_clients: int = 2, **options) -> Dataset:
    return dataset_of("libsvm", n_clients, path=str(path), **options)


def train_of(dataset: Dataset, n_clients: int = 2, dtype=torch.float64):
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
    def raw(directory: Path, path: str | None = None) -> Dataset:
        return dataset_of("libsvm", 2, raw=str(directory), path=path)

    assert raw(small_of_libsvm.parent).description.source == "libsvm-small_of_libsvm"
    (small_of_libsvm.parent / "other.gz").write_bytes(gzip.compress(TEXT))
    assert raw(small_of_libsvm.parent, "other").description.source == "libsvm-other"
    with pytest.raises(InputError, match=r"data\.raw.*\b2 files.*data\.path"):
        raw(small_of_libsvm.parent)
    with pytest.raises(InputError, match=r"data\.raw.*/small_of_libsvm'.*directory"):
        raw(small_of_libsvm)
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    with pytest.raises(InputError, match=r"data\.raw.*MPIFED_DATA"):
        dataset_of("libsvm", 2)


def test_labels_become_what_they_mean(tmp_path: Path):
    path = tmp_path / "mushrooms"
    path.write_bytes(b"2 1:1\n1 1:2\n2 1:3\n")
    assert train_of(make_of_libsvm(path)).y.tolist() == [1, 0, 1]
    # With the published code's rule every label but -1 is 1.
    assert train_of(make_of_libsvm(path, labels="published_code")).y.tolist() == [1, 1, 1]
    path.write_bytes(b"-1 1:1\n1 1:2\n0 1:3\n")
    assert train_of(make_of_libsvm(path, labels="published_code")).y.tolist() == [0, 1, 1]
    with pytest.raises(InputError, match=r"mushrooms.*\[-1\.0, 0\.0, 1\.0\].*data\.labels"):
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
    with pytest.raises(InputError, match=r"clients.*\b5\b.*\b4 samples"):
        make_of_libsvm(tmp_path / "file", 5)


def test_clients_of_many_samples_and_any_of_them_are_read_as_they_stand(tmp_path: Path):
    x, y = generated(tmp_path / "file", 9000)  # samples are read and sent in pieces of fewer
    dataset = make_of_libsvm(tmp_path / "file", 2, intercept=False)
    train = train_of(dataset)
    assert np.array_equal(train.x.numpy(), x) and np.array_equal(train.y.numpy(), y)
    whole = train_of(make_of_libsvm(tmp_path / "file", 7), 7, torch.float32)
    some = make_of_libsvm(tmp_path / "file", 7).load(np.array([1, 5]), torch.float32).train
    rows = np.concatenate([np.arange(*whole.offsets[c : c + 2]) for c in (1, 5)])
    assert torch.equal(some.x, whole.x[rows]) and torch.equal(some.y, whole.y[rows])


BAD_LIBSVM = {
    "empty": (b"", "no sample"),
    "words": (b"1 2:3\nfoo\n", "foo"),
    "not in order": (b"1 2:3 1:4\n", "sorted"),
    "nan": (b"1 1:nan\n2 1:1\n", "finite"),
    "one label": (b"1 1:1\n1 1:2\n", r"\[1\.0\].*data\.labels"),
}


@pytest.mark.parametrize("case", BAD_LIBSVM)
def test_a_bad_file_is_refused_in_a_sentence_that_names_it(small_of_libsvm: Path, case: str):
    text, message = BAD_LIBSVM[case]
    small_of_libsvm.write_bytes(text)
    with pytest.raises(InputError, match=message) as refused:
        make_of_libsvm(small_of_libsvm)
    assert str(small_of_libsvm) in str(refused.value) and "\n" not in str(refused.value)


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


@pytest.mark.slow
def test_the_shipped_experiment_runs_on_a_table_of_the_shape_of_movielens(tmp_path: Path):
    random = np.random.default_rng(0)
    # 6040 users and 3706 movies, of which some are rated often.
    users = np.repeat(np.arange(1, 6041), 20)
    movies = 1 + np.floor(3706 * random.random(len(users)) ** 3).astype(int)
    rows = np.column_stack([users, movies, random.integers(1, 6, len(users))])
    text = "\n".join(f"{user}::{movie}::{stars}::0" for user, movie, stars in rows)
    path = tmp_path / "ratings.dat"
    path.write_text(text)
    options = {"data.path": str(path), "rounds": 2, "evaluation.every": 1}
    run = mpifed.run("fedmm-ratings", output=tmp_path / "run", quiet=True, **options)
    objective = run.metrics["objective"]
    assert run.summary["clients"] == 20 and run.clients["n_train"].tolist() == [250] * 20
    assert run.learnt["dictionary"].shape == (500, 50)
    assert np.isfinite(objective).all() and objective[2] < objective[0]
