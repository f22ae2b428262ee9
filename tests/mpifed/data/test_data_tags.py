"""Samples with tags: generated ones, a user's file, and how both are laid out over clients."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import dataset_of
from scipy.sparse import csr_matrix

from mpifed.dataset import Dataset
from mpifed.errors import InputError


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**32))
@settings(deadline=None)
def test_training_samples_cover_as_many_tags_as_greed_can(
    tmp_path_factory, n, n_tags, n_first, seed
):
    tags = np.random.default_rng(seed).random((n, n_tags)) < 0.2
    n_first = min(n_first, n)
    sparse = csr_matrix(tags)
    arrays = {"y_indices": sparse.indices, "y_indptr": sparse.indptr, "y_tags": np.array(n_tags)}
    arrays |= {"x": np.arange(n, dtype=float)[:, None], "client": np.zeros(n, int)}
    path = save(tmp_path_factory.mktemp("tags") / "tags.npz", arrays)
    counts = {"n_train": n_first, "n_val": 0, "n_test": n - n_first}
    options = {"choose": "first", "intercept": False, "seed": seed, **counts}
    shards = make(path, 1, **options).load(np.arange(1), torch.float64)
    order = torch.cat([shards.train.x, shards.test.x])[:, 0].long().tolist()
    assert sorted(order) == list(range(n))
    covered = np.zeros(n_tags, bool)
    for position, sample in enumerate(order[:n_first]):
        new = (tags & ~covered).sum(axis=1)
        if new.max() == 0:
            break
        assert new[sample] == new.max(), position
        covered |= tags[sample]
    if n_first >= n_tags:
        assert np.array_equal(tags[order[:n_first]].any(axis=0), tags.any(axis=0))


def test_the_papers_layouts():
    small = {"vocabulary": 20, "tags": 10}
    natural = dataset_of("tags", 50, **small).description
    for name, count in (("train", 90), ("val", 110), ("test", 300)):
        assert getattr(natural, f"n_{name}").tolist() == [count] * 50
    divided = dataset_of("tags", 100, layout="divided", **small)
    for name, count in (("train", 10), ("val", 100), ("test", 300)):
        assert getattr(divided.description, f"n_{name}").tolist() == [count] * 100
    # Two sources, each of fifty workers, which are judged alike.
    test = divided.load(np.array([0, 49, 50, 99]), torch.float32).test.x.reshape(4, 300, -1)
    assert torch.equal(test[0], test[1]) and torch.equal(test[2], test[3])
    assert not torch.equal(test[1], test[2])
    with pytest.raises(InputError, match=r"data\.sources.*\b3\b.*clients.*\b100\b"):
        dataset_of("tags", 100, layout="divided", sources=3)


def test_questions_are_shares_of_words_with_one_to_five_tags():
    dataset = dataset_of("tags", 4, vocabulary=300, tags=40, n_train=60, n_val=20, n_test=30)
    shards = dataset.load(np.arange(4), torch.float64)
    about = dataset.description
    assert (about.task, about.n_outputs, about.input_shape) == ("multi_label", 40, (301,))
    for split in (shards.train, shards.val, shards.test):
        x, y = split.x.numpy(), split.y.numpy()
        assert np.all(x[:, 0] == 1) and set(np.unique(y)) == {0, 1}
        assert y.sum(axis=1).min() >= 1 and y.sum(axis=1).max() <= 5
        shares = x[:, 1:]
        # Words beyond the vocabulary are in the length and in no column.
        assert np.all(shares.sum(axis=1) <= 1 + 1e-12) and shares.sum() < 0.999 * len(x)
    own = shards.train.y.reshape(4, 60, 40).any(1)
    assert torch.equal(own, own | shards.test.y.reshape(4, 30, 40).any(1))
    plain = dataset_of(
        "tags", 4, vocabulary=300, tags=40, n_train=60, n_val=20, n_test=30, intercept=False
    ).load(np.arange(4), torch.float64)
    assert torch.equal(plain.train.x, shards.train.x[:, 1:])


def test_sources_of_a_topic_share_tags_and_others_do_not():
    dataset = dataset_of("tags", 30, 1, vocabulary=50, tags=200, topics=5, n_train=100, n_test=10)
    shares = dataset.load(np.arange(30), torch.float64).train.y.reshape(30, 100, 200).mean(1)
    shares = (shares / shares.norm(dim=1, keepdim=True)).numpy()
    topic = np.array([dataset.topic(client) for client in range(30)])
    alike = (topic[:, None] == topic) & ~np.eye(30, dtype=bool)
    products = shares @ shares.T
    assert products[alike].mean() > 2 * products[topic[:, None] != topic].mean()


def test_tags_can_be_told_from_words():
    dataset = dataset_of("tags", 1, vocabulary=400, tags=20, topics=1, n_train=1500, n_val=0)
    shards = dataset.load(np.arange(1), torch.float64)

    def centred(split):
        return split.x - shards.train.x.mean(0), split.y - shards.train.y.mean(0)

    x, y = centred(shards.train)
    ridge = torch.linalg.solve(x.T @ x + 1.0 * torch.eye(401), x.T @ y)
    scores, _ = centred(shards.test)
    scores = scores @ ridge + shards.train.y.mean(0)
    best = scores.topk(5).indices
    recall = shards.test.y.gather(1, best).sum() / shards.test.y.sum()
    often = shards.train.y.mean(0).topk(5).indices
    assert recall > 1.3 * shards.test.y[:, often].sum() / shards.test.y.sum()


def test_workers_share_what_they_are_judged_by():
    dataset = dataset_of("tags", 6, vocabulary=60, tags=9, layout="divided", n_train=5, n_test=8)
    shards = dataset.load(np.arange(6), torch.float64)
    test = shards.test.x.reshape(6, 8, 61)
    assert torch.equal(test[0], test[1]) and torch.equal(test[3], test[5])
    assert not torch.equal(test[2], test[3])
    train = shards.train.x.reshape(6, 5, 61)
    assert not torch.equal(train[0], train[1])


FEATURES, N_TAGS = 12, 6


def contents(n_sources: int = 8, each: int = 9, seed: int = 0) -> dict[str, np.ndarray]:
    """What a user's file holds: source 10 i has feature i % 2 often; samples are mixed."""
    rng = np.random.default_rng(seed)
    client = rng.permutation(np.repeat(10 * np.arange(n_sources), each))
    x = rng.integers(0, 3, (len(client), FEATURES)).astype(float)
    x[:, 0] = np.arange(len(client))  # tells the sample
    x[np.arange(len(client)), 1 + client // 10 % 2] += 500
    tags = rng.random((len(client), N_TAGS)) < 0.4
    sparse_x, sparse_y = csr_matrix(x), csr_matrix(tags)
    return {
        "x_data": sparse_x.data,
        "x_indices": sparse_x.indices,
        "x_indptr": sparse_x.indptr,
        "x_features": np.array(FEATURES),
        "y_indices": sparse_y.indices,
        "y_indptr": sparse_y.indptr,
        "y_tags": np.array(N_TAGS),
        "client": client,
        "text": np.array(["never read"] * len(client)),
    }


def dense(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    n = len(arrays["client"])
    x = csr_matrix((arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), (n, FEATURES))
    ones = np.ones(len(arrays["y_indices"]))
    y = csr_matrix((ones, arrays["y_indices"], arrays["y_indptr"]), (n, N_TAGS))
    return x.toarray(), y.toarray()


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)
    return path


def make(path: Path, n_clients: int = 3, **options) -> Dataset:
    counts = {"n_train": 3, "n_val": 2, "n_test": 4, "kmeans_starts": 3, "kmeans_clusters": 2}
    return dataset_of("tags_file", n_clients, path=str(path), **{**counts, **options})


def sources_of(dataset: Dataset, client: np.ndarray, n_clients: int = 3) -> list[int]:
    """The source of each client; every sample must be of the same one."""
    shards = dataset.load(np.arange(n_clients), torch.float64)
    found = []
    for position in range(n_clients):
        numbers = [
            int(number)
            for split in (shards.train, shards.val, shards.test)
            for number in split.x[slice(*split.offsets[position : position + 2]), 1]
        ]
        assert len({int(client[number]) for number in numbers}) == 1
        found.append(int(client[numbers[0]]))
    return found


def test_a_file_is_dealt_as_it_stands(tmp_path: Path):
    arrays = contents()
    x, y = dense(arrays)
    path = save(tmp_path / "tags.npz", arrays)
    dataset = make(path, choose="first")
    assert sources_of(dataset, arrays["client"]) == [0, 10, 20]
    shards = dataset.load(np.arange(3), torch.float32)
    for split, each in ((shards.train, 3), (shards.val, 2), (shards.test, 4)):
        assert split.counts.tolist() == [each] * 3
        numbers = split.x[:, 1].long().numpy()
        assert np.array_equal(split.x.numpy(), np.column_stack([np.ones(len(numbers)), x[numbers]]))
        assert np.array_equal(split.y.numpy(), y[numbers]) and split.y.dtype == torch.float32
    # The same from dense features, and by its name in the directory of data.
    other = {name: values for name, values in arrays.items() if not name.startswith("x_")}
    same = make(save(tmp_path / "dense.npz", {**other, "x": x}), choose="first", intercept=False)
    assert torch.equal(same.load(np.arange(3), torch.float32).train.x, shards.train.x[:, 1:])


@pytest.mark.parametrize("embedded", [False, True])
def test_clients_are_chosen_by_kmeans(tmp_path: Path, embedded: bool):
    arrays = contents()
    if embedded:
        # By their embeddings sources 0 to 40 are of a kind, by their features every second.
        arrays["embeddings"] = np.array([[1.0, 0]] * 5 + [[0, 1.0]] * 3)
    path = save(tmp_path / "tags.npz", arrays)
    first = sources_of(make(path), arrays["client"])
    second = sources_of(make(path, cluster=1), arrays["client"])
    if embedded:
        assert (first, second) == ([0, 10, 20], [50, 60, 70])
    else:
        assert sorted([first, second]) == [[0, 20, 40], [10, 30, 50]]
    with pytest.raises(InputError, match=r"clients.*\b3 sources.*data\.path.*\b0\b.*\b9 samples"):
        make(path, cluster=2)
    with pytest.raises(InputError, match=r"clients.*\b6 sources.*data\.path.* [45] .*\b9 samples"):
        make(path, 6)


def test_sources_are_alike_by_their_rarer_features_whatever_they_write(tmp_path: Path):
    arrays = contents()
    x, _ = dense(arrays)
    source = arrays["client"] // 10
    x[:, 1:] = 0
    x[:, 3] = 100  # of all sources
    x[np.arange(len(x)), 1 + source % 2] = 100
    x *= 2.0 ** source[:, None]  # and some write far more than others
    x[:, 0] = np.arange(len(x))
    arrays = {name: values for name, values in arrays.items() if not name.startswith("x_")}
    path = save(tmp_path / "tags.npz", {**arrays, "x": x})
    chosen = [sources_of(make(path, cluster=k), arrays["client"]) for k in (0, 1)]
    assert sorted(chosen) == [[0, 20, 40], [10, 30, 50]]


def test_two_listed_sources_become_workers(tmp_path: Path):
    arrays = contents(each=20)
    arrays["held_out"] = np.arange(len(arrays["client"])) % 2 == 1
    path = save(tmp_path / "tags.npz", arrays)
    options = {"layout": "divided", "choose": "listed", "n_train": 2}
    dataset = make(path, 4, listed=[50, 20], **options)
    assert sources_of(dataset, arrays["client"], 4) == [50, 50, 20, 20]
    shards = dataset.load(np.arange(4), torch.float64)
    allowed = np.flatnonzero((arrays["client"] == 50) & ~arrays["held_out"])
    assert shards.train.x[:4, 1].tolist() == allowed[:4].tolist()
    held = np.flatnonzero((arrays["client"] == 50) & arrays["held_out"])
    for worker in (0, 1):
        assert shards.val.x[2 * worker : 2 * worker + 2, 1].tolist() == held[:2].tolist()
        assert shards.test.x[4 * worker : 4 * worker + 4, 1].tolist() == held[2:6].tolist()
    for listed in ([50], [50, 50], [], [50, 55]):
        with pytest.raises(InputError, match=rf"data\.listed.*{re.escape(str(listed))}.*\b2\b"):
            make(path, 4, listed=listed or None, **options)


def without(name: str):
    return lambda arrays: arrays.pop(name)


def put(name: str, values):
    return lambda arrays: arrays.__setitem__(name, np.asarray(values))


BAD = {
    "no clients": (without("client"), "'client'"),
    "too few clients": (put("client", [0, 0, 1]), "3 samples.*client.*72.*x"),
    "a tag too many": (put("y_tags", 5), "indices.*5"),
    "falling rows": (put("y_indptr", [0, 2, 1]), "y_indptr"),
    "not a number": (lambda a: a["x_data"].__setitem__(5, np.nan), r"\bx\b.*finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_a_sentence_that_names_it(tmp_path: Path, case: str):
    damage, message = BAD[case]
    arrays = contents()
    damage(arrays)
    path = save(tmp_path / "tags.npz", arrays)
    with pytest.raises(InputError, match=message) as refused:
        make(path, choose="first")
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
