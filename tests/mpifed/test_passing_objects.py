"""Functions, classes and other objects that a Python program passes to ``mpifed.run``."""

from __future__ import annotations

import functools
import subprocess
import sys

import mistaken_modules as modules
import pytest

import mpifed
from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.errors import InputError

SMALL = {"clients": 3, "rounds": 1}


def test_functions_and_classes_stand_for_their_names(tmp_path):
    objects = {"model": modules.Net, "algorithm": FedAvg}
    names = {
        "model": "mistaken_modules:Net",
        "algorithm": "mpifed.algorithms.global_model.fedavg:FedAvg",
    }
    for words, folder in ((objects, "objects"), (names, "names")):
        mpifed.run("digits-fedem", output=tmp_path / folder, **SMALL, **words)
    one, other = (
        (tmp_path / folder / "config.yaml").read_text() for folder in ("objects", "names")
    )
    assert one == other and "mistaken_modules:Net" in one


def test_an_option_beside_a_function(tmp_path):
    model = {"name": modules.lazy_in_double}
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **SMALL, model=model)
    assert result.status == "finished"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", modules.THE_MODULE, "one torch module, a Sequential.*def build\\(data\\)"),
        ("model", lambda data: None, "model is a lambda, which a configuration cannot name"),
        ("model", functools.partial(modules.Net), "keyword-only parameters are its options"),
        ("algorithm", mpifed.load, "load', which is not derived from"),
    ],
)
def test_other_objects_and_texts_are_refused(key, value, words, tmp_path):
    with pytest.raises(InputError, match=words):
        mpifed.run("digits-fedem", output=tmp_path / "run", **{**SMALL, key: value})
    assert not (tmp_path / "run").exists()


PROGRAM = """
from torch import nn
import mpifed

def net(data, *, width: int = 8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

result = mpifed.run("digits-fedem", output="run", clients=3, rounds=1, model=net)
assert mpifed.load("run").components[0][1].weight.shape == (8, 64)
"""


@pytest.mark.slow
def test_a_program_may_pass_its_own_function(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "__main__:net" in (tmp_path / "run" / "config.yaml").read_text()


def test_what_is_no_path_is_refused_in_a_sentence():
    with pytest.raises(InputError, match=r"^output is .*; it must be a path"):
        mpifed.run(output=b"x")
    with pytest.raises(InputError, match=r"^run is 5; it must be a path"):
        mpifed.load(5)
