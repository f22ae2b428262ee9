"""Base classes of components: what a user's own class must be."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest
import torch
from mypy import api

from mpifed.components.registry import find
from mpifed.components.tables import EXCHANGES
from mpifed.config.configuration import resolve
from mpifed.errors import InputError
from mpifed.exchange.base import Channel, Exchange, ServerChannel
from mpifed.models.base import Model
from mpifed.mpi.communicator import Alone
from mpifed.training.build import make
from mpifed.training.engine import Clock, Engine
from mpifed.training.samples import samples_of


def run_of(**sections):
    data = {"name": "synthetic", "n_test": 5, "dimension": 4}
    return make(resolve({"clients": 2, "data": data, **sections}), Alone(), 1)


def number(data):
    return 3


def incomplete(data):
    """A class that is not derived from Model, though it has its methods."""
    return dataclasses.make_dataclass("Own", [("n_parameters", int)])(2)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("number", "gives a int, but"),
        ("incomplete", "gives a Own, but"),
        ("mpifed.models.base:none", "gives a NoModel, but algorithm 'fedavg' needs a Model"),
    ],
)
def test_a_model_must_be_one_that_the_algorithm_trains(model, words):
    name = model if ":" in model else f"{__name__}:{model}"
    with pytest.raises(InputError, match=words):
        run_of(model=name, algorithm="fedavg")


def module(data):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1))


def test_a_torch_module_is_a_model():
    assert isinstance(run_of(model=f"{__name__}:module", algorithm="fedavg").model, Model)


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_channel_of_an_exchange_has_send_only_if_there_is_a_server(name):
    found = find("exchange", name)
    channel = typing.get_type_hints(found.at)["return"]
    assert issubclass(found, Exchange) and issubclass(channel, Channel)
    assert issubclass(channel, ServerChannel) == (name == "server") == hasattr(channel, "send")


def test_the_method_in_the_readme_is_fedavg(tmp_path, monkeypatch):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = (
        block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "Mine" in block
    )
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    def digest(algorithm):
        setup = run_of(algorithm=algorithm, participation=0.5)
        engine = Engine(setup, samples_of(setup), Clock())
        engine.advance()
        return engine.digest()

    assert digest("mine:Mine") == digest("fedavg")


@pytest.mark.slow
def test_mypy_refuses_a_method_for_gossip_that_sends(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text(
        "from typing import Any\n"
        "from mpifed.exchange.base import Channel, ServerChannel\n"
        "def right(channel: ServerChannel, rows: Any) -> None:\n"
        "    channel.send(rows)\n"
        "def wrong(channel: Channel, rows: Any) -> None:\n"
        "    channel.send(rows)\n"
    )
    found, _, code = api.run(["--strict", "--follow-imports=silent", str(source)])
    assert code == 1
    assert '"Channel" has no attribute "send"' in found and "mine.py:4" not in found
