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
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone

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


def make(path: Path, n_clients: int = 2, **options) -> LibSvm:
    return LibSvm(n_clients, 0, Alone(), path=str(path), **options)


def train_of(dataset: LibSvm, n_clients: int = 2, dtype=torch.float64):
    return dataset.load(np.arange(n_clients), dtype).train


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small"
    path.write_bytes(TEXT)
    return path


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_is_read_as_it_stands_in_any_compression(tmp_path: Path, ending: str):
    path = tmp_path / f"small{ending}"
    path.write_bytes(COMPRESS[ending](TEXT))
    for given in (path, tmp_path / "small"):
        dataset = make(given, intercept=False)
        train = train_of(dataset)
        assert np.array_equal(train.x.numpy(), DENSE) and train.y.tolist() == LABELS
        about = dataset.description
        assert (about.source, about.n_classes, about.n_outputs) == ("libsvm-small", 2, 1)
        assert about.n_train.tolist() == [2, 3] and not about.n_test.any()
    with_ones = train_of(make(path)).x.numpy()
    assert np.array_equal(with_ones, np.column_stack([np.ones(5), DENSE]))


def test_the_name_of_a_file_is_found_in_the_directory_of_data(small: Path, monkeypatch):
    (small.parent / "libsvm").mkdir()
    (small.parent / "libsvm" / "mine.bz2").write_bytes(bz2.compress(TEXT))
    with pytest.raises(InputError, match="'mine', but there is no such file"):
        make(Path("mine"))
    monkeypatch.setenv("MPIFED_DATA", str(small.parent))
    assert make(Path("mine")).description.source == "libsvm-mine"
    with pytest.raises(InputError, match=r"'another', but there is no such file.*/another'"):
        make(Path("another"))


def test_a_directory_of_raw_files_is_looked_into(small: Path, monkeypatch: pytest.MonkeyPatch):
    def raw(directory: Path, path: str | None = None) -> LibSvm:
        return LibSvm(2, 0, Alone(), raw=str(directory), path=path)

    assert raw(small.parent).description.source == "libsvm-small"
    (small.parent / "other.gz").write_bytes(gzip.compress(TEXT))
    assert raw(small.parent, "other").description.source == "libsvm-other"
    with pytest.raises(InputError, match=r"holds 2 files \(.*\); data\.path must name one"):
        raw(small.parent)
    with pytest.raises(InputError, match="no such directory"):
        raw(small)
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    with pytest.raises(InputError, match=r"data\.raw is empty and MPIFED_DATA"):
        LibSvm(2, 0, Alone())


def test_labels_become_what_they_mean(tmp_path: Path):
    path = tmp_path / "mushrooms"
    path.write_bytes(b"2 1:1\n1 1:2\n2 1:3\n")
    assert train_of(make(path)).y.tolist() == [1, 0, 1]
    # With the published code's rule every label but -1 is 1.
    assert train_of(make(path, labels="published_code")).y.tolist() == [1, 1, 1]
    path.write_bytes(b"-1 1:1\n1 1:2\n0 1:3\n")
    assert train_of(make(path, labels="published_code")).y.tolist() == [0, 1, 1]
    with pytest.raises(InputError, match=r"3 labels \(-1, 0, 1\)"):
        make(path)


def test_more_features_may_be_asked_for_but_not_fewer(small: Path):
    assert make(small, features=5).description.input_shape == (6,)
    with pytest.raises(InputError, match=r"data.features is 2, .* feature 3"):
        make(small, features=2)


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
    dataset = make(tmp_path / "file", 4, partition=partition, test_fraction=0.2, intercept=False)
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
    about = make(tmp_path / "file", 4, test_fraction=0.99).description
    assert about.n_train.tolist() == [1] * 4 and about.n_test.tolist() == [0] * 4
    with pytest.raises(InputError, match="clients is 5, but 4 samples"):
        make(tmp_path / "file", 5)


def test_pieces_and_clients_asked_for_change_nothing(tmp_path: Path, monkeypatch):
    generated(tmp_path / "file", 90)
    whole = train_of(make(tmp_path / "file", 7), 7, torch.float32)
    monkeypatch.setattr(partitioned, "PIECE", 8)
    monkeypatch.setattr(libsvm, "PIECE", 8)
    some = make(tmp_path / "file", 7).load(np.array([1, 5]), torch.float32).train
    rows = np.concatenate([np.arange(*whole.offsets[c : c + 2]) for c in (1, 5)])
    assert torch.equal(some.x, whole.x[rows]) and torch.equal(some.y, whole.y[rows])


BAD = {
    "empty": (b"", "holds no sample"),
    "words": (b"1 2:3\nfoo\n", "could not convert"),
    "not in order": (b"1 2:3 1:4\n", "sorted and unique"),
    "nan": (b"1 1:nan\n2 1:1\n", "not finite"),
    "one label": (b"1 1:1\n1 1:2\n", "1 labels"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_a_sentence_that_names_it(small: Path, case: str):
    text, message = BAD[case]
    small.write_bytes(text)
    with pytest.raises(InputError) as refused:
        make(small)
    assert str(small) in str(refused.value) and "\n" not in str(refused.value)
    assert message in str(refused.value)


def test_a_truncated_file_is_refused(tmp_path: Path):
    generated(tmp_path / "file", 3000)
    path = tmp_path / "cut.xz"
    path.write_bytes(lzma.compress((tmp_path / "file").read_bytes())[:-300])
    with pytest.raises(InputError, match=r"cut\.xz' cannot be read"):
        make(path)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "positive"),
    [("a6a", 11220, 122, 2692), ("mushrooms", 8124, 112, 4208), ("w8a", 49749, 300, 1479)],
)
def test_the_real_files(name: str, rows: int, columns: int, positive: int):
    directory = Path(os.environ.get("MPIFED_DATA", REPOSITORY / "../shared/data")) / "libsvm"
    if not directory.is_dir():
        pytest.skip(f"no LIBSVM files: there is no directory '{directory}' (MPIFED_DATA)")
    dataset = make(directory / name, 50)
    train = train_of(dataset, 50, torch.float32)
    assert train.x.shape == (rows, columns + 1) and int(train.y.sum()) == positive
    assert train.offsets.tolist() == [i * rows // 50 for i in range(51)]
    assert bool((train.x[:, 0] == 1).all())
    if name == "mushrooms":
        assert bool(((train.x != 0).sum(dim=1) == 22).all())
        assert train.y[:5].tolist() == [0, 1, 1, 0, 1]
