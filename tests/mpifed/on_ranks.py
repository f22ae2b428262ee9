"""Runs on the ranks of this job, beside the same on one: collective, alike on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from commands import rows

import mpifed
from mpifed.testing import world

SMALL = {
    "clients": 7,
    "rounds": 4,
    "data.n_test": 40,
    "data.dimension": 30,
    "data.seed": 93,  # few samples
    "evaluation.every": 2,
    "checkpoint.every": 2,
    "local.momentum": 0.9,
    "local.batch_size": 32,
}


def run(experiment: str, overrides: dict[str, Any], output: Path, resume=False):
    """A run on this rank alone."""
    from mpi4py import MPI

    alone = MPI.COMM_SELF if world().size > 1 else None
    return mpifed.run(experiment, output=output, resume=resume, comm=alone, **overrides)


def run_on_all(experiment: str, overrides: dict[str, Any], output: Path, resume=False):
    """The run on all ranks of this job; collective."""
    return mpifed.run(experiment, output=output, resume=resume, **overrides)


def folder_of(tmp_path: Path) -> Path:
    """Rank 0's ``tmp_path``, on every rank."""
    return Path(world().broadcast_object(str(tmp_path)))


def unlike_one_rank(overrides: dict[str, Any], tmp_path: Path, experiment="synthetic-fedem"):
    """What differs between the files of a run on these ranks and on one."""
    communicator, folder, found = world(), folder_of(tmp_path), None
    run_on_all(experiment, overrides, folder / "many")
    if communicator.rank == 0:
        run(experiment, overrides, folder / "one")
        found = differences(folder / "many", folder / "one")
    return communicator.broadcast_object(found)


def unlike_one_rank_though_resumed(
    overrides: dict[str, Any], tmp_path: Path, experiment="synthetic-fedem"
) -> list[str]:
    """What differs between a run on one rank, and one on these, then on one, and on these again.

    Two ranks work at what is of one, at the same time.
    """
    communicator, folder, found = world(), folder_of(tmp_path), None
    run_on_all(experiment, {**overrides, "rounds": 2}, folder / "many")
    if communicator.rank == 0:
        run(experiment, {**overrides, "rounds": 3}, folder / "many", resume=True)
    if communicator.rank == communicator.size - 1:
        run(experiment, {**overrides, "rounds": 4}, folder / "one")
    communicator.barrier()
    run_on_all(experiment, {**overrides, "rounds": 4}, folder / "many", resume=True)
    if communicator.rank == 0:
        found = differences(folder / "many", folder / "one")
    return communicator.broadcast_object(found)


def same_after_a_resume(
    overrides: dict[str, Any], tmp_path: Path, experiment="synthetic-fedem", rounds=6
) -> bool:
    """Whether a run that one rank began and these go on with is the uninterrupted one, down to what
    was learnt.
    """
    communicator, folder, found = world(), folder_of(tmp_path), None
    whole = {**overrides, "rounds": rounds}
    if communicator.rank == 0:
        run(experiment, {**overrides, "rounds": 3}, folder / "cut")
    if communicator.rank == communicator.size - 1:
        run(experiment, whole, folder / "whole")
    communicator.barrier()
    run_on_all(experiment, whole, folder / "cut", resume=True)
    if communicator.rank == 0:
        cut, whole_one = (content(folder / name / "clients.h5") for name in ("cut", "whole"))
        found = rows(folder / "cut", 3) == rows(folder / "whole", 3) and {*cut} == {*whole_one}
        found = found and all(cut[key].tobytes() == whole_one[key].tobytes() for key in cut)
    return communicator.broadcast_object(found)


def content(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        found: dict[str, np.ndarray] = {}
        file.visititems(
            lambda name, item: (
                found.update({name: item[()]})
                if isinstance(item, h5py.Dataset) and not name.startswith("metrics")
                else None
            )
        )
    return found


def differences(many: Path, one: Path) -> list[str]:
    """What differs between two runs' files; the first may have ended with round 3 before."""
    found = [] if rows(many, 3) == rows(one, 3) else ["metrics.csv"]
    for name in ("clients.h5", "checkpoints/round-000004.h5"):
        a, b = content(many / name), content(one / name)
        found += [f"{name}: {key}" for key in {*a} ^ {*b}]
        common = {*a} & {*b}
        found += [f"{name}: {key}" for key in common if a[key].tobytes() != b[key].tobytes()]
    return found
