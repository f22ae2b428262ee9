"""Runs that a Python program starts on several ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import user_components
from commands import environment

import mpifed
from mpifed.errors import InputError, RunError

LAUNCHER = {
    name: value for name, value in environment().items() if name.startswith(("OMPI", "PRTE"))
}
"""What Open MPI needs where ranks are more than cores, or belong to root."""

TINY = {"clients": 4, "rounds": 2, "data.n_test": 20}


def test_what_ranks_cannot_have_is_refused_before_they_start(tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "run"
    for ranks in (0, -1, 2.0, True, "2"):
        with pytest.raises(InputError, match=r"ranks is .*; it must be a whole number from 1"):
            mpifed.run(**TINY, output=place, ranks=ranks)
    with pytest.raises(InputError, match=r"numpy\.savez"):
        arrays = mpifed.arrays(np.zeros((8, 3)), np.zeros(8, int))
        mpifed.run("digits-fedem", data=arrays, clients=2, output=place, ranks=2)
    with pytest.raises(InputError, match="pass model='file:build'"):
        mpifed.run("digits-fedem", model="__main__:build", output=place, ranks=2)
    with pytest.raises(InputError, match="Unknown configuration key 'roundz'"):
        mpifed.run(roundz=3, output=place, ranks=2)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(InputError, match="itself a rank of an MPI job"):
        mpifed.run(**TINY, output=place, ranks=2)
    assert not place.exists()


@pytest.mark.slow
def test_it_is_the_run_of_one_rank(tmp_path: Path, capfd, monkeypatch) -> None:
    for name, value in LAUNCHER.items():
        monkeypatch.setenv(name, value)
    alone = mpifed.run(**TINY, output=tmp_path / "one")
    several = mpifed.run(**TINY, output=tmp_path / "two", ranks=2)
    assert several.status == "finished" and several.summary["ranks"] == 2
    assert several.summary["state_digest"] == alone.summary["state_digest"]
    assert capfd.readouterr().out == ""
    with pytest.raises(InputError, match="already holds a run"):
        mpifed.run(**TINY, output=tmp_path / "two", ranks=2)
    longer = {**TINY, "rounds": 3}
    again = mpifed.run(**longer, output=tmp_path / "two", ranks=2, resume=True, quiet=False)
    assert again.summary["rounds"] == 3 and "round 3/3" in capfd.readouterr().out


@pytest.mark.slow
def test_a_failure_on_a_rank_is_raised(tmp_path: Path, monkeypatch) -> None:
    for name, value in (LAUNCHER | {"FAIL": "mistake:1:2"}).items():
        monkeypatch.setenv(name, value)
    said = r"^rank 1 on .*: algorithm '.*:Fails', round 2: ValueError: the user's mistake"
    with pytest.raises(RunError, match=said):
        mpifed.run(**TINY, algorithm=user_components.Fails, output=tmp_path / "x", ranks=2)
