"""Ranks that fail in a round, clients that diverge, and what is left in files."""

from __future__ import annotations

import ast
import errno
import os
import re
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from commands import (
    HELD,
    TINY,
    call,
    launch,
    mounted,
    rows,
    summary_of,
)
from moves import moved, values
from on_ranks import SMALL, unlike_one_rank

from mpifed.errors import Diverged
from mpifed.testing import world

OURS = (*TINY, "clients=9", "algorithm=user_components:Fails", "--quiet")


def the_line(outcome) -> str:
    assert outcome.code not in (0, 75), outcome
    (line,) = outcome.messages
    return line


# Ranks.


@pytest.mark.parametrize(
    ("fail", "words", "expected"),
    [
        ("die:1:3", [], r"killed by SIGKILL \(out of memory\?\)"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("die:0:3", [], r"killed by SIGKILL \(out of memory\?\)"),
                ("stand_still:1:3", [], "stopped.* 5 s"),
                ("go_round:1:3", ["stall_limit=4"], ".* 4 s .*stall_limit.*"),
                ("leave:1:3", [], "SystemExit: 0"),
            )
        ),
    ],
)
def test_a_rank_that_is_gone_or_stands_still_ends_the_job(fail, words, expected, tmp_path):
    began = time.monotonic()
    outcome = launch(2, *OURS, *words, "--output", tmp_path / "run", seconds=120, FAIL=fail)
    assert time.monotonic() - began < 60
    rank, host = fail.split(":")[1], re.escape(socket.gethostname())
    clients = r"clients 0 to \d" if rank == "0" else r"clients \d to 8"
    about = rf"mpifed: rank {rank} on {host} \({clients}\): (algorithm '.*', )?round 3: "
    line = the_line(outcome)
    held = HELD if "SIGKILL" in expected else ""
    assert re.fullmatch(about + ".*" + expected + held, line), line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        ("die:3:3", "killed by SIGKILL"),
        ("stand_still:0:3", "stopped.* 5 s"),
        ("leave:4:3", "SystemExit: 0"),
    ],
)
def test_more_ranks_than_cores_do_not_wait_for_one_that_is_gone(fail, expected, tmp_path):
    began = time.monotonic()
    ranks = 2 * len(os.sched_getaffinity(0)) + 1
    words = [*OURS, "--output", tmp_path / "run"]
    outcome = launch(ranks, *words, seconds=120, FAIL=fail)
    assert time.monotonic() - began < 90
    assert re.match(f"mpifed: rank {fail.split(':')[1]} on .*{expected}", the_line(outcome))


@pytest.mark.slow
def test_a_long_computation_is_no_standstill(tmp_path):
    """Rank 0 waits far longer than the limit for a rank that goes on step by step."""
    words = ["stall_limit=4", "algorithm=user_components:TakesItsTime", "rounds=2"]
    outcome = launch(2, *TINY, *words, "--quiet", "--output", tmp_path / "run")
    assert (outcome.code, outcome.messages) == (0, [])
    assert summary_of(tmp_path / "run")["seconds"]["total"] > 5


# Clients.


DIVERGES = "algorithm=user_components:Diverges"


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_client_that_diverges_is_left_out(exchange, tmp_path, capfd, monkeypatch):
    words = [*TINY, DIVERGES, f"exchange={exchange}", "clients=6", "rounds=5", "--quiet"]
    words += ["evaluation.every=1", "--output"]
    for how in ("update", "own"):
        monkeypatch.setenv("DIVERGE", f"{how}:2,3:3")
        stopped, dropped = tmp_path / f"{how}-stopped", tmp_path / f"{how}-dropped"
        outcome = call([*words, stopped], capfd)
        assert outcome.code == 1
        assert re.search("round 3: client 2 .*finite", outcome.messages[0])
        assert rows(stopped)[-1]["round"] == "2"
        summary = summary_of(stopped)
        assert (summary["status"], summary["rounds"]) == ("diverged", 3)
        assert not (stopped / "DONE").exists()
        assert call([*words, dropped, "on_divergence=drop"], capfd).code == 0
        active = [row["active_clients"] for row in rows(dropped)]
        assert active == ["", "6", "6", "4", "6", "6"]
        log = (dropped / "log.txt").read_text()
        assert re.search("round 3 .*without clients 2, 3\\b", log)
    # Whatever it is that diverges, it is as if these two had taken no part in round 3.
    assert rows(tmp_path / "update-dropped") == rows(tmp_path / "own-dropped")


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_who_is_left_out_takes_no_part(exchange):
    """Clients 2 and 3 of six diverge in round 2: the others average among each other."""

    def move(k, ids, x):
        diverges = (k == 2) & np.isin(ids, [2, 3])
        return np.where(diverges[:, None], np.inf, ids[:, None] + 1.0) * np.ones_like(x)

    section = exchange
    if exchange == "gossip":
        section = {"name": "gossip", "topology": "complete", "weights": "uniform"}
    run = moved(move, 6, np.zeros(2), exchange=section, on_divergence="drop")
    before = np.full(6, 3.5)
    assert values(run) == pytest.approx(np.full((2,), 3.5) if exchange == "server" else 3.5)
    after = before + np.arange(1, 7)
    others = np.array([0, 1, 4, 5])
    found = values(run.advance())
    if exchange == "server":
        assert found == pytest.approx(np.full(2, after[others].mean()))
        return
    expected = before.copy()
    expected[others] = after[others].sum() / 6 + after[others] / 3  # weights of both return
    assert found == pytest.approx(np.repeat(expected[:, None], 2, 1))


def test_a_run_in_which_all_diverge_stops(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("DIVERGE", "update:0,1,2,3:2")
    words = [*TINY, DIVERGES, "on_divergence=drop", "--quiet", "--output", tmp_path / "run"]
    outcome = call(words, capfd)
    assert outcome.code == 1
    assert re.search("round 2: client 0 .*update.*finite", outcome.messages[0])


def test_a_loss_that_is_not_finite_is_told_although_the_state_is(tmp_path, capfd):
    words = [*TINY, "data.seed=0", "clients=8", "rounds=5", "exchange=gossip", "local.lr=1e38"]
    words += ["--quiet", "on_divergence=drop", "evaluation.every=1", "--output", tmp_path / "run"]
    assert call(words, capfd).code == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert len(re.findall("training loss of client .*finite", log)) == 1


def test_a_server_that_diverges_is_no_client_s_fault(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("DIVERGE", "server::2")
    outcome = call([*TINY, DIVERGES, "--quiet", "--output", tmp_path / "run"], capfd)
    assert outcome.code == 1
    assert re.search("server.* round 2 .*finite", outcome.messages[0])
    assert summary_of(tmp_path / "run")["status"] == "diverged"


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_ranks_leave_the_same_clients_out(exchange, tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERGE", "update:0,6:2")
    overrides = {**SMALL, "algorithm": "user_components:Diverges"}
    overrides |= {"exchange": exchange, "on_divergence": "drop"}
    assert unlike_one_rank(overrides, tmp_path) == []
    if world().rank == 0:
        assert rows(tmp_path / "one")[1]["active_clients"] == "5"


def test_every_client_of_a_rank_that_diverges_is_found():
    def move(k, ids, x):
        return np.select([(ids == 5)[:, None], (ids == 11)[:, None]], [np.nan, -np.inf], 1.0)

    with pytest.raises(Diverged, match=r"client 5 .*update") as caught:
        moved(move, 12, np.zeros(1), exchange="server")
    assert caught.value.clients == [5, 11]


def test_leaving_out_is_refused_where_everybody_is_needed(tmp_path, capfd):
    words = [*TINY, "algorithm=user_components:NeedsAll", "on_divergence=drop"]
    outcome = call([*words, "--output", tmp_path / "run"], capfd)
    assert outcome.code == 2
    assert "all are needed" in outcome.err


# Files.


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.slow
def test_the_number_of_files_grows_neither_with_clients_nor_with_ranks(tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    assert launch(0, *TINY, "clients=2", "--quiet", "--output", few).code == 0
    assert launch(3, *TINY, "clients=40", "--quiet", "--output", many).code == 0
    assert files(few) == files(many)


def test_a_new_run_directory_is_private_and_an_old_one_stays_as_it_is(tmp_path, capfd):
    before = os.umask(0o022)
    try:
        shared = tmp_path / "shared"
        shared.mkdir(mode=0o750)
        for name in ("shared", "new/one"):
            assert call([*TINY, "--quiet", "--output", tmp_path / name], capfd).code == 0
        modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("shared", "new/one", "new")]
        assert modes == [0o750, 0o700, 0o755]
    finally:
        os.umask(before)


PICKLES = re.compile(r"pickle\.(loads?|dumps?|Pickler|Unpickler)")
PICKLING = {"_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def test_nothing_is_pickled_and_only_restricted_loaders_unpickle():
    root = Path(__file__).parents[2]
    for path in [*(root / "mpifed").rglob("*.py"), *(root / "topologies").rglob("*.py")]:
        text = path.read_text()
        assert "allow_pickle=True" not in text, path
        assert text.count("pickle.Unpickler)") <= text.count("def find_class("), path
        if not re.search(rf"pickle|torch\.(save|load)|{'|'.join(PICKLING)}", text):
            continue  # parsing all takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert not {name.name.split(".")[0] for name in node.names} & PICKLING, path
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.split(".")[0] not in PICKLING | {"pickle"}, path
            elif isinstance(node, ast.Call) and PICKLES.fullmatch(ast.unparse(node.func)):
                # Ranks of one job pickle for each other, as mpi4py does.
                assert path.name == "over_mpi4py.py", path
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.save":
                assert ast.unparse(node.args[0]).startswith("self.state_dict("), path
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert given.get("weights_only") == "True", path


@pytest.mark.slow
def test_a_checkpoint_s_writer_that_fails_is_heard_at_the_next_round(tmp_path, capfd):
    """A disk that fills while the run goes on; the run ends with the older checkpoint intact."""
    place = tmp_path / "small"
    words = ["clients=40", "data.dimension=2000", "checkpoint.every=1", "rounds=40"]
    words += ["checkpoint.keep=9", "--quiet", "--output", place / "run"]
    with mounted(place, "-t", "tmpfs", "-o", "size=3m", "tmpfs"):
        for ranks in (0, 2):
            if ranks:
                outcome = launch(ranks, *TINY, *words, "--resume", seconds=120)
            else:
                outcome = call([*TINY, *words], capfd)
            (line,) = outcome.messages if ranks else outcome.err.splitlines()
            assert outcome.code == 1
            assert re.search(rf"{os.strerror(errno.ENOSPC)}.*round-0\d+\.h5.*--resume", line)
            assert not list((place / "run" / "checkpoints").glob(".*"))
