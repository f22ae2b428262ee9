"""Every rank gets what a single process gets, by its own reading or sent by rank 0."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import dataset_of

from mpifed.dataset import Communicator, Dataset, Shards
from mpifed.errors import InputError
from mpifed.testing import run_command, world

pytestmark = pytest.mark.mpi(min_size=2)

N_CLIENTS = 11
LAUNCHER_VARIABLES = (
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
    *("PMIX_SIZE", "PMIX_RANK", "SLURM_NTASKS", "SLURM_PROCID"),
)


def hosted(communicator: Communicator, n_clients: int) -> np.ndarray:
    """The clients of this rank: blocks of unequal size, none on the last of three ranks or more."""
    hosts = max(2, communicator.size - 1)
    ends = np.linspace(0, n_clients, hosts + 1).astype(int) ** 2 // n_clients
    ends = np.append(ends, [n_clients] * communicator.size)
    return np.arange(ends[communicator.rank], ends[communicator.rank + 1])


def check(found: Shards, whole: Shards) -> None:
    for name in ("train", "val", "test"):
        part, all_of_it = getattr(found, name), getattr(whole, name)
        rows = np.concatenate(
            [
                np.zeros(0, np.int64),
                *(np.arange(*all_of_it.offsets[c : c + 2]) for c in found.client_ids),
            ]
        )
        assert torch.equal(part.x, all_of_it.x[rows])
        assert torch.equal(part.y, all_of_it.y[rows])


def check_ranks(make, communicator: Communicator) -> None:
    """``make(communicator)`` loaded over the ranks against the same in one process."""
    clients = hosted(communicator, N_CLIENTS)
    for dtype in (torch.float32, torch.float64):
        dataset = make(communicator)
        assert dataset.remarks == make(None).remarks
        found = dataset.load(clients, dtype)
        assert np.array_equal(found.client_ids, clients)
        check(found, make(None).load(np.arange(N_CLIENTS), dtype))
    covered = communicator.sum(np.bincount(clients, minlength=N_CLIENTS).astype(np.int64))
    assert covered.tolist() == [1] * N_CLIENTS


def released(communicator: Communicator | None) -> Dataset:
    options = {"dimension": 9, "n_test": 60}
    return dataset_of("synthetic", N_CLIENTS, 0, communicator, variant="released", **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_released_data_are_sent_by_rank_0(dtype):
    communicator = world()
    alone = released(None).load(np.arange(N_CLIENTS), dtype)
    check(released(communicator).load(hosted(communicator, N_CLIENTS), dtype), alone)


@pytest.mark.parametrize("variant", ["paper", "corrected"])
def test_synthetic_data_made_by_their_owners(variant):
    communicator = world()
    check_ranks(
        lambda comm: dataset_of(
            "synthetic", N_CLIENTS, 5, comm, variant=variant, n_test=30, dimension=4
        ),
        communicator,
    )
    sent = communicator.bytes_sent  # by the sum in ``check_ranks`` alone
    communicator.sum(np.zeros(N_CLIENTS, np.int64))
    assert sent == communicator.bytes_sent - sent


def test_digits():
    check_ranks(lambda comm: dataset_of("digits", N_CLIENTS, 1, comm), world())


def test_idx_images(mpi_tmp_path: Path, write_idx):
    communicator = world()
    if communicator.rank == 0:
        random = np.random.default_rng(0)
        for part, count in (
            ("train", 50_000),
            ("test", 90),
        ):  # a client has more than is sent at once
            images = random.integers(0, 256, (count, 4, 5))
            write_idx(mpi_tmp_path, part, images, random.integers(0, 3, count), (".gz", ".xz"))
    communicator.barrier()
    check_ranks(
        lambda comm: dataset_of("mnist", N_CLIENTS, 0, comm, raw=str(mpi_tmp_path)), communicator
    )


GENERATED = {
    "sine": ("sine", {"split": 4, "n_val": 2, "n_test": 5}),
    "tags": ("tags", {"vocabulary": 40, "tags": 8, "n_train": 5, "n_val": 2, "n_test": 4}),
    "poisson": ("poisson", {"n_train": 6, "n_test": 2}),
    "mixture": ("gaussian_mixture", {"n_train": 6, "n_test": 2, "sharding": "sorted"}),
    "dictionary": ("dictionary", {"samples": 80, "dim": 5}),
    "copies": ("dictionary", {"samples": 9, "variant": "homogeneous"}),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_data(name: str):
    component, options = GENERATED[name]
    communicator = world()
    check_ranks(lambda comm: dataset_of(component, N_CLIENTS, 2, comm, **options), communicator)
    made = dataset_of(component, N_CLIENTS, 2, **options)
    if made.fresh is None:
        return
    clients = hosted(communicator, N_CLIENTS)
    whole = made.fresh(np.arange(N_CLIENTS), 3, 4)
    found = dataset_of(component, N_CLIENTS, 2, communicator, **options).fresh(clients, 3, 4)
    assert torch.equal(found.x, whole.x.reshape(N_CLIENTS, 4, -1)[clients].flatten(0, 1))


@pytest.mark.parametrize("partition", ["contiguous", "kmeans"])
def test_a_libsvm_file_that_only_rank_0_has(mpi_tmp_path: Path, partition):
    communicator = world()
    path = mpi_tmp_path / "file.xz"
    if communicator.rank == 0:
        random = np.random.default_rng(0)
        lines = [f"{i % 2} 1:{i} 2:{random.normal()!r} 4:1" for i in range(101)]
        path.write_bytes(lzma.compress("\n".join(lines).encode()))
    communicator.barrier()
    options = {"partition": partition, "test_fraction": 0.3}
    whole = dataset_of("libsvm", N_CLIENTS, path=str(path), **options)
    where = str(path) if communicator.rank == 0 else "/nowhere/at/all"
    found = dataset_of("libsvm", N_CLIENTS, 0, communicator, path=where, **options)
    for name in ("n_train", "n_test"):
        assert np.array_equal(getattr(found.description, name), getattr(whole.description, name))
    loaded = found.load(hosted(communicator, N_CLIENTS), torch.float64)
    check(loaded, whole.load(np.arange(N_CLIENTS), torch.float64))


def test_ratings(mpi_tmp_path: Path):
    communicator = world()
    path = mpi_tmp_path / "ratings.dat"
    if communicator.rank == 0:
        stars = np.random.default_rng(0).integers(0, 6, (60, 8))
        lines = [f"{u + 1}::{m + 1}::{stars[u, m]}::0" for u, m in np.argwhere(stars)]
        path.write_text("\n".join(lines))
    communicator.barrier()
    options = {"path": str(path), "users": 50, "movies": 7}
    check_ranks(lambda comm: dataset_of("ratings", N_CLIENTS, 1, comm, **options), communicator)


@pytest.mark.parametrize("layout", ["natural", "divided"])
def test_a_file_of_tags(mpi_tmp_path: Path, layout):
    communicator = world()
    path = mpi_tmp_path / "tags.npz"
    if communicator.rank == 0:
        random = np.random.default_rng(0)
        client = random.permutation(np.repeat(np.arange(14), 40))
        np.savez(
            path,
            x=random.normal(size=(len(client), 5)),
            y_indices=random.integers(0, 6, len(client)),
            y_indptr=np.arange(len(client) + 1),
            y_tags=6,
            client=client,
        )
    communicator.barrier()
    options = {"choose": "first", "layout": layout, "sources": 1, "n_val": 2, "n_test": 3}
    options |= {"path": str(path), "n_train": 3}
    check_ranks(lambda comm: dataset_of("tags_file", N_CLIENTS, 1, comm, **options), communicator)


def write_file(path: Path, name: str, dtype: str, **options) -> None:
    """The federated file of a data set, written by a process that no launcher started."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    words += ["--clients", N_CLIENTS, "--seed", 1, "--dtype", dtype, "--output", path]
    with pytest.MonkeyPatch.context() as patch:
        for variable in LAUNCHER_VARIABLES:
            patch.delenv(variable, raising=False)
        assert run_command(["data", name, *words]) == 0


@pytest.mark.parametrize("task", ["multi_label", "regression", "unlabelled"])
def test_a_federated_file_of_any_task(mpi_tmp_path: Path, task):
    communicator = world()
    path = mpi_tmp_path / "file.h5"
    name = {"multi_label": "tags", "regression": "sine", "unlabelled": "mixture"}[task]
    component, options = GENERATED[name]
    made = dataset_of(component, N_CLIENTS, 1, **options)
    if communicator.rank == 0:
        write_file(path, component, "float64", **options)
    communicator.barrier()
    found = dataset_of("federated", N_CLIENTS, 0, communicator, path=str(path))
    assert found.description.task == task
    shards = found.load(hosted(communicator, N_CLIENTS), torch.float64)
    check(shards, made.load(np.arange(N_CLIENTS), torch.float64))


def test_a_federated_file(mpi_tmp_path: Path):
    communicator = world()
    path = mpi_tmp_path / "digits.h5"
    digits = dataset_of("digits", N_CLIENTS, 1, partition="iid")
    if communicator.rank == 0:
        write_file(path, "digits", "float32", partition="iid")
    communicator.barrier()
    found = dataset_of("federated", N_CLIENTS, 0, communicator, path=str(path))
    shards = found.load(hosted(communicator, N_CLIENTS), torch.float32)
    check(shards, digits.load(np.arange(N_CLIENTS), torch.float32))


def test_bad_input_is_the_same_sentence_on_every_rank(mpi_tmp_path: Path):
    communicator = world()
    # Only rank 0 looks, so that ranks without the file do not wait for those with it.
    path = str(mpi_tmp_path / "nowhere.h5") if communicator.rank == 0 else "/another/place.h5"
    with pytest.raises(InputError, match=r"nowhere\.h5"):
        dataset_of("federated", 3, 0, communicator, path=path)
    with pytest.raises(InputError, match=r"data\.raw.*/nowhere/at/all"):
        dataset_of("mnist", 3, 0, communicator, raw="/nowhere/at/all")
