"""Runs that are loaded from their directory alone, where their data are no longer at hand."""

from __future__ import annotations

import gc
import sys

import h5py
import numpy as np
import pytest
import torch

import mpifed
from mpifed.checkpoint import integrity as seal
from mpifed.errors import InputError

OWN = """
from mpifed.data.sources.digits import Digits
class Own(Digits):
    pass
"""


def drawn(n=60):
    return np.random.default_rng(0).normal(size=(n, 4))


def run_of_arrays(folder, x, **options):
    data = mpifed.arrays(x, (x[:, 0] > 0).astype(int))
    small = {"clients": 3, "rounds": 1, "model": "linear", **options}
    return mpifed.run("digits-fedem", output=folder, data=data, **small)


def test_models_are_loaded_without_the_data_and_samples_with_them(tmp_path):
    folder, x = tmp_path / "run", drawn()
    run_of_arrays(folder, x)
    gc.collect()
    trained = mpifed.load(folder)
    assert trained.client(0)(torch.zeros(2, 4)).shape == (2, 1)
    assert len(trained.components) == 3 and trained.state_dict()
    words = (
        r"of '.*run' cannot be loaded: data.name is 'arr.*; call data = mpifed.arrays.*, keep data"
    )
    with pytest.raises(InputError, match=words):
        trained.samples(0)
    again = mpifed.arrays(x, (x[:, 0] > 0).astype(int))
    assert mpifed.load(folder).samples(0).test.x.shape[1:] == (4,)
    assert again["name"] == "arrays"


def test_what_is_loaded_is_the_same_without_the_data(tmp_path):
    folder, x = tmp_path / "run", drawn()
    result = run_of_arrays(folder, x, **{"evaluation.validation_fraction": 0.2})
    gc.collect()
    alone = mpifed.load(folder)
    data = mpifed.arrays(x, (x[:, 0] > 0).astype(int))
    beside = mpifed.load(folder)
    for client in range(3):
        samples = beside.samples(client)
        assert len(samples.train.y) == result.clients["n_train"][client] and len(samples.val.y)
        with torch.no_grad():
            found = alone.client(client)(samples.test.x), beside.client(client)(samples.test.x)
        assert torch.equal(*found)
    assert data["digest"]


def test_predictors_that_are_fitted_need_the_samples(tmp_path):
    folder = tmp_path / "run"
    run_of_arrays(folder, drawn(), algorithm="fedavg_ft")
    gc.collect()
    trained = mpifed.load(folder)
    assert len(trained.components) == 1
    with pytest.raises(InputError, match=r"cannot be loaded: data.name is 'arrays'"):
        trained.client(0)


def test_a_data_set_of_the_users_own_may_be_gone(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    (tmp_path / "own_data.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    mpifed.run("digits-fedem", output=folder, clients=3, rounds=1, data="own_data:Own")
    (tmp_path / "own_data.py").unlink()
    monkeypatch.delitem(sys.modules, "own_data")
    trained = mpifed.load(folder)
    assert trained.client(1)(torch.zeros(2, 8, 8)).shape == (2, 10)
    with pytest.raises(
        InputError,
        match="no module 'own_data'",
    ):
        trained.samples(1)


@pytest.mark.slow
def test_a_file_of_first_parameters_may_be_gone(tmp_path):
    from mpifed.components.registry import find
    from mpifed.data.base import Description

    n, weights = np.ones(1), tmp_path / "weights.pt"
    options = {"width": 0.25, "cifar_stem": True}
    network = find("model", "mobilenet_v2")(Description("", (8, 8), 10, n, n, n), **options)
    torch.save(network.state_dict(), weights)
    model = {"name": "mobilenet_v2", "weights": str(weights), **options}
    small = {"clients": 3, "rounds": 1, "algorithm": "fedavg", "model": model}
    mpifed.run("digits-fedem", output=tmp_path / "run", **small)
    before = mpifed.load(tmp_path / "run").state_dict()
    weights.unlink()
    after = mpifed.load(tmp_path / "run").state_dict()
    assert all(torch.equal(before[name], after[name]) for name in {*before, *after})


def changed(folder, change):
    """The run's only checkpoint with another group of data, sealed again."""
    (path,) = (folder / "checkpoints").glob("*.h5")
    with h5py.File(path, "r+") as file:
        change(file["meta"])
    seal.seal(path)


def test_checkpoints_of_earlier_versions_need_the_data(tmp_path):
    folder, x = tmp_path / "run", drawn()
    run_of_arrays(folder, x)
    gc.collect()
    changed(folder, lambda meta: meta.pop("data"))
    with pytest.raises(InputError, match=r"which cannot be loaded: data.name is 'arrays', but"):
        mpifed.load(folder)
    data = mpifed.arrays(x, (x[:, 0] > 0).astype(int))
    assert mpifed.load(folder).client(0)(torch.zeros(2, 4)).shape == (2, 1)
    assert data["digest"]


@pytest.mark.parametrize(
    "name, value",
    [("n_test", [1, -2, 3])],
)
def test_descriptions_that_no_run_writes_are_refused(tmp_path, name, value):
    run_of_arrays(tmp_path / "run", drawn())

    def change(meta):
        del meta["data"][name]
        meta["data"][name] = np.array(value)

    changed(tmp_path / "run", change)
    with pytest.raises(InputError, match=r"no description of a data set|no numbers of samples"):
        mpifed.load(tmp_path / "run")


def test_other_samples_than_the_runs_are_refused(tmp_path):
    mpifed.run("digits-fedem", output=tmp_path / "run", clients=3, rounds=1)

    def change(meta):
        meta["data"]["n_train"][0] += 1

    changed(tmp_path / "run", change)
    trained = mpifed.load(tmp_path / "run")
    with pytest.raises(InputError, match="not those of the run: they differ in n_train"):
        trained.samples(0)
