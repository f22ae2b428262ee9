"""``mpifed sweep --optuna``: ranges as words, and a study that ends, goes on and prunes."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpifed.errors import InputError
from mpifed.results.results import read_metrics
from mpifed.sweep.plan import Planned
from mpifed.sweep.ranges import range_of
from mpifed.sweep.study import Search, Study, space_of
from mpifed.testing import run_command

WORDS = ["clients=3", "rounds=4", "evaluation.validation_fraction=0.2"]
DOCS = Path(__file__).parents[2] / "docs"
RATES = "local.lr=log(1e-4,100)"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["local.lr=lgo(1e-3,1)"], r"local\.lr.*lgo.*'log'"),
        (["local.lr=log(1,1e-3)"], r"local\.lr.*smaller first"),
        (["local.lr=log(0,1)"], r"local\.lr.*above 0"),
        (["local.lr=uniform(0.1)"], r"local\.lr.*two finite numbers"),
        (["local.epochs=int(1,2.5)"], r"local\.epochs.*two whole numbers"),
        (["local.lr=log(nan,1)"], r"local\.lr.*two finite numbers"),
        (["seed=[0,1]", "local.lr=log(0.1,1)"], r"\bseed\b.*luckiest"),
        (["local.lr=0.1"], r"--optuna.*nothing to search"),
        (["local.lr=[0.1,1]", "algorithm.start_from={previous}"], r"start_from.*--optuna"),
    ],
)
def test_wrong_ranges_are_one_sentence_and_start_nothing(
    words: list[str], part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    typed = ["sweep", "digits-fedem", *WORDS, *words, "--optuna", "3", "--output", output]
    assert run_command(typed) == 2
    shown, err = capfd.readouterr()
    assert not shown and err.count("\n") == 1
    assert re.search(part, err)
    assert not output.exists()


def test_a_range_without_optuna_and_its_options_are_refused(capfd) -> None:
    assert run_command(["sweep", "digits-fedem", RATES, "--dry-run"]) == 2
    assert re.search(r"local\.lr.*--optuna N", capfd.readouterr().err)
    assert run_command(["sweep", "digits-fedem", "seed=[0]", "--metric", "test_loss"]) == 2
    assert "--optuna" in capfd.readouterr().err


def test_where_optuna_is_missing_a_sentence_says_what_to_install(monkeypatch, capfd) -> None:
    monkeypatch.setattr("mpifed.sweep.study.find_spec", lambda name: None)
    assert run_command(["sweep", "digits-fedem", *WORDS, RATES, "--optuna", "3"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "mpifed[optuna]" in err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["local.lr=uniform(-1,1)"], r"local\.lr.*-1"),
        (["local.lrr=log(0.1,1)"], r"local\.lr"),
        (["evaluation.validation_fraction=0"], r"validation_accuracy.*validation_fraction=0\.2"),
        (["--metric", "test_acuracy"], r"--metric.*'test_accuracy'"),
    ],
)
def test_what_runs_do_not_take_or_have_is_refused(
    words: list[str], part: str, tmp_path: Path, capfd
) -> None:
    pytest.importorskip("optuna")
    rates = [] if any(word.startswith("local.") for word in words) else [RATES]
    typed = ["sweep", "digits-fedem", *WORDS, *rates, *words, "--optuna", "3"]
    assert run_command([*typed, "--output", tmp_path / "out"]) == 2
    assert re.search(part, capfd.readouterr().err)
    assert not (tmp_path / "out").exists()


def best_at_a_tenth(run: Planned) -> str:
    """The score of a run, whose maximum 0 is where the logarithm of the rate is -1."""
    return str(-((math.log10(run.chosen["local.lr"]) + 1) ** 2))


def study_of(
    output: Path, trials: int, score=best_at_a_tenth, words=(RATES,), seed: int = 0, ends="touch"
) -> Study:
    """A study whose runs write a score and end at once."""

    def command(run: Planned) -> list[str]:
        place = run.directory
        text = f"round,validation_accuracy\\n1,{score(run)}\\n"
        done = f"{ends} '{place}/DONE'"
        return ["sh", "-c", f"mkdir -p '{place}'; printf '{text}' > '{place}/metrics.csv'; {done}"]

    space = space_of("digits-fedem", [*WORDS, *words], output, 1)
    return Study(space, Search("validation_accuracy", seed, 1), trials, command)


def rates_of(study: Study) -> list[float]:
    return [run.chosen["local.lr"] for run in study.runs]


def test_a_study_finds_the_known_best_of_a_parabola(tmp_path: Path, capfd) -> None:
    pytest.importorskip("optuna")
    study = study_of(tmp_path / "out", 40)
    assert study.run() == 0
    # The nearest of 40 random points in six decades is as near in one of three studies.
    away = [abs(math.log10(rate) + 1) for rate in rates_of(study)]
    assert min(away) < 0.03
    assert sum(away[10:]) / 30 < 1.1  # 1.5 +- 0.16 at random
    best = capfd.readouterr().out.splitlines()[-1]
    rate = float(best.rpartition("=")[2])
    assert rate == pytest.approx(study.study.best_params["local.lr"], rel=1e-3)
    assert len(str(rate)) <= 7  # readable in names and tables
    with (tmp_path / "out" / "index.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["local.lr"]) for row in rows] == rates_of(study)
    assert [row["directory"] for row in rows] == [f"trial-{n:04}" for n in range(40)]


def test_a_study_in_parts_is_that_of_one_part_and_of_its_seed(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    once = study_of(tmp_path / "once", 16)
    assert once.run() == 0
    for trials in (5, 5, 16):
        parts = study_of(tmp_path / "parts", trials)
        assert parts.run() == 0
    assert rates_of(parts) == rates_of(once)
    other = study_of(tmp_path / "other", 3, seed=1)
    assert other.run() == 0
    assert not set(rates_of(other)) & set(rates_of(once))


def test_a_failed_trial_is_tried_again_and_a_finished_one_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    assert study_of(tmp_path, 2, ends="false").run() == 1
    (tmp_path / "trial-0001" / "DONE").touch()  # as if the sweep had ended before it took the score
    study = study_of(tmp_path, 2)
    states = [trial.state.name for trial in study.study.trials]
    assert states == ["RUNNING", "COMPLETE"]
    assert study.run() == 0
    assert [trial.state.name for trial in study.study.trials] == ["COMPLETE", "COMPLETE"]


def test_a_trial_that_diverges_counts_as_pruned_and_ends(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study = study_of(tmp_path, 3)
    write, complete = """echo '{"status": "diverged", "rounds": 1}' >""", study.command

    def command(run: Planned) -> list[str]:
        place = run.directory
        diverges = f"mkdir -p '{place}'; {write} '{place}/summary.json'; exit 1"
        return ["sh", "-c", diverges] if place.name == "trial-0001" else complete(run)

    study.command = command
    assert study.run() == 0
    states = [trial.state.name for trial in study.study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE"]


@pytest.mark.parametrize("page", ["sweeps.md", "how_do_i.md"])
def test_commands_of_the_pages_are_accepted(page: str, capfd) -> None:
    pytest.importorskip("optuna")
    text = (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^mpifed (sweep .* --optuna .*)$", text, re.MULTILINE)
    assert run_command([*shlex.split(line), "--dry-run"]) == 0
    assert "20 trials, validation_accuracy" in capfd.readouterr().out


def test_the_page_reads_a_study_with_optuna(tmp_path: Path, monkeypatch, capfd) -> None:
    pytest.importorskip("optuna")
    study = study_of(tmp_path / "runs" / "search", 2)
    assert study.run() == 0
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "sweeps.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    exec(block, {})
    best = study.study
    assert capfd.readouterr().out == f"{best.best_params} {best.best_value}\n"


def test_a_study_of_other_ranges_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    assert study_of(tmp_path, 1).run() == 0
    with pytest.raises(InputError, match=r"local\.lr=log\(1e-4,100\).*log\(1e-4,10\)"):
        study_of(tmp_path, 1, words=("local.lr=log(1e-4,10)",))


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "study.journal").write_text("a diary\nof days\n")
    with pytest.raises(InputError, match=r"study\.journal.*--output"):
        study_of(tmp_path, 1)


@pytest.mark.parametrize(
    ("form", "drawn", "value"),
    [
        ("log(1e-5,1)", 0.000123456, 0.0001235),
        ("uniform(0,1)", 0.123456, 0.1235),
        ("uniform(1,1.002)", 1.00012345, 1.0001235),
        ("log(1,1.002)", 1.00012345, 1.0001235),
        ("uniform(0.12344,0.52344)", 0.123441, 0.12344),
        ("int(1,5)", 3, 3),
    ],
)
def test_drawn_numbers_have_the_digits_that_matter(form: str, drawn: float, value: float) -> None:
    name, _, numbers = form.rstrip(")").partition("(")
    assert range_of("local.lr", name, numbers).value(drawn) == pytest.approx(value, rel=1e-12)


def test_values_that_do_not_go_together_fail_alone(tmp_path: Path, capfd) -> None:
    pytest.importorskip("optuna")
    words = ("algorithm=[fedavg,scaffold,fedem]", "exchange=[server,gossip]")
    study = study_of(tmp_path, 12, lambda run: "1", words)
    assert study.run() == 1
    states = {trial.state.name for trial in study.study.trials}
    assert states == {"COMPLETE", "FAIL"}
    assert "scaffold" in capfd.readouterr().err
    again = study_of(tmp_path, 12, lambda run: "1", words)
    assert again.run() == 1
    assert again.study.trials == study.study.trials
    with (tmp_path / "index.csv").open() as file:
        assert {row["directory"] for row in csv.DictReader(file)} == {
            path.name for path in tmp_path.glob("trial-*")
        }


def test_lists_are_choices_and_the_same_values_run_once(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ("local.epochs=int(1,2)", "model.hidden=[[16],[16,8]]", "model=mlp")

    def score(run: Planned) -> str:
        return str(run.chosen["local.epochs"] + len(run.chosen["model.hidden"]))

    study = study_of(tmp_path, 12, score, words)
    assert study.run() == 0
    assert [trial.state.name for trial in study.study.trials] == ["COMPLETE"] * 12
    assert study.study.best_value == 4
    assert study.study.best_params == {"local.epochs": 2, "model.hidden": "[16, 8]"}
    assert len(list(tmp_path.glob("trial-*"))) == len(study.first) <= 4
    for trial in study.study.trials:
        run = study.runs[trial.number]
        assert trial.value == float(score(run))


def reported(study: Study, number: int, scores: list[float], monkeypatch) -> int | None:
    """The round after which a trial is pruned that has these scores; None if it is not."""
    from mpifed.sweep import pruning
    from mpifed.training.callbacks import RecordedRound

    monkeypatch.setenv(pruning.TRIAL_VARIABLE, f"{study.space.output}/{pruning.JOURNAL}#{number}")
    for round, score in enumerate(scores, 1):
        row = {"round": round, "validation_accuracy": score}
        if pruning.report(RecordedRound(round, row, round == len(scores))):
            return round
    return None


def test_what_is_below_the_median_is_pruned_after_the_warm_up(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("optuna")
    study = study_of(tmp_path, 8)
    for number in range(5):  # medians of rounds are 2
        study._add(study._ask(), "RUNNING")
        assert reported(study, number, [float(number)] * 4, monkeypatch) is None
        study.study.tell(number, float(number))
    for number, scores, at in [
        (5, [1.9] * 4, 1),
        (6, [2.1] * 4, None),
        (7, [math.nan, 2.1, 1.0, 1.0], None),  # the best so far counts
    ]:
        study._add(study._ask(), "RUNNING")
        assert reported(study, number, scores, monkeypatch) == at
    assert study.study.trials[5].user_attrs == {"pruned_at": 1}
    # A resumed run records rounds again.
    assert reported(study, 6, [2.1] * 4, monkeypatch) is None


@pytest.mark.slow
def test_trials_are_run_directories_that_resume_and_are_pruned(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    output, words = tmp_path / "out", ["digits-fedem", *WORDS, "evaluation.every=1", RATES]
    command = [sys.executable, "-m", "mpifed.sweep", *words, "--optuna", "7", "--output", output]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    while not (output / "trial-0001").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75
    shown = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True).stdout
    runs = sorted(output.glob("trial-*"))
    assert [run.name for run in runs] == [f"trial-{number:04}" for number in range(7)]
    statuses = [json.loads((run / "summary.json").read_text())["status"] for run in runs]
    assert statuses[:5] == ["finished"] * 5 and "stopped_at" in statuses[5:]
    metrics = [read_metrics(run / "metrics.csv") for run in runs]
    lengths = [len(each.rows) for each in metrics]
    assert all(
        (n < 5) == (status == "stopped_at") for n, status in zip(lengths, statuses, strict=True)
    )
    best = max(float(each.texts("validation_accuracy")[-1]) for each in metrics)
    assert f"validation_accuracy {best:.4f}" in shown.splitlines()[-1]
    assert run_command(["report", output, "--format", "none", "--output", tmp_path / "report"]) == 0
