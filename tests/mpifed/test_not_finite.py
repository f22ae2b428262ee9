"""Own components that make numbers infinite or NaN are told before round 1; a large step is not."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from commands import call
from on_ranks import SMALL, folder_of, run
from test_rehearsal import WORDS, Own

from mpifed.errors import InputError
from mpifed.exchange.aggregation import ByCoordinates
from mpifed.models.linear import Linear
from mpifed.mpi.communicator import world

NAN = float("nan")


def own(kind):
    return f"algorithm={__name__}:{kind.__name__}"


class Rounds(Own):
    """Returns a state that is not finite."""

    def round(self, state, clients, channel, draws):
        after = super().round(state, clients, channel, draws)
        return dataclasses.replace(after, model=after.model * NAN)


class Inits(Own):
    """Begins with a state that is not finite."""

    def init(self, clients, exchange, draws, dtype):
        first = super().init(clients, exchange, draws, dtype)
        return dataclasses.replace(first, model=first.model / 0)


class Recovers(Own):
    """Begins with such a state, which the first round replaces."""

    def init(self, clients, exchange, draws, dtype):
        first = super().init(clients, exchange, draws, dtype)
        self.first = first.model
        return dataclasses.replace(first, model=first.model * NAN)

    def round(self, state, clients, channel, draws):
        if draws.round == 1:
            state = dataclasses.replace(state, model=self.first)
        return super().round(state, clients, channel, draws)


class Combines(ByCoordinates):
    def combine(self, columns):
        return columns[0] * NAN


class Model(Linear):
    def shared_logits(self, parameters, x):
        return super().shared_logits(parameters, x) * NAN


def net(data):
    return torch.nn.Sequential(torch.nn.Linear(4, 1), Infinite())


class Infinite(torch.nn.Module):
    def forward(self, x):
        return x / (x.mean() * 0)


TOLD = {
    Rounds: (own(Rounds), "Rounds' (in tests/mpifed/test_not_finite.py, line 28): the first rou"),
    Inits: (own(Inits), "algorithm 'Inits': init returned a state whose model is not finite, nor "),
    Combines: (
        f"exchange.aggregator={__name__}:Combines",
        "exchange.aggregator.name is 'test_not_finite:Combines' (in tests/mpifed/test_not_finite",
    ),
    net: (
        f"model={__name__}:net",
        "model.name is 'test_not_finite:net', whose outputs for samples of the data are not finite",
    ),
}


@pytest.mark.parametrize("kind", TOLD)
def test_what_is_not_finite_is_refused_before_anything_is_written(kind, tmp_path, capfd):
    words, said = TOLD[kind]
    more = [] if "algorithm" in words else ["algorithm=fedavg"]
    outcome = call([*WORDS, words, *more, "--output", tmp_path / "run"], capfd)
    assert outcome.code == 2 and said in outcome.err, outcome.err
    assert "a smaller" not in outcome.err and not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["algorithm=fedavg", own(Own)])
def test_a_run_that_diverges_by_its_learning_rate_says_so(kind, tmp_path, capfd):
    words = [*WORDS, kind, "local.lr=1e38", "local.steps=30", "local.weight_decay=0.1"]
    outcome = call([*words, "--output", tmp_path / "run"], capfd)
    assert outcome.code == 1 and "a smaller local.lr may help" in outcome.err, outcome.err
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_state_that_the_first_round_makes_finite_is_run(tmp_path, capfd):
    words = [*WORDS, own(Recovers), "evaluation.every=3", "--output", tmp_path / "run"]
    outcome = call(words, capfd)
    assert outcome.code == 0, outcome.err


@pytest.mark.mpi
@pytest.mark.parametrize("kind", [Rounds, Inits])
def test_all_ranks_refuse_it(kind, tmp_path):
    wanted = {**SMALL, "algorithm": f"{__name__}:{kind.__name__}"}
    folder = folder_of(tmp_path)
    with pytest.raises(InputError, match="not finite"):
        run("synthetic-fedem", wanted, folder / "run", world())
    world().barrier()
    assert list(folder.iterdir()) == []
