"""What a sweep finds before its first run, with the model and the data of each configuration."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mpifed.dry_runs import answer
from mpifed.sweep.dry_runs import Answer

from mpifed.errors import InputError
from mpifed.sweep import dry_runs as process
from mpifed.sweep.__main__ import main
from mpifed.sweep.plan import check_runs, plan

TINY = ["clients=3", "rounds=1", "data.n_test=20"]


@pytest.mark.slow
def test_what_needs_the_model_is_told_before_the_first_run(tmp_path: Path, capfd) -> None:
    words = ["synthetic-fedem", "algorithm=[fedavg,fedper]", "seed=[0,1]", *TINY]
    assert main([*words, "--output", str(tmp_path / "out")]) == 2
    out, err = capfd.readouterr()
    assert not out and err.count("\n") == 1
    assert "algorithm.head is null" in err and "(run 'algorithm=fedper,seed=0')" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("forked_dry_runs")
def test_clients_of_ranks_are_those_of_the_runs(tmp_path: Path) -> None:
    words = ["algorithm=[fedavg,fedper]", "clients=ranks", "model=mlp", "data.n_test=20"]
    words += ["exchange=gossip", "exchange.topology=torus"]
    runs = plan("synthetic-fedem", words, tmp_path, 9)
    assert check_runs("synthetic-fedem", runs, 9) == 0
    with pytest.raises(InputError, match="torus"):
        check_runs("synthetic-fedem", runs, 7)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list:
    """What would be tried; every other configuration is said to be left."""
    found: list = []

    def recorded(experiment, tried, needed, ranks):
        found.append((tried, needed))
        return Answer(len(tried) - len(tried) // 2, None)

    monkeypatch.setattr("mpifed.sweep.plan.dry_runs", recorded)
    return found


def test_configurations_that_differ_in_the_seed_are_tried_once(tmp_path: Path, asked: list) -> None:
    words = ["data.dimension=[20,30]", "local.lr=[0.1,0.2]", "seed=range(5)", "algorithm=fedavg"]
    runs = plan("synthetic-fedem", words, tmp_path, 1)
    assert check_runs("synthetic-fedem", runs, 1) == 2
    ((tried, needed),) = asked
    assert needed == 2  # one for each section of data, and they are the first
    assert [words[:2] for words, _ in tried] == [
        ["algorithm=fedavg", "data.dimension=20"],
        ["algorithm=fedavg", "data.dimension=30"],
        ["algorithm=fedavg", "data.dimension=20"],
        ["algorithm=fedavg", "data.dimension=30"],
    ]
    assert len({tuple(words[:3]) for words, _ in tried}) == 4


def test_runs_that_wait_for_others_are_not_tried(tmp_path: Path, asked: list) -> None:
    words = ["algorithm=flix", "algorithm.flix_alpha=[0,1]", "algorithm.start_from={previous}"]
    runs = plan("flix-sine", words, tmp_path, 1)
    check_runs("flix-sine", runs, 1)
    ((tried, needed),) = asked
    assert (len(tried), needed) == (1, 1)


def test_what_there_is_no_time_for_is_left_and_said() -> None:
    words = ["clients=3", "data.n_test=20"]
    tried = [[[*words, f"local.lr={rate}"], "missing"] for rate in (0.1, 0.2, 0.3)]
    about = {"experiment": "synthetic-fedem", "ranks": 1, "seconds": 0, "tried": tried}
    assert answer({**about, "needed": 1}) == {"tried": 1, "refused": None}
    assert answer({**about, "seconds": 60, "needed": 1}) == {"tried": 3, "refused": None}


def test_an_own_component_is_tried_as_if_for_the_first_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "once.py").write_text(
        "from torch import nn\nCALLS = []\ndef net(data):\n    CALLS.append(1)\n"
        "    assert len(CALLS) < 7, 'called too often'\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(20, 1))\n"
    )
    words = ["clients=3", "data.n_test=20", "data.dimension=20", "algorithm=fedavg"]
    words += ["model=once:net"]
    tried = [[[*words, f"local.lr={rate}"], "missing"] for rate in range(1, 6)]
    about = {"experiment": "synthetic-fedem", "ranks": 1, "seconds": 60, "needed": 1}
    assert answer({**about, "tried": tried}) == {"tried": 5, "refused": None}
    tried[3][0].append("model.width=3")
    found = answer({**about, "tried": tried})
    assert found["tried"] == 4 and "model.width" in found["refused"]
    sys.modules.pop("once", None)


def test_a_process_that_ends_leaves_all_to_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MODULE", "mpifed.no_such_module")
    assert process.dry_runs("synthetic-fedem", [([], Path("x"))], 1, 1) == Answer(0, None)
