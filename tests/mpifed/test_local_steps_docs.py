"""What docs/local_steps.md says is so, and its method is the published one."""

from __future__ import annotations

import re

import pytest
import torch
from commands import call
from documented_methods import TEXT, Scaffold, after, path_of
from on_ranks import same_after_a_resume, unlike_one_rank

from mpifed.algorithms.global_model.scaffold import Scaffold as ShippedScaffold
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.mlp import mlp

COUNTS = [37, 9, 20]
RUN = ("digits-fedem", "clients=4", "rounds=3", "local.momentum=0.9", "model=mlp")
SMALL = {"clients": 5, "rounds": 4, "checkpoint.every": 2, "participation": 0.6}
CASES = {
    "scaffold": {
        "algorithm.name": path_of(Scaffold),
        "model.name": "network_modules:cnn",
        "model.norm": True,
        "participation": {"name": "stragglers", "rate": 0.5, "late": "partial"},
    },
}


def solver_of(model, **options) -> LocalSolver:
    return LocalSolver(model, LocalOptions(**options), 10, max(COUNTS), torch.device("cpu"))


def test_the_table_has_every_option_and_its_default():
    found = dict(re.findall(r"^\| `(\w+)` \| `?([\w.-]+)`? \|", TEXT, re.MULTILINE))
    written = {"None": "null", "True": "true", "False": "false"}
    wanted = {k: written.get(str(v), str(v)) for k, v in vars(LocalOptions()).items()}
    assert {key: found.get(key) for key in wanted} == wanted


def test_the_shipped_method_gives_the_same_numbers(make_clients):
    clients, description = make_clients(COUNTS, (6,), 4)
    model = mlp(description)
    solver = solver_of(model, batch_size=8, epochs=2, weight_decay=0.1)
    written = after(Scaffold(model, solver, server_lr=0.8), clients, 3, torch.float64)
    built_in = after(ShippedScaffold(model, solver, server_lr=0.8), clients, 3, torch.float64)
    assert torch.equal(written.model, built_in.model)


def test_a_head_that_the_model_lacks_is_refused(tmp_path, capfd):
    words = ["algorithm.head=[layer.1]", "--output", tmp_path / "run"]
    done = call([*RUN, "algorithm.name=fedrep", *words], capfd)
    assert done.code == 2 and "algorithm.head has 'layer.1'" in done.messages[0]
    assert "did you mean 'layers.1'?" in done.messages[0]
    assert not (tmp_path / "run").exists()


def test_scaffold_refuses_momentum(tmp_path, capfd):
    done = call([*RUN, f"algorithm.name={path_of(Scaffold)}", "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and "local.momentum 0" in done.messages[0]


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_files_do_not_depend_on_the_number_of_ranks(case, tmp_path):
    assert unlike_one_rank({**SMALL, **CASES[case]}, tmp_path, "digits-fedem") == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume({**SMALL, **CASES[case]}, tmp_path, "digits-fedem", rounds=4)
