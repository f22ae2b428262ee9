"""What the methods of a user's algorithm return is checked; mistakes name class and method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from commands import call

from mpifed import state
from mpifed.algorithms.base import Predictor
from mpifed.algorithms.global_model.fedavg import FedAvg

WORDS = ("clients=2", "rounds=1", "data.n_test=5", "data.dimension=4", "model=linear")


class Plain(FedAvg):
    """FedAvg without options."""

    def __init__(self, model, local) -> None:
        super().__init__(model, local)


@dataclass(frozen=True)
class Kept:
    extra: torch.Tensor = state.client()


class NoState(Plain):
    """Forgets to return the state."""

    def round(self, state, clients, channel, draws):
        super().round(state, clients, channel, draws)


class NoPredictor(Plain):
    """Forgets to return the predictor."""

    def deploy(self, state, clients, draws):
        Predictor(state.model)


class Undeclared(Plain):
    """Measures what it does not declare."""

    columns = ("objective",)

    def measure(self, state, clients, exchange, draws):
        return {"objectives": 1.0}


class Grows(Plain):
    """Returns a state whose model is longer than it was."""

    def round(self, state, clients, channel, draws):
        return replace(state, model=state.model.repeat(1, 2))


class Sparse(Plain):
    """Keeps a tensor that no file can hold."""

    def init(self, clients, exchange, draws, dtype):
        return Kept(torch.eye(len(clients)).to_sparse())


WRONG = {
    NoState: "round returned NoneType; it must return FedAvgState",
    Grows: "round returned a state whose model is",
    Sparse: "extra is torch.sparse_coo",
    NoPredictor: "deploy returned NoneType; it must return a Predictor",
    Undeclared: "measure returned ['objectives']; columns declares objective",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_result_names_class_and_method(kind, tmp_path, capfd):
    words = [*WORDS, f"algorithm={__name__}:{kind.__name__}", "--output", tmp_path / "run"]
    done = call(words, capfd)
    assert done.code == 2, done
    (line,) = done.err.splitlines()
    assert f"algorithm '{kind.__name__}': " in line and WRONG[kind] in line
