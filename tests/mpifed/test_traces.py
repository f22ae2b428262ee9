"""Availability of devices from a file: who takes part is what the file says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import OPEN_MPI, mpirun
from hypothesis import given, settings
from hypothesis import strategies as st

import mpifed
from mpifed.errors import InputError
from mpifed.testing import run_command

SMALL = {"clients": 4, "rounds": 6, "evaluation.every": 1, "algorithm": "fedavg"}
THERE = [{0, 1, 2}, {0, 1}, {0, 1}, {0}, {0, 2}, {0, 2, 3}]  # in rounds 1 to 6
FROM_TO = "client,from,to\n0,1,\n1,1,3\n2,1,1\n2,5,6\n3,6,\n"
ROUNDS = "client,rounds\n0,1-\n1,3 1 2\n2,1 5-6\n3,6-\n"


def run(path: Path, text: str, **more):
    path.write_text(text)
    options = {"participation": {"name": "trace", "path": str(path)}, **SMALL, **more}
    return mpifed.run("digits-fedem", output=path.with_suffix(""), **options)


@pytest.mark.parametrize("text", [FROM_TO, ROUNDS, FROM_TO.replace(",", " , ") + "\n\n"])
def test_those_take_part_whom_the_file_has_in_a_round(text: str, tmp_path: Path):
    result = run(tmp_path / "trace.csv", text)
    assert result.metrics["active_clients"][1:].tolist() == list(map(len, THERE))


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_both_forms_give_the_same_numbers_and_a_resume_too(exchange: str, tmp_path: Path):
    one = run(tmp_path / "a.csv", FROM_TO, exchange=exchange)
    run(tmp_path / "b.csv", ROUNDS, exchange=exchange, rounds=3)
    (tmp_path / "b.csv").write_text(ROUNDS)
    options = {**SMALL, "exchange": exchange, "output": tmp_path / "b", "resume": True}
    options["participation"] = {"name": "trace", "path": str(tmp_path / "b.csv")}
    other = mpifed.run("digits-fedem", **options)
    assert one.summary["state_digest"] == other.summary["state_digest"]


def test_an_absent_client_has_no_influence(tmp_path: Path):
    alone = run(tmp_path / "a.csv", "client,rounds\n2,1-\n", seed=3)
    local = mpifed.run(
        "digits-fedem", **{**SMALL, "algorithm": "local"}, seed=3, output=tmp_path / "local"
    )
    assert alone.metrics["active_clients"][1:].tolist() == [1] * 6
    # The server's model is what the only client that takes part learns on its own.
    mine = mpifed.load(alone).client(2).state_dict()
    theirs = mpifed.load(local).client(2).state_dict()
    assert all(np.allclose(mine[name], theirs[name], atol=1e-6) for name in mine)


def test_a_period_begins_anew(tmp_path: Path):
    path = tmp_path / "trace.csv"
    participation = {"name": "trace", "path": str(path), "period": 2}
    text = "client,from,to\n0,1,2\n1,2,2\n2,1,1\n3,1,1\n"
    result = run(path, text, participation=participation)
    assert result.metrics["active_clients"][1:].tolist() == [3, 2, 3, 2, 3, 2]


WRONG = {
    "empty": ("", "first line must be client,from,to or client,rounds"),
    "other names": ("device,start\n1,2\n", "first line"),
    "no line": ("client,from,to\n", "no line"),
    "a name": ("client,from,to\nOslo,1,2\n", "line 2 .*'Oslo' as client"),
    "round 0": ("client,from,to\n0,0,2\n", "line 2 .*'0' as from.*at least 1"),
    "backwards": ("client,from,to\n0,1,\n1,5,3\n", "line 3 .* 3, before .* 5"),
    "half a line": ("client,from,to\n0,1\n", "line 2 has 2 columns, not 3"),
    "a wrong list": ("client,rounds\n0,1-2-3\n", "line 2 .*'1-2-3'"),
    "a number too many": ("client,rounds\n4,1-\n", "client 4.*clients is 4.*0 to 3"),
    "a fraction": ("client,from,to\n0,1.5,2\n", "'1.5' as from"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_malformed_file_is_refused_in_one_sentence(case: str, tmp_path: Path):
    text, message = WRONG[case]
    with pytest.raises(InputError, match=message) as refused:
        run(tmp_path / "trace.csv", text)
    assert "\n" not in str(refused.value) and "participation.path" in str(refused.value)
    assert not (tmp_path / "trace").exists()


NAMED = "client,from,to\nTromsø,1,\nBergen,1,3\nOslo,1,1\nOslo,5,6\n"


def of_clinics(folder: Path, text: str):
    """A run of the clinics Bergen, Oslo and Tromsø."""
    (folder / "trace.csv").write_text(text, encoding="utf-8")
    x, names = np.random.default_rng(0).normal(size=(90, 3)), ["Oslo", "Tromsø", "Bergen"]
    data = mpifed.arrays({name: (x[k::3], np.arange(30) % 2) for k, name in enumerate(names)})
    options = {"participation": {"name": "trace", "path": str(folder / "trace.csv")}}
    return mpifed.run(data=data, rounds=6, output=folder / "run", **options)


def test_clients_have_the_names_of_the_data(tmp_path: Path):
    (tmp_path / "numbered").mkdir()
    named = of_clinics(tmp_path, NAMED)
    text = NAMED.replace("Bergen", "0").replace("Oslo", "1").replace("Tromsø", "2")
    numbered = of_clinics(tmp_path / "numbered", text)
    assert named.summary["state_digest"] == numbered.summary["state_digest"]
    assert named.metrics["active_clients"][-1] == 2  # of round 6


@pytest.mark.parametrize(
    "text", ["client,rounds\nOslo,1-\nOsol,2-\n", "client,rounds\nOslo,1\n1,2\n"]
)
def test_a_name_that_no_client_has_is_refused(text: str, tmp_path: Path):
    with pytest.raises(InputError, match=r"line 3 has .* as client; .*'?Oslo"):
        of_clinics(tmp_path, text)
    assert not (tmp_path / "run").exists()


def test_a_missing_file_and_other_wrong_words_are_refused(tmp_path: Path):
    words = ["run", "digits-fedem", "--output", str(tmp_path / "run")]
    path = tmp_path / "trace.csv"
    assert run_command([*words, f"participation={{name: trace, path: {path}}}"]) == 2
    assert run_command([*words, "participation=trace"]) == 2
    path.write_text(FROM_TO)
    for more in ("period: 3", "weights: unbiased", "p: 0.5"):
        assert run_command([*words, f"participation={{name: trace, path: {path}, {more}}}"]) == 2
    assert not (tmp_path / "run").exists()


windows = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 4)), min_size=1)


@settings(deadline=None, max_examples=30)
@given(windows)
def test_lines_may_overlap_and_stand_in_any_order(tmp_path_factory, lines):
    from mpifed.federation.participation import KINDS, inclusion, present

    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    rows = [f"{client},{first},{first + more}\n" for client, first, more in lines]
    path.write_text("client,from,to\n" + "".join(rows))
    trace = KINDS["trace"](path=str(path))
    table = np.zeros((5, 15), bool)
    for client, first, more in lines:
        table[client, first - 1 : first + more] = True
    for round in range(1, 16):
        assert np.array_equal(present(trace, np.arange(5), 5, 0, round), table[:, round - 1])
    last = max(first + more for _, first, more in lines)
    assert inclusion(trace, 5) == pytest.approx(table[:, : last + 1].mean())


@pytest.mark.slow
def test_ranks_agree_on_who_is_there(tmp_path: Path, monkeypatch):
    for name, value in (OPEN_MPI | {"PATH": f"{Path(mpirun()).parent}:/usr/bin:/bin"}).items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "trace.csv"
    path.write_text(FROM_TO)
    digests = []
    for ranks in (1, 3):
        output = tmp_path / str(ranks)
        result = mpifed.run(
            "digits-fedem",
            **SMALL,
            ranks=ranks,
            output=output,
            participation={"name": "trace", "path": str(path)},
        )
        digests.append(result.summary["state_digest"])
    assert digests[0] == digests[1]
