from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from mpifed.data.sources.ratings import Ratings, at_random, matrix, most_rated, parse
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
    users, movies = most_rated(table, 3, 2)
    assert movies.tolist() == [7, 9]
    # Among these movies users 1 and 3 have two ratings, 5 and 12 one.
    assert users.tolist() == [1, 3, 5]
    assert matrix(table, users, movies).tolist() == [[4, 3], [5, 2], [0, 4]]
    assert most_rated(table, 1, 3)[1].tolist() == [4, 7, 9]
    assert most_rated(table, 1, 3)[0].tolist() == [3]


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
        users, movies = at_random(table, 2, 2, np.random.default_rng(seed))
        assert set(users) <= {1, 3, 5, 12} and set(movies) <= {4, 5, 7, 9}
        assert (matrix(table, users, movies) > 0).any(axis=1).all()
        again = at_random(table, 2, 2, np.random.default_rng(seed))
        assert np.array_equal(users, again[0]) and np.array_equal(movies, again[1])
    train = make(small, users=2, movies=2, choose="random", seed=5)
    same = make(small, users=2, movies=2, choose="random", seed=5)
    rows = [one.load(np.arange(2), torch.float64).train.x for one in (train, same)]
    assert torch.equal(*rows)


def test_the_file_is_found_in_the_directory_of_data(small: Path, monkeypatch):
    monkeypatch.setenv("MPIFED_DATA", str(small.parent.parent))
    small.parent.rename(small.parent.parent / "movielens")
    assert Ratings(2, 0, Alone(), users=3, movies=2).description.n_train.sum() == 3


BAD = {
    "three fields": ("1::2::3::4\n1::2::3\n", "columns changed"),
    "six stars": ("1::2::3::4\n2::2::6::4\n", "2.0, 2.0, 6.0"),
    "half a movie": ("1::2.5::3::4\n", "1.0, 2.5, 3.0"),
    "rated twice": ("1::2::3::4\n1::3::3::4\n1::2::4::5\n", "rates twice"),
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


@pytest.mark.parametrize("choose", ["most_rated", "random"])
def test_more_than_there_is_is_refused(small: Path, choose: str):
    with pytest.raises(InputError, match=r"data\.movies is 5, but .* only 4"):
        make(small, users=2, movies=5, choose=choose)
    with pytest.raises(InputError, match=r"data\.users is 6, but .* only 4"):
        make(small, users=6, movies=4, choose=choose)
    with pytest.raises(InputError, match="clients is 4, but 3 samples"):
        make(small, 4, users=3, movies=4, choose=choose)
