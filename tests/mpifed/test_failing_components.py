"""A user's component that raises ends the job with one line that says where, and a traceback."""

from __future__ import annotations

import re

import pytest
import torch
from commands import call, launch
from on_ranks import unlike_one_rank

from mpifed.algorithms.global_model.fedavg import FedAvg

WORDS = ("clients=8", "rounds=3", "data.n_test=5", "data.dimension=4", "model=linear", "--quiet")


class Own(FedAvg):
    """FedAvg without options."""

    def __init__(self, model, local) -> None:
        super().__init__(model, local)


class Fails(Own):
    """Fails in the second round of the rank that hosts client 7."""

    def round(self, state, clients, channel, draws):
        if draws.round == 2 and 7 in clients.ids:
            return {}["momentum"]
        return super().round(state, clients, channel, draws)


class ReturnsNothing(Own):
    """Forgets its ``return``."""

    def round(self, state, clients, channel, draws):
        super().round(state, clients, channel, draws)


class Batches(torch.nn.Module):
    """Fails in the fourth client's first minibatch."""

    def __init__(self, data) -> None:
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(4, data.n_outputs), torch.nn.Dropout(0.5)

    def forward(self, x):
        if self.training and len(x) > 60:
            raise ValueError("too many samples")
        return self.dropout(self.layer(x))


def own(key, kind):
    return f"{key}={__name__}:{kind.__name__}"


def test_the_line_names_component_and_round_and_the_traceback_follows(tmp_path, capfd):
    done = call([*WORDS, own("algorithm", Fails), "--output", tmp_path / "run"], capfd)
    line, *traceback = done.err.splitlines()
    assert line == f"mpifed: algorithm '{__name__}:Fails', round 2: KeyError: 'momentum'"
    assert done.code == 1 and traceback[0] == "Traceback (most recent call last):"
    assert f'File "{__file__}"' in done.err and "KeyError: 'momentum'" in traceback[-2:]
    assert not (tmp_path / "run" / "DONE").exists()


def test_a_client_that_is_trained_alone_is_named(tmp_path, capfd):
    words = [*WORDS, "algorithm=fedavg", own("model", Batches), "--output", tmp_path / "run"]
    done = call(words, capfd)
    line = done.err.splitlines()[0]
    said = rf"mpifed: model '{__name__}:Batches', client \d, round 1: ValueError: too many samples"
    assert done.code == 1 and re.fullmatch(said, line), line


def test_one_rank_says_it_for_all(tmp_path):
    done = launch(2, *WORDS, own("algorithm", Fails), "--output", tmp_path / "run")
    (line,) = done.messages
    assert done.code == 1 and f"algorithm '{__name__}:Fails', round 2: KeyError" in line
    assert "rank 1 on " in line and done.err.count("Traceback (most recent call last):") == 1


def test_what_a_method_returns_wrongly_is_bad_input(tmp_path, capfd):
    done = call([*WORDS, own("algorithm", ReturnsNothing), "--output", tmp_path / "run"], capfd)
    (line,) = done.err.splitlines()
    assert done.code == 2 and line.startswith("mpifed: round 1: ") and "returned None" in line


def test_a_run_that_failed_in_its_first_round_begins_again(tmp_path, capfd, monkeypatch):
    words = [*WORDS, own("algorithm", ReturnsNothing), "--output", tmp_path / "run"]
    assert call(words, capfd).code == 2
    assert call(words, capfd).code == 2  # the directory holds a run
    monkeypatch.setitem(globals(), "ReturnsNothing", Own)
    assert call([*words, "--resume"], capfd).code == 0


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_right_method_gives_the_same_numbers_on_any_ranks(exchange, tmp_path):
    own_words = {"algorithm": f"{__name__}:Own", "exchange": exchange, "participation": 0.5}
    assert unlike_one_rank(own_words, tmp_path) == []
