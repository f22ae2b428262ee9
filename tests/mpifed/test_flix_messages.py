"""One descent, several rules for the messages: what a rule decides, and what it does not."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from convex import ANISOTROPIC, Run, logistic, quadratics

from mpifed.algorithms.flix.dcgd import CompressedGradients, Dcgd
from mpifed.algorithms.flix.descent import Descent, stepped
from mpifed.algorithms.flix.diana import Diana, GradientDifferences
from mpifed.algorithms.flix.flix import Flix, WholeMessages
from mpifed.algorithms.flix.options import DianaState, FlixState
from mpifed.state import tensors

RULES = {Flix: WholeMessages, Dcgd: CompressedGradients, Diana: GradientDifferences}


class SteepestClient(CompressedGradients):
    """A rule of a user: the server follows the largest gradient alone."""

    def step(self, objective, state, clients, channel, draws, first):
        channel.broadcast(state.model)
        sent = channel.send(objective.gradients(state.optima, state.model[0], clients, draws))
        steepest = sent[sent.norm(dim=1).argmax()]
        return replace(state, model=stepped(state.model, float(state.step), steepest))


class Steepest(Descent):
    """The descent with it."""

    def __init__(self, model, local, **options):
        super().__init__(model, local, SteepestClient(), **options)


def test_a_fourth_rule_is_its_messages_alone():
    run = Run(Steepest, quadratics(*ANISOTROPIC), flix_alpha=1.0, start="zeros", step=0.1)
    # f_1 has its minimum at (1, 0) with curvatures 1 and 4, f_2 at (0, 2) with 3 and 1.
    x = np.zeros(2)
    for _ in range(5):
        gradients = np.array([[1, 4] * (x - [1, 0]), [3, 1] * (x - [0, 2])])
        x = x - 0.1 * gradients[np.linalg.norm(gradients, axis=1).argmax()]
        assert run.go().x == pytest.approx(x, rel=1e-12)
    assert run.server.ledger.up_floats == 5 * 2 * 2
    assert run.measured()["objective_gap"] > 0
    assert "step size 0.1" in " ".join(run.method.remarks(run.state, run.clients, run.server))


@pytest.mark.parametrize("kind", RULES)
def test_methods_differ_in_their_rule_alone(kind):
    run = Run(kind, logistic(), flix_alpha=0.6, l2=0.1)
    assert type(run.method.messages) is RULES[kind]
    own = {name for name, value in vars(kind).items() if inspect.isfunction(value)}
    assert own == {"__init__"}


def test_dianas_state_is_flixs_and_its_memories():
    plain, diana = (Run(kind, logistic(), l2=0.1) for kind in (Dcgd, Diana))
    assert type(plain.state) is FlixState
    assert type(diana.state) is DianaState
    names = [name for name, _, _ in tensors(plain.state, False)]
    assert [n for n, _, _ in tensors(diana.state, False)] == [*names, "memories", "memory"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_server_steps_in_double_precision(dtype):
    x = torch.tensor([[1.0, -3.0]], dtype=dtype)
    moved = stepped(x, 0.25, torch.tensor([4.0, 1e-12], dtype=torch.float64))
    assert moved.dtype == dtype
    assert moved[0, 0] == 0
    assert (moved[0, 1] == -3.0) == (dtype == torch.float32)
