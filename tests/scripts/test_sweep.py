"""The sweep: what it plans, what it refuses, and what it does with runs that exist."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shlex
import string
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.testing import run_command

TINY = ["clients=3", "rounds=1", "data.n_test=20"]


def run_sweep(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mpifed.sweep", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@dataclass(frozen=True)
class Planned:
    """A run of a sweep: its directory, and the values of its words."""

    directory: str
    overrides: dict[str, Any]


def planned_runs(words: list[str], output: Path | str = "out") -> list[Planned]:
    """The runs that ``mpifed sweep --dry-run`` shows, in their order."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert run_command(["sweep", *words, "--output", output, "--dry-run"]) == 0
    runs = []
    for line in shown.getvalue().splitlines():
        typed = shlex.split(line.partition(" run ")[2])
        values = dict(word.split("=", 1) for word in typed if "=" in word)
        directory = typed[typed.index("--output") + 1]
        runs.append(Planned(directory, {k: yaml.safe_load(v) for k, v in values.items()}))
    return runs


def test_lists_are_axes_and_the_rest_is_fixed() -> None:
    words = ["seed=[0,1]", "algorithm=[fedem,fedavg]", "rounds=5", "local.lr=[0.1]"]
    runs = planned_runs(words)
    swept = [tuple(run.overrides[key] for key in ("seed", "algorithm", "local.lr")) for run in runs]
    assert swept == list(itertools.product((0, 1), ("fedem", "fedavg"), (0.1,)))
    assert {run.overrides["rounds"] for run in runs} == {5}


def test_inner_brackets_are_a_value() -> None:
    runs = planned_runs(["digits-fedem", "model=mlp", "model.hidden=[[64],[64,32]]"])
    assert [run.overrides["model.hidden"] for run in runs] == [[64], [64, 32]]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("evaluation.metrics=[balanced_accuracy,auc]", [["balanced_accuracy", "auc"]]),
        ("metrics=[balanced_accuracy,auc]", [["balanced_accuracy", "auc"]]),
        ("evaluation.metrics=[[f1,auc],[f1]]", [["f1", "auc"], ["f1"]]),
        ("model.hidden=[64,32]", [[64, 32]]),
        ("data.rotations=[0,90]", [[0, 90]]),
        ("local.lr=[0.1,0.3]", [0.1, 0.3]),
        ("compression=[none,sign]", ["none", "sign"]),
    ],
)
def test_a_list_that_is_a_value_is_not_split(word: str, values: list[Any], capfd) -> None:
    runs = planned_runs(["digits-fedem", "model=mlp", "seed=range(2)", word])
    expected = list(itertools.product((0, 1), values))
    key = word.partition("=")[0]
    assert [(run.overrides["seed"], run.overrides[key]) for run in runs] == expected
    assert (key in capfd.readouterr().err) == (len(values) == 1)


def test_a_number_or_a_list_of_numbers_is_swept_over_numbers() -> None:
    words = ["flix-gd", "algorithm.flix_alpha=[0,1]"]
    assert [run.overrides["algorithm.flix_alpha"] for run in planned_runs(words)] == [0, 1]


def test_plan_is_the_product_with_one_directory_each() -> None:
    words = ["algorithm=[fedem,fedavg]", "seed=[0,1,2]", "rounds=7"]
    runs = planned_runs(["synthetic-fedem", *words])
    expected = [
        f"algorithm={a},seed={s}" for a, s in itertools.product(("fedem", "fedavg"), range(3))
    ]
    assert [run.directory for run in runs] == [f"out/{name}" for name in expected]
    assert all(run.overrides["rounds"] == 7 for run in runs)


def test_a_component_with_options_has_a_directory_of_plain_words() -> None:
    words = ["exchange=gossip", "exchange.topology=[ring,{name: erdos_renyi, p: 0.1}]", "seed=[0]"]
    assert [run.directory for run in planned_runs(["synthetic-fedem", *words])] == [
        "out/exchange.topology=ring,seed=0",
        "out/exchange.topology=erdos_renyi,p=0.1,seed=0",
    ]


@given(st.text(st.characters(exclude_categories=["C"]), min_size=1))
@settings(deadline=None, max_examples=30)
def test_values_survive_the_command_line_and_names_of_files_are_safe(text: str) -> None:
    values = [text, f"{text}x", "1e-3", "null", "a: b"]
    values = [f"{value}.csv" for value in dict.fromkeys(values)]
    words = ["digits-fedem", "data=csv", f"data.path={json.dumps(values, ensure_ascii=False)}"]
    runs = planned_runs(words)
    assert [run.overrides["data.path"] for run in runs] == values
    names = [run.directory.removeprefix("out/") for run in runs]
    assert len(set(names)) == len(names)
    for name in names:
        assert len(name) <= 255 and name[0] not in ".-"
        assert set(name) <= set(string.ascii_letters + string.digits + "._=,+-")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["seed=[]"], r"\bseed\b.*empty"),
        (["seed=[1,1]"], r"\bseed\b.* 1 "),
        (["local.lr=[0.1,-1]"], "local.lr"),
        (["seed=[0,1]", "algorithm.name={last}"], r"algorithm\.name.*\{last\}"),
        (["seed=3", "data.path={first}"], r"data\.path.*list"),
        (["seed=[0]", "--ranks", "0"], r"--ranks.*\b0\b"),
    ],
)
def test_bad_input_is_one_sentence_and_runs_nothing(
    words: list[str], part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sweep", *words, "--output", tmp_path / "out"]) == 2
    out, err = capfd.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert re.search(part, err)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_runs_skips_resumes_and_reports_a_failure(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "seed=1").write_text("a file where the run directory should be")
    words = ["synthetic-fedem", "seed=[0,1,2]", *TINY, "--output", output]
    first = run_sweep(*words)
    assert first.returncode == 1
    assert re.search(r"\[2/3\] seed=1: .*code 2 ", first.stderr)
    assert "2 of 3 runs" in first.stdout

    (output / "seed=1").unlink()
    (output / "seed=2" / "DONE").unlink()  # as if it had been interrupted at the very end
    second = run_sweep(*words)
    assert second.returncode == 0, second.stderr
    shown = re.findall(r"^\[./3\] (seed=.): finished.*?(skipped)?$", second.stdout, re.MULTILINE)
    assert shown == [("seed=0", "skipped"), ("seed=1", ""), ("seed=2", "")]
    seeds = [json.loads((output / f"seed={s}" / "summary.json").read_text()) for s in range(3)]
    assert len({summary["state_digest"] for summary in seeds}) == 3


@pytest.mark.slow
def test_a_finished_run_of_another_configuration_is_refused(tmp_path: Path, capfd) -> None:
    assert run_sweep("seed=[0]", *TINY, "--output", tmp_path).returncode == 0
    other = run_sweep("seed=[0]", *TINY, "local.lr=0.5", "--output", tmp_path)
    assert other.returncode == 2
    assert "local.lr" in other.stderr
    assert run_sweep("seed=[0]", *TINY, "checkpoint.every=1", "--output", tmp_path).returncode == 0
    words = ["seed=[0]", *TINY, "evaluation.validation_fraction=0.2"]
    capfd.readouterr()
    assert run_command(["sweep", *words, "--output", tmp_path, "--dry-run"]) == 2
    assert re.search(r"validation_fraction.*\b0\.0\b.*\b0\.2\b", capfd.readouterr().err)
    words[-1] = "evaluation.every=7"
    stored = tmp_path / "seed=0" / "config.yaml"
    kept = yaml.safe_load(stored.read_text())
    for added in ("validation_fraction", "validation_split", "unseen_shares"):
        del kept["evaluation"][added]  # as before there was validation
    stored.write_text(yaml.safe_dump(kept, sort_keys=False))
    assert len(planned_runs(words, tmp_path)) == 1


def test_dry_run_prints_the_commands(tmp_path: Path, capfd) -> None:
    assert (
        run_command(["sweep", "seed=[0,1]", *TINY, "--output", str(tmp_path / "out"), "--dry-run"])
        == 0
    )
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2 and all("-m mpifed run synthetic-fedem" in line for line in lines)
    assert not (tmp_path / "out").exists()


CHAIN = ["algorithm.start_from={previous}", "algorithm.optima_from={ first }"]


def test_placeholders_name_the_runs_of_a_chain() -> None:
    words = ["algorithm.flix_alpha=[0,0.5,1]", "seed=[0,1]", *CHAIN, "rounds=3"]
    runs = planned_runs(["flix-sine", *words[1:], words[0]])
    for seed, chain in enumerate((runs[:3], runs[3:])):
        names = [f"out/seed={seed},algorithm.flix_alpha={alpha}" for alpha in ("0", "0.5", "1")]
        assert [run.directory for run in chain] == names
        assert all(run.overrides["rounds"] == 3 for run in chain)
        # In the first run the experiment's own values stand.
        assert not {"algorithm.start_from", "algorithm.optima_from"} & set(chain[0].overrides)
        keys = ("algorithm.start_from", "algorithm.optima_from")
        assert [[run.overrides[key] for key in keys] for run in chain[1:]] == [
            [names[0], names[0]],
            [names[1], names[0]],
        ]
    # With another list last, the chains go along that one.
    across = planned_runs(["flix-sine", *words])
    assert [run.overrides.get("algorithm.start_from") for run in across] == [
        place
        for alpha in ("0", "0.5", "1")
        for place in (None, f"out/algorithm.flix_alpha={alpha},seed=0")
    ]


def test_a_placeholder_may_stand_within_a_value() -> None:
    words = ["seed=[0,1]", "data.path={first}/mushrooms", "exchange={name: server}"]
    one, two = planned_runs(["flix-gd", *words], "a b, c: #d")
    assert "data.path" not in one.overrides
    assert two.overrides["data.path"] == "a b, c: #d/seed=0/mushrooms"


STILL = [
    "synthetic-fedem",
    *TINY,
    "clients=4",
    "algorithm=flix",
    "algorithm.start=random",
    "algorithm.step=1e-300",
    "algorithm.local_iterations=1",
    "algorithm.start_from={previous}",
    "seed=[0,1,2]",
]
"""x never moves, since a mean of four equal rows is exact, and each seed would draw another one."""


def last_x(directory: Path) -> list[float]:
    with h5py.File(max((directory / "checkpoints").glob("*.h5"))) as file:
        return list(file["server/model"][0])


@pytest.mark.slow
def test_a_chain_hands_on_and_ends_where_a_run_fails(tmp_path: Path) -> None:
    (tmp_path / "seed=1").write_text("a file where the run directory should be")
    broken = run_sweep(*STILL, "--output", tmp_path)
    assert broken.returncode == 1
    assert re.search(r"\[2/3\] seed=1: .*code 2 ", broken.stderr)
    assert re.search(r"\[3/3\] seed=2: .*seed=1", broken.stderr)
    assert "1 of 3 runs" in broken.stdout
    assert not (tmp_path / "seed=2").exists()

    (tmp_path / "seed=1").unlink()
    mended = run_sweep(*STILL, "--output", tmp_path)
    assert mended.returncode == 0, mended.stderr
    first, *others = [last_x(tmp_path / f"seed={seed}") for seed in range(3)]
    assert any(first)
    assert others == [first, first]


def test_a_dry_run_shows_what_the_placeholders_name(tmp_path: Path, capfd) -> None:
    output = tmp_path / "out"
    assert run_command(["sweep", *STILL, "--output", str(output), "--dry-run"]) == 0
    lines = capfd.readouterr().out.splitlines()
    found = [[w for w in shlex.split(line) if "start_from" in w] for line in lines]
    assert found == [[], *([f"algorithm.start_from={output}/seed={seed}"] for seed in (0, 1))]
    assert not output.exists()
