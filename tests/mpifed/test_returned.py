"""What the methods of a user's algorithm return is checked; mistakes name class and method."""

from __future__ import annotations

import pytest
import torch
from commands import call

from mpifed.algorithms.base import Predictor
from mpifed.algorithms.global_model.fedavg import FedAvg

WORDS = ("clients=2", "rounds=1", "data.n_test=5", "data.dimension=4", "model=linear")


class Plain(FedAvg):
    """FedAvg without options."""

    def __init__(self, model, local) -> None:
        super().__init__(model, local)


class NoState(Plain):
    """Forgets to return the state."""

    def round(self, state, clients, channel, draws):
        super().round(state, clients, channel, draws)


class OtherState(Plain):
    """Returns the tensor of the state alone."""

    def round(self, state, clients, channel, draws):
        return super().round(state, clients, channel, draws).optimizer


class BareInit(Plain):
    """Starts from a tensor."""

    def init(self, clients, exchange, draws, dtype):
        return torch.zeros(3)


class Unprepared(Plain):
    """Forgets to return the state that it prepared."""

    def prepare(self, state, clients, exchange, draws):
        return None


class NoPredictor(Plain):
    """Forgets to return the predictor."""

    def deploy(self, state, clients, draws):
        Predictor(state.model)


class ListPredictor(Plain):
    """Deploys a list."""

    def deploy(self, state, clients, draws):
        return Predictor(state.model.tolist())


class UnmixedGate(Plain):
    """Has weights that depend on inputs, and no mixture."""

    def deploy(self, state, clients, draws):
        return Predictor(state.model, gate=lambda client, x: x)


class NoAdaption(Plain):
    """Deploys a tensor to unseen clients."""

    def adapt(self, state, clients, exchange, draws):
        return state.model


class OneRemark(Plain):
    """Says a line, not a list of them."""

    def remarks(self, state, clients, exchange):
        return "one line"


class Undeclared(Plain):
    """Measures what it does not declare."""

    columns = ("objective",)

    def measure(self, state, clients, exchange, draws):
        return {"objectives": 1.0}


class WordMeasure(Plain):
    """Measures a word."""

    columns = ("objective",)

    def measure(self, state, clients, exchange, draws):
        return {"objective": "small"}


class TextPayload(Plain):
    """Says in words how much it sends."""

    def payload(self):
        return "much"


class ListLearnt(Plain):
    """Has learnt a list."""

    def learnt(self, state, exchange):
        return [state.model]


WRONG = {
    NoState: "round returned None; it must return a state as it was given, of FedAvgState",
    OtherState: "round returned a SgdState; it must return a state as it was given, of FedAvgState",
    BareInit: "returned a Tensor; it must return a state, which is a dataclass (mpifed.state)",
    Unprepared: "prepare returned None; it must return a state as it was given, of FedAvgState",
    NoPredictor: "deploy returned None; it must return a mpifed.algorithms.base.Predictor",
    ListPredictor: "returned a list; it must return a Predictor whose parts are tensors",
    UnmixedGate: "it must return a Predictor whose gate is a function, with a mixture beside it",
    NoAdaption: "returned a Tensor; it must return a mpifed.algorithms.base.Predictor",
    OneRemark: "remarks returned 'one line' (str); it must return a list of strings",
    Undeclared: "measure returned the column 'objectives', which columns does not declare; "
    "did you mean 'objective'?",
    WordMeasure: "measure returned 'small' (str); it must return a number or None for objective",
    TextPayload: "payload returned 'much' (str); it must return a whole number, at least 0",
    ListLearnt: "returned a list; it must return a mapping of names to tensors",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_result_names_class_and_method(kind, tmp_path, capfd):
    words = [*WORDS, f"algorithm={__name__}:{kind.__name__}", "--output", tmp_path / "run"]
    if kind is NoAdaption:
        words.append("evaluation.unseen_fraction=0.5")
    done = call(words, capfd)
    assert done.code == 2, done
    (line,) = done.err.splitlines()
    assert f"algorithm '{kind.__name__}': " in line and WRONG[kind] in line
