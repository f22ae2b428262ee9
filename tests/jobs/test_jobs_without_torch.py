"""The command imports no torch, whatever it does and whatever an experiment names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from mpifed.components.without_torch import without_torch

from mpifed.config.experiments import experiment_names
from mpifed.jobs.__main__ import main

PROGRAM = """
import sys
from mpifed.jobs.__main__ import main
codes = [main(["render", name, "job.ranks=4", "--output", "/nowhere/run"]) for name in sys.argv[1:]]
codes.append(main(["check", "synthetic-fedem", "job.ranks=4", "--output", "/tmp/nowhere/run"]))
codes.append(main(["status", "/nowhere/run"]))
print(codes, [name for name in sys.modules if name.partition(".")[0] == "torch"], file=sys.stderr)
import mpifed.algorithms.fedem.fedem
print(sys.modules["torch"].ones(2).sum().item(), file=sys.stderr)
"""


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_jobs_render_shipped_experiments_without_torch(every, capsys):
    names = experiment_names()[::every]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    *_, said, after = done.stderr.splitlines()
    codes, _, modules = said.rpartition("] ")
    assert modules == "[]", done
    found = codes.lstrip("[").split(", ")
    assert found[: len(names)] == ["0"] * len(names)
    assert found[-1] == "2"
    # What is imported later has torch itself.
    assert after == "2.0"
    # And nothing is rendered in another way.
    capsys.readouterr()
    assert main(["render", names[0], "job.ranks=4", "--output", "/nowhere/run"]) == 0
    assert capsys.readouterr().out in done.stdout


CALLS = """
from mpifed.components.without_torch import with_torch, without_torch
with without_torch():
    import torch
    from torch.nn import functional
    class Net(torch.nn.Module): pass
    print(Net.__mro__ == (Net, object), torch.Tensor | None, functional.relu is not None)
    try:
        torch.ones(3)
    except RuntimeError as error:
        print(error)
    with_torch()
    import torch
    print(torch.ones(3).sum().item())
"""


def test_a_stand_in_computes_nothing():
    done = subprocess.run(
        [sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=60, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert first.startswith("True ") and first.endswith(" True")
    assert second == "torch.ones is called by a command that does not import torch"
    assert third == "3.0"


def test_torch_that_is_there_is_not_replaced():
    torch = pytest.importorskip("torch")
    with without_torch():
        assert sys.modules["torch"] is torch


@pytest.mark.parametrize("words", [["list"], ["show", "ring:n=4"]])
def test_topologies_import_no_torch(words):
    program = (
        "import sys; from topologies.__main__ import main; main(sys.argv[1:]); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"


OWN = """
import sys
from mpifed.jobs.__main__ import main
words = ["render", "algorithm=mine:Mine", "job.ranks=2", "job.time=2:00:00"]
words += ["--output", "/nowhere/run"]
print([main(words) for _ in range(2)], file=sys.stderr)
"""


def test_a_user_s_module_has_torch_itself(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom mpifed.algorithms.global_model.fedavg import FedAvg\n"
        "assert torch.ones(2).sum() == 2\nclass Mine(FedAvg):\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", OWN],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stderr == "[0, 0]\n", done.stderr
