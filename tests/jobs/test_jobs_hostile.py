"""Run directories that somebody else has made: no file of theirs is believed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm, fake_slurm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpifed.jobs import slurm as commands
from mpifed.jobs.__main__ import main

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ACTIONS = (["status"], ["status", "--json"], ["stop", "--dry-run"], ["cancel", "--dry-run"])
CANCELS = re.compile(r"scancel( --signal=USR1 --batch)?( [0-9]+(_[0-9]+)?)+")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**30, 10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "-1", "7", "--user=root", "7 8", "\u0667", "a\0b", "\ud800", "/", "x" * 5000]
    )
)
JOBS = [("history", 0, "job"), ("history", 0, "tasks"), ("history", 0, "report")]
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeSlurm]:
    found = fake_slurm(tmp_path_factory.mktemp("fake") / "slurm")

    def queue(jobs: list[str]) -> list[commands.Queued]:
        every = [(job, task) for job in jobs for task in (None, 0)]
        return [commands.Queued(job, task, "RUNNING", "None", "n1") for job, task in every]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "queue", queue)
        patch.setattr(commands, "restarts", lambda job: None)
        for name, value in found.variables().items():
            patch.setenv(name, value)
        yield found


def record(output: Path, sweep: bool = False) -> dict[str, Any]:
    """What ``submit`` records."""
    names = ["seed=0", "seed=1"] if sweep else ["."]
    overrides = {"clients": 4, "rounds": 6, "data.n_test": 20}
    return {
        "version": 1,
        "experiment": "synthetic-fedem",
        "text": None,
        "output": str(output),
        "sweep": sweep,
        "job": {"ranks": 2},
        "runs": [{"directory": str(output / name), "overrides": overrides} for name in names],
        "history": [
            {"job": "7", "tasks": list(range(len(names))), "report": "8" if sweep else None}
        ],
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of a structure."""
    found = [path]
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(part, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """``value`` with another part at ``path``; without that part if it is ``...``."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and other is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], other)
    return copy


def asked(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def answered(output: Path, actions: tuple[list[str], ...] = ACTIONS) -> set[int]:
    """The exit codes of the actions; each says what is wrong in one short line, or does it."""
    codes = set()
    for words in actions:
        code, out, err = asked(*words, output)
        codes.add(code)
        if code == 2:
            assert out == ""
            assert err.startswith("mpifed.jobs: ") and err.endswith("\n") and err.count("\n") == 1
            assert err[:-1].isprintable()
        else:
            assert (code, err) == (0, "")
            for line in out.splitlines():
                assert line.isprintable()
                assert not line.startswith("scancel") or CANCELS.fullmatch(line), line
    return codes


def placed(output: Path, text: str) -> None:
    (output / "job").mkdir(parents=True, exist_ok=True)
    (output / "job" / "job.json").write_text(text)


@SETTINGS
@given(st.data())
def test_a_record_with_any_part_changed_is_read_or_refused(
    slurm: FakeSlurm, tmp_path: Path, data: st.DataObject
) -> None:
    whole = record(tmp_path, data.draw(st.booleans()))
    path = data.draw(st.sampled_from(places(whole)[1:]) | st.sampled_from(JOBS))
    other = data.draw(st.just(...) | STRUCTURES)
    placed(tmp_path, json.dumps(changed(whole, path, other)))
    assert answered(tmp_path) <= {0, 2}


@SETTINGS
@given(data=st.data())
def test_a_job_is_resumed_from_a_record_with_any_option_changed_or_refused(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(commands, "queue", lambda jobs: [])
    whole = record(tmp_path)
    asked_of = [("experiment",), ("text",), *places(whole["job"], ("job",))]
    asked_of += places(whole["runs"][0]["overrides"], ("runs", 0, "overrides"))
    path = data.draw(st.sampled_from(asked_of))
    placed(tmp_path, json.dumps(changed(whole, path, data.draw(STRUCTURES))))
    code, out, err = asked("resume", "--dry-run", "--unchecked", tmp_path)
    assert code in (0, 2)
    if code == 2:
        assert out == ""
        assert err[:-1].isprintable()


@SETTINGS
@given(STRUCTURES)
def test_any_structure_is_read_or_refused(slurm: FakeSlurm, tmp_path: Path, whole: Any) -> None:
    placed(tmp_path, json.dumps(whole))
    assert answered(tmp_path) == {2}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (("history", 0, "job"), "--user=root"),
        (("history", 0, "job"), "7 --signal=KILL"),
        (("history", 0, "job"), "\u0667"),
        (("history", 0, "job"), 7),
        (("history", 0, "report"), "-u"),
        (("history", 0, "tasks"), [0, 1, 1e300]),
        (("history", 0, "tasks"), [True]),
        (("runs", 0, "directory"), "/etc"),
        (("runs", 0, "directory"), "../up"),
        (("runs", 0, "directory"), "HERE/../up"),
        (("output",), "relative"),
        (("output",), "/" + "x" * 300),
        (("text",), "a\0b"),
        (("experiment",), {"name": "x"}),
    ],
)
def test_parts_of_records_that_are_refused(
    part: tuple[Any, ...], value: Any, slurm: FakeSlurm, tmp_path: Path
) -> None:
    other = value.replace("HERE", str(tmp_path)) if isinstance(value, str) else value
    placed(tmp_path, json.dumps(changed(record(tmp_path, True), part, other)))
    before = slurm.calls("scancel")
    assert answered(tmp_path, (*ACTIONS, ["stop"], ["cancel"], ["resume"])) == {2}
    assert slurm.calls("scancel") == before


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"version": 1, "task": 0, "part_of": "HERE"}',
        '{"version": 1, "task": 0, "part_of": "HERE/job/../.."}',
        '{"version": 1, "task": 0, "part_of": "/no\x1b[31m"}',
        '{"version": ' + "1" * 5000 + "}",
        '{"version": NaN}',
        '\ufeff{"version": 1}',
        '"' + "x" * 30_000_000 + '"',
    ],
    ids=lambda text: text[:12],
)
def test_texts_that_are_no_records(text: str, slurm: FakeSlurm, tmp_path: Path) -> None:
    placed(tmp_path, text.replace("HERE", str(tmp_path)))
    assert answered(tmp_path) == {2}


BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)
CONFIGS = [
    ("rounds: 6\n" + BOMB, 0),
    ("rounds: 6\n" + MERGES, 0),
    ("rounds: 6\nday: 2026-13-45\nlong: " + "1" * 5000, 0),
    ("rounds: 2026-13-45", 2),
    ("rounds: " + "1" * 5000, 2),
    ("rounds: \u0661\u0662", 2),
    ("rounds: [6]", 2),
    ("rounds: 1e20", 2),
    ("- rounds", 2),
    ("", 2),
    ("[" * 50_000, 2),
    ("a: [\x1b", 2),
    ("rounds: *none", 2),
]


@pytest.mark.parametrize(("text", "code"), CONFIGS, ids=lambda part: str(part)[:16])
def test_configurations_of_others(text: str, code: int, slurm: FakeSlurm, tmp_path: Path) -> None:
    placed(tmp_path, json.dumps(record(tmp_path)))
    (tmp_path / "config.yaml").write_text(text)
    assert answered(tmp_path, (["status"], ["status", "--json"])) == {code}


YAML_TEXTS = st.text(st.sampled_from("rounds: 6-\n\t[]{}&*!|>%@`'\"#,?<\x1b\u0661é"), max_size=60)


@SETTINGS
@given(config=YAML_TEXTS | st.binary(max_size=40), metrics=st.none() | st.binary(max_size=60))
def test_files_of_others_are_read_or_refused(
    slurm: FakeSlurm, tmp_path: Path, config: str | bytes, metrics: bytes | None
) -> None:
    placed(tmp_path, json.dumps(record(tmp_path)))
    content = config.encode() if isinstance(config, str) else config
    (tmp_path / "config.yaml").write_bytes(b"rounds: 6\n" + content)
    (tmp_path / "metrics.csv").write_bytes(b"round,test_accuracy\n" + (metrics or b""))
    for name in ("events.txt", "lives.txt", "slurm-7.out"):
        (tmp_path / "job" / name).write_bytes(b"7 0 lost\nmpifed: " + (metrics or b"x"))
    assert answered(tmp_path, (["status"], ["status", "--json"])) <= {0, 2}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("round,test_accuracy\n", 0),
        ("round,test_acc", 0),
        ("round,test_accuracy\n6,nan\n", 0),
        ("round,test_accuracy\n\u00b2,0.5\n", 2),
        ("round,test_accuracy\n" + "1" * 5000 + ",0.5\n", 2),
        ("round,test_accuracy\n6,high\n", 2),
        ('round,test_accuracy\n"6,0.5\n', 2),
        ("test_accuracy\n0.5\n", 2),
        ("round,test_accuracy\n" + "x" * 300_000 + "\n", 2),
        ("round,test_accuracy\n6,0.5\n" + "7," + "x" * 300_000, 2),
    ],
    ids=lambda part: str(part)[:30],
)
def test_metrics_of_others(text: str, code: int, slurm: FakeSlurm, tmp_path: Path) -> None:
    placed(tmp_path, json.dumps(record(tmp_path)))
    (tmp_path / "metrics.csv").write_text(text)
    assert answered(tmp_path, (["status"],)) == {code}


@pytest.mark.parametrize("kind", ["pipe", "endless", "directory"])
@pytest.mark.parametrize("name", ["job/job.json", "config.yaml", "metrics.csv", "job/events.txt"])
def test_what_is_no_file_is_not_waited_for(
    kind: str, name: str, slurm: FakeSlurm, tmp_path: Path
) -> None:
    placed(tmp_path, json.dumps(record(tmp_path)))
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert answered(tmp_path, (["status"],)) == {2}


def test_a_pipe_for_a_site_file_is_not_waited_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "site.yaml")
    code, _, err = asked("render", "job.ranks=2", "--site", tmp_path / "site.yaml")
    assert code == 2
    assert "a named pipe, not a regular file" in err


def test_what_jobs_print_reaches_no_terminal(slurm: FakeSlurm, tmp_path: Path) -> None:
    placed(tmp_path, json.dumps(record(tmp_path)))
    hostile = "\x1b]0;title\x07" + "y" * 10_000
    (tmp_path / "job" / "events.txt").write_text(f"{hostile}\n")
    (tmp_path / "job" / "slurm-7.out").write_text(f"mpifed: {hostile}\n")
    code, out, _ = asked("status", tmp_path)
    assert code == 0
    assert all(line.isprintable() and len(line) < 600 for line in out.splitlines())
