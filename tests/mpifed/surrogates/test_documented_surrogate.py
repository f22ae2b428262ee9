"""The class in docs/surrogates.md runs, from the page as it stands, and is a surrogate."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import h5py
import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from surrogate_problems import describe, mean_statistic, mm, objective, start

from mpifed.errors import InputError
from mpifed.testing import check_surrogate, make_surrogate, run_command

PAGE = Path(__file__).parents[3] / "docs" / "surrogates.md"


@pytest.fixture
def make(monkeypatch):
    """The documented component, found by its name as a configuration would."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType("waiting")
    monkeypatch.setitem(sys.modules, "waiting", module)
    exec(compile(text, str(PAGE), "exec"), module.__dict__)

    def with_options(data, **options):
        return make_surrogate({"name": "waiting:censored_waiting", **options}, data)

    return with_options


def test_the_documented_file_of_ones_own_is_run_by_the_documented_command(
    make, tmp_path, monkeypatch, capfd
):
    text = (PAGE.parent / "data.md").read_text(encoding="utf-8")
    scripts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (script,) = (found for found in scripts if "waits.h5" in found)
    (command,) = re.findall(r"mpifed run (fedmm.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "data.md", "exec"), {})
    words = [*shlex.split(command.replace("\\\n", "")), "--output", "run"]
    assert run_command(["run", *words]) == 0, capfd.readouterr().err
    with h5py.File("waits.h5") as file, h5py.File("run/clients.h5") as learnt:
        time, seen = file["train/x"][()].mean(0)
        rate = float(learnt["learnt/parameters"][0])
    assert rate == pytest.approx(seen / (time + 0.01), rel=1e-9)
    assert f"is {rate:.4f}, the number" in text


def waits(count):
    generator = np.random.default_rng(0)
    times = generator.exponential(2.0, count)
    return torch.from_numpy(np.column_stack([np.minimum(times, 3), times < 3]))


def test_the_documented_surrogate_is_one(make):
    surrogate = make(describe(2), penalty=1e-2)
    z = waits(200)
    check_surrogate("waiting:censored_waiting", z, psi=surrogate.psi, phi=surrogate.phi)
    path = mm(surrogate, z, start(surrogate, 0), 60)
    values = [objective(surrogate, z, theta) for theta in path]
    assert (np.diff(values) <= 1e-14).all()
    closed_form = z[:, 1].sum() / (z[:, 0].sum() + 200 * 0.01)
    assert float(path[-1]) == pytest.approx(float(closed_form), abs=1e-10)
    tau = start(surrogate, 1)
    s = mean_statistic(surrogate, z, tau)
    for seed in range(2, 12):
        theta = start(surrogate, seed)
        bound = surrogate.losses(z, tau).mean() + surrogate.psi(theta) - surrogate.psi(tau)
        bound -= s @ (surrogate.phi(theta) - surrogate.phi(tau))
        assert surrogate.losses(z, theta).mean() <= bound + 1e-12
    found = minimize_scalar(lambda t: 0.01 * t - np.log(t) + float(s) * t, (0.1, 1), tol=1e-12)
    assert float(surrogate.minimiser(s)) == pytest.approx(found.x, rel=1e-6)
    assert torch.allclose(surrogate.minimiser(surrogate.surrogate_of(tau)), tau)
    parts = surrogate.statistics(z, tau, np.array([0, 1, 90, 200]))
    assert torch.equal(surrogate.statistics(z[1:90].clone(), tau, np.array([0, 89])), parts[1:2])
    with pytest.raises(InputError, match=r"censored_waiting.*\(time, seen\).*\(3,\)"):
        make(describe(3))
