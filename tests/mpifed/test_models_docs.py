"""What docs/models.md says of the models is so, and its modules work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mpifed
from mpifed.dataset import alike
from mpifed.testing import make_model, names

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
PROGRAM, MODULES, LOADING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]


def test_every_model_is_in_the_table():
    assert set(names("models")) - {"resnet34"} <= {re.findall("`(.*?)`", row[0])[0] for row in ROWS}


@pytest.mark.parametrize(
    "name, shape, n_classes, options",
    [
        ("linear", (150,), 2, {}),
        ("mlp", (784,), 10, {}),
        ("cnn", (28, 28), 62, {}),
        ("cnn", (28, 28), 62, {"variant": "published"}),
        ("mobilenet_v2", (3, 32, 32), 10, {}),
        ("lstm", (80,), 80, {}),
    ],
)
def test_parameters_are_those_of_the_table(name, shape, n_classes, options):
    label = f"| `{name}`" + "".join(f", `{key}: {value}`" for key, value in options.items())
    (row,) = [row for row in ROWS if row[0] == label]
    about = alike("drawn", shape, n_classes, 2, (6, 0, 4), "classification")
    model = make_model({"name": name, **options}, about)
    assert row[1].split(" ")[0] == f"{model.n_parameters - model.n_buffers:,}"


@pytest.mark.slow
def test_the_program_of_the_page_works_and_is_short(tmp_path):
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) < 20
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    words = [sys.executable, "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, last = (float(number) for number in done.stdout.strip(" []\n").split())
    assert first < 0.4 < 0.8 < last
    assert "model: " not in (tmp_path / "runs" / "cnn" / "log.txt").read_text()


def test_the_modules_of_the_page_work(tmp_path):
    scope: dict = {"nn": torch.nn}
    exec(MODULES, scope)
    about = alike("drawn", (8, 8), 10, 2, (6, 0, 4), "classification")
    x = torch.rand(4, 8, 8)
    first = scope["Recurrent"](about)
    assert first(x).shape == (4, 10)
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    network = scope["Tuned"](about, weights=str(tmp_path / "weights.pt"))
    assert torch.equal(network.lstm.weight_hh_l0, first.lstm.weight_hh_l0)
    assert not torch.equal(network.head.weight, first.head.weight)


def test_what_was_trained_is_loaded_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"clients": 4, "rounds": 1, "data.n_test": 20, "data.dimension": 10}
    mpifed.run("synthetic-fedem", output="runs/mine", **options)
    scope: dict = {}
    exec(LOADING, scope)
    assert len(scope["outputs"]) == len(scope["samples"].y) > 0
    stored = torch.load("client.pt", weights_only=True)
    assert len(stored["weights"]) == len(scope["trained"].components) == 3
    assert list(torch.load("component.pt", weights_only=True)) == ["1.weight", "1.bias"]
