"""What ``python -m mpifed.theory`` answers of runs, and of which it has no answer."""

from __future__ import annotations

import json

import pytest
from commands import call, rows
from flix_words import SMALL

from mpifed.launch import main
from mpifed.theory.__main__ import main as ask

EXACT = ("algorithm.local_solver=newton", "algorithm.flix_alpha=0.3")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of FLIX with exact optima."""
    target = tmp_path_factory.mktemp("theory") / "run"
    assert main([*SMALL, *EXACT, "--output", str(target)]) == 0
    return target


def answer(capfd, *words):
    capfd.readouterr()
    code = ask([str(word) for word in words])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else None, err


def test_theory_answers_of_a_run(finished, capfd):
    _, found, _ = answer(capfd, "variance", finished)
    assert found["variance_of_deployed"] == pytest.approx(found["predicted"], rel=1e-10)
    assert found["predicted"] == pytest.approx(0.49 * found["variance_of_optima"], rel=1e-12)
    said = next(r for r in (finished / "log.txt").read_text().splitlines() if "Theorem 2" in r)
    _, found, _ = answer(capfd, "rounds", finished, "--accuracy", "1e-10")
    assert f"at most {found['rounds']} rounds" in said
    rounds = found["rounds"]
    assert set(found["meaning"]) == {"rounds"}
    _, most, _ = answer(capfd, "alpha", finished, "--accuracy", "1e-10", "--rounds", rounds)
    assert set(most["meaning"]) == {"largest_equal_alpha"}
    assert most["largest_equal_alpha"] >= 0.3
    fewer = answer(capfd, "alpha", finished, "--accuracy", "1e-10", "--rounds", rounds - 1)[1]
    assert fewer["largest_equal_alpha"] < 0.3
    _, shot, _ = answer(capfd, "one-shot", finished, "--accuracy", "1e-3")
    assert shot["largest_alpha"] <= shot["largest_equal_alpha"]
    alpha = shot["largest_equal_alpha"] * (1 - 1e-9)
    found = answer(capfd, "rounds", finished, "--accuracy", "1e-3", "--alpha", alpha)[1]
    assert found["rounds"] == 1
    assert set(shot["meaning"]) == set(shot) - {"question", "accuracy", "meaning"}


def test_the_bound_of_theorem_one_is_on_the_gap_of_the_run_s_own_average(finished, tmp_path, capfd):
    bound = answer(capfd, "one-shot", finished, "--accuracy", "1")[1]["bound_for_this_run"]
    back = answer(capfd, "one-shot", finished, "--accuracy", bound)[1]
    assert back["largest_equal_alpha"] == pytest.approx(0.3, rel=1e-9)
    words = [*SMALL, *EXACT, "rounds=1", "--output", tmp_path / "one"]
    assert call(words, capfd).code == 0
    assert 0 < float(rows(tmp_path / "one")[-1]["objective_gap"]) <= bound


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("algorithm=diana compression=rand_k compression.k=2", "algorithm='diana'"),
        ("algorithm=dcgd compression=rand_k compression.k=2", "algorithm='dcgd'"),
        ("algorithm=diana", "algorithm='diana'"),
        ("compression=top_k compression.k=2", "this run has compression='top_k'"),
        ("exchange=gossip participation=0.5", "exchange='gossip' and participation=0.5"),
        ("algorithm.gradient=stochastic", "this run has algorithm.gradient='stochastic'"),
    ],
)
def test_theorem_two_answers_for_gradient_descent_alone(words, said, tmp_path, capfd):
    target = tmp_path / "run"
    done = call([*SMALL, *EXACT, "rounds=1", *words.split(), "--output", target], capfd)
    assert done.code == 0, done.err
    for question in (("rounds",), ("alpha", "--rounds", "9")):
        code, _, err = answer(capfd, question[0], target, "--accuracy", "1e-6", *question[1:])
        assert code == 2
        assert len(err.splitlines()) == 1
        assert "Theorem 2 is about gradient descent" in err
        assert said in err
    assert answer(capfd, "one-shot", target, "--accuracy", "1e-6")[0] == 0


def test_no_theorem_answers_for_constants_that_are_too_small(tmp_path, capfd):
    target = tmp_path / "run"
    words = [*SMALL, *EXACT, "algorithm.smoothness=published_code", "--output", target]
    assert call(words, capfd).code == 0
    assert "Theorem" not in (target / "log.txt").read_text()
    for question in (("rounds",), ("alpha", "--rounds", "9"), ("one-shot",)):
        code, _, err = answer(capfd, question[0], target, "--accuracy", "1e-6", *question[1:])
        assert code == 2
        assert len(err.splitlines()) == 1
        assert "algorithm.smoothness is 'published_code', whose L_i are too small" in err
    # Proposition 3 needs no L_i.
    assert answer(capfd, "variance", target)[0] == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("variance", "nowhere"), "holds no intact checkpoint"),
        (("rounds", "RUN"), "rounds needs --accuracy"),
        (("rounds", "RUN", "--accuracy", "1", "--alpha", "2"), "--alpha is 2"),
    ],
)
def test_theory_refuses_in_one_sentence(words, expected, finished, capfd):
    code, _, err = answer(capfd, *(finished if word == "RUN" else word for word in words))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert expected in err
