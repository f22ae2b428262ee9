"""Published files and own arrays on ranks: only rank 0 reads, and every rank gets its clients'."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from loading import dataset_of
from published import emnist_files, write_cifar_10, write_cifar_100
from test_data_leaf import femnist_users, leaf_file
from test_data_pictures import drawings, zipped
from test_data_ranks import N_CLIENTS, check_ranks
from test_data_texts import play_of

import mpifed
from mpifed.dataset import Communicator
from mpifed.errors import InputError
from mpifed.testing import load_dataset, world

pytestmark = pytest.mark.mpi(min_size=2)

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(150, 3)), RANDOM.integers(0, 3, 150)


def write_cifar(folder: Path) -> None:
    write_cifar_10(folder / "ten")
    write_cifar_100(folder / "hundred")


def write_emnist(folder: Path) -> None:
    files, _, _ = emnist_files("byclass", 62)
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def write_leaf(folder: Path) -> None:
    users, _, _ = femnist_users({f"w{i:02}": 6 + i for i in range(14)})
    (folder / "all.json").write_text(leaf_file(users))


def write_omniglot(folder: Path) -> None:
    files, *_ = drawings("images_background", {"Greek": 4, "Tagalog": 3}, drawers=12)
    zipped(files, folder / "images.zip")


def write_own(folder: Path) -> None:
    np.savez(folder / "own.npz", x=X, y=Y, who=np.arange(150) % 12)
    rows = [",".join(map(str, (*row, label))) for row, label in zip(X.tolist(), Y, strict=True)]
    (folder / "own.csv").write_text("\n".join(["a,b,c,label", *rows]))
    texts = [f"{'so ' * n}{'good' if n % 2 else 'bad'},{n % 2},{n % 12}" for n in range(150)]
    (folder / "texts.csv").write_text("\n".join(["text,label,who", *texts]))


CASES = {
    "cifar10": (write_cifar, "cifar10", {"raw": "ten", "partition": "quantity_skew"}),
    "cifar100": (write_cifar, "cifar100", {"raw": "hundred", "rotations": [0.0, 90.0]}),
    "emnist": (write_emnist, "emnist", {"raw": ".", "fraction": 0.7}),
    "femnist": (write_leaf, "femnist", {"raw": "."}),
    "omniglot": (write_omniglot, "omniglot", {"raw": ".", "size": 20, "rotation_spread": 30.0}),
    "npz": (write_own, "npz", {"path": "own.npz", "client": "who", "partition": "natural"}),
    "csv": (write_own, "csv", {"path": "own.csv", "partition": "dirichlet", "standardise": True}),
    "labelled texts": (write_own, "labelled_texts", {"path": "texts.csv", "client": "who"}),
    "shakespeare": (
        lambda folder: (folder / "play.txt").write_text(play_of([150 + 9 * i for i in range(13)])),
        "shakespeare",
        {"path": "play.txt", "sequence_length": 7, "stride": 3},
    ),
    "every position": (
        lambda folder: (folder / "play.txt").write_text(play_of([150 + 9 * i for i in range(13)])),
        "shakespeare",
        {"path": "play.txt", "sequence_length": 7, "stride": 3, "targets": "every"},
    ),
    "a fraction of a text": (
        lambda folder: (folder / "play.txt").write_text(play_of([250 + 9 * i for i in range(13)])),
        "shakespeare",
        {"path": "play.txt", "sequence_length": 7, "fraction": 0.5},
    ),
    "tokens": (
        lambda folder: (folder / "play.txt").write_text(play_of([150 + 9 * i for i in range(13)])),
        "text",
        {"path": "play.txt", "layout": "roles", "sequence_length": 7},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_published_files(mpi_tmp_path: Path, case: str):
    write, name, options = CASES[case]
    communicator = world()
    if communicator.rank == 0:
        write(mpi_tmp_path)
    communicator.barrier()
    where = "raw" if "raw" in options else "path"

    def make(used: Communicator | None):
        # Ranks but the first look in vain, unless they are alone.
        seen = used is None or used.rank == 0
        place = str(mpi_tmp_path / options[where]) if seen else "/nowhere/at/all"
        return dataset_of(name, N_CLIENTS, 3, used, **{**options, where: place})

    check_ranks(make, communicator)


def test_rotations_do_not_depend_on_ranks():
    options = {"rotations": [0.0, 45.0], "rotation_spread": 10.0, "partition": "quantity_skew"}
    check_ranks(lambda comm: dataset_of("digits", N_CLIENTS, 1, comm, **options), world())


def test_own_arrays_and_those_that_only_rank_0_has(mpi_tmp_path: Path):
    communicator = world()
    data = mpifed.arrays(X, Y, clients=np.arange(150) % N_CLIENTS)
    check_ranks(lambda comm: load_dataset(data, N_CLIENTS, seed=1, communicator=comm), communicator)


def test_samples_in_place_of_a_section_on_one_rank_are_refused_on_all(mpi_tmp_path: Path):
    communicator = world()
    last = communicator.rank == communicator.size - 1
    data = X if last else mpifed.arrays(X, Y)
    with pytest.raises(
        InputError, match=rf"rank {communicator.size - 1}: .*mpifed\.arrays\(x, y\)"
    ):
        mpifed.run("digits-fedem", data=data, clients=3, rounds=1, output=mpi_tmp_path / "run")
    assert not (mpi_tmp_path / "run").exists()


def test_other_arrays_on_one_rank_are_refused_on_all(mpi_tmp_path: Path):
    communicator = world()
    own = X + (communicator.rank == communicator.size - 1)
    data = mpifed.arrays(own, Y)
    digest = communicator.broadcast_object(data["digest"])
    with pytest.raises(InputError, match=rf"rank {communicator.size - 1}\b.*arrays"):
        of_rank_0 = {**data, "digest": digest}
        load_dataset(of_rank_0, N_CLIENTS, seed=1, communicator=communicator)
    options = {"clients": communicator.size, "rounds": 1, "output": mpi_tmp_path / "run"}
    with pytest.raises(InputError, match=r"arrays.*rank 0\b"):
        mpifed.run("digits-fedem", data=data, **options)
    assert not (mpi_tmp_path / "run").exists()


def test_a_run_on_own_arrays_is_the_same_on_any_ranks(mpi_tmp_path: Path):
    communicator = world()
    data = mpifed.arrays(X, Y, clients=np.arange(150) % 7)
    options = {"data": data, "clients": 7, "rounds": 2, "evaluation.every": 1, "quiet": True}
    digests = [mpifed.run("digits-fedem", output=mpi_tmp_path / "many", **options).summary]
    if communicator.rank == 0:
        from mpi4py import MPI

        alone = {**options, "comm": MPI.COMM_SELF, "output": mpi_tmp_path / "one"}
        digests.append(mpifed.run("digits-fedem", **alone).summary)
    assert len({summary["state_digest"] for summary in digests}) == 1
