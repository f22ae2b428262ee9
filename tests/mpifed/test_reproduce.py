"""Tables of the papers: runs, statistics, pages, tuning."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import yaml

import mpifed
from mpifed.config.configuration import apply_overrides, resolve, to_mapping
from mpifed.config.experiments import parse_overrides, read_experiment
from mpifed.reproduce.__main__ import main
from mpifed.reproduce.experiments.page import Row, best_of, paired_p, table_text
from mpifed.reproduce.experiments.studies import (
    LEARNING_RATES,
    Entry,
    PaperTable,
    papers,
    runs_of,
    studies,
    trials_of,
)

TINY = ["rounds=2", "clients=5", "data.n_test=20", "data.dimension=6", "seed=[0,1]"]


def row(label, *average, published=()):
    values = {"average": np.array(average), "rounds": np.full(len(average), 200.0)}
    return Row(Entry(label, {}, published), values)


TABLE = PaperTable("table-9", "A table", {}, (), ("average",))


def test_a_tie_is_not_bold():
    ahead, close, behind = (
        row("A", 80, 81, 80.5),
        row("B", 79.9, 81.2, 80.1),
        row("C", 70, 71, 70.2),
    )
    assert best_of([ahead, close, behind], "average") is None
    assert best_of([ahead, behind], "average") is ahead
    assert "**" not in table_text(TABLE, [ahead, close, behind])
    assert "| **80.50 ± 1.24** |" in table_text(TABLE, [ahead, behind])


def test_tests_are_paired_by_seed():
    a, b = row("A", 80, 90, 70), row("B", 79, 88.5, 69.2)
    expected = scipy.stats.ttest_rel(a.values["average"], b.values["average"]).pvalue
    assert paired_p(a, b, "average") == pytest.approx(expected)
    assert paired_p(a, a, "average") == 1
    assert math.isnan(paired_p(row("A", 1.0), row("B", 2.0), "average"))
    missing = row("B", math.nan, 88.5, 69.2)
    again = scipy.stats.ttest_rel([90, 70], [88.5, 69.2]).pvalue
    assert paired_p(a, missing, "average") == pytest.approx(again)
    half = scipy.stats.t.ppf(0.975, 2) * 10 / math.sqrt(3)
    assert a.half_width("average") == pytest.approx(half)


@pytest.mark.slow
def test_a_table_is_run_once_and_written(tmp_path, capfd):
    words = ["fedem", "--table", "3", "--data", "paper", *TINY, "clients=10"]
    words += ["--output", str(tmp_path), "--processes", "1"]
    assert main(words) == 0
    printed = capfd.readouterr().out
    assert re.match(r"10 of 10 runs are missing, about \d+:\d\d\n1 of 10, ", printed)
    assert "10 of 10, about 0:00 left" in printed
    text = (tmp_path / "table-3.md").read_text()
    assert text.count("± ") == 5 and "| 73 |" in text and "entropy" in text
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.csv")}
    assert len(before) == 10
    assert main(words) == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.csv")}
    assert (tmp_path / "table-3.md").read_text() == text
    (tmp_path / "table-3" / "paper" / "fedem" / "seed=1" / "DONE").unlink()
    assert main([*words, "--finished"]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.csv")}
    text = (tmp_path / "table-3.md").read_text()
    assert text.count("± ") == 4 and " not finished: 1" in text
    (tmp_path / "table-3" / "paper" / "fedem" / "seed=0" / "DONE").unlink()
    assert main([*words, "--finished"]) == 0
    text = (tmp_path / "table-3.md").read_text()
    assert "| FedAvg |" in text and "| FedEM |" not in text
    assert " not finished: 2" in text


def test_values_are_chosen_on_validation_data(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("mpifed.reproduce.experiments.studies.LEARNING_RATES", (0.3, 1e-6))
    words = ["fedem", "--study", "figure-2", "--data", "released", "--tune", *TINY]
    words += ["data.variant=paper", "--output", str(tmp_path), "--processes", "1"]
    assert main(words) == 0
    assert "| share of the data | 0 | 0.1 |" in (tmp_path / "figure-2.md").read_text()
    tuned = yaml.safe_load((tmp_path / "tuned-fedem-released.yaml").read_text())
    assert {*tuned} == {"FedAvg", "FedAvg+", "FedEM"}
    assert tuned["FedEM"]["local.lr"] in (0.3, 1e-6)
    said = f"Values of tuned-fedem-released.yaml: FedAvg lr {tuned['FedAvg']['local.lr']:g}; "
    assert said in (tmp_path / "figure-2.md").read_text()
    config = tmp_path / "figure-2" / "released" / "fedem" / "seed=0" / "config.yaml"
    stored = yaml.safe_load(config.read_text())
    assert stored["local"]["lr"] == tuned["FedEM"]["local.lr"]
    assert stored["evaluation"]["validation_fraction"] == 0
    trial = next((tmp_path / "tuning" / "figure-2" / "released" / "fedem").glob("lr=0.3"))
    assert (
        yaml.safe_load((trial / "config.yaml").read_text())["evaluation"]["validation_fraction"]
        == 0.2
    )


def test_an_unknown_site_is_refused_by_the_name_of_its_option(capfd):
    assert main(["fedem", "--table", "7", "--slurm", "x"]) == 2
    assert re.search("--slurm .*'x'", capfd.readouterr().err)


def test_a_finished_run_of_other_settings_is_refused(tmp_path, capfd):
    words = ["fedem", "--table", "7", "--data", "paper", *TINY, "--output", str(tmp_path)]
    place = tmp_path / "table-7" / "paper" / "fedem-a-third-of-the-rounds" / "seed=1"
    more = {**parse_overrides(TINY), "seed": 1, "local.lr": 0.05}
    mpifed.run("synthetic-released", output=place, **more)
    assert main(words) == 2
    said = capfd.readouterr().err
    assert re.search("row 'FedEM, a third of the rounds'.*finished", said)
    assert [path.name for path in tmp_path.iterdir()] == ["table-7"]


@pytest.mark.slow
def test_several_run_at_once(tmp_path, capfd):
    words = ["fedem", "--study", "recovery", *TINY, "--output", str(tmp_path), "--processes", "2"]
    assert main(words) == 0
    assert "4 of 4" in capfd.readouterr().out
    assert "assigned" in (tmp_path / "recovery.md").read_text()


def test_papers_are_listed_and_one_is_asked_for(capfd):
    assert main([]) == main(["--list"]) == 0
    listed = capfd.readouterr().out.splitlines()
    assert [line[:-1] for line in listed if line.endswith(":")] == 2 * list(papers())
    assert main(["--table", "2"]) == 2


@pytest.mark.parametrize(
    "paper",
    [pytest.param(paper, marks=[pytest.mark.slow] * (paper == "fedem")) for paper in papers()],
)
def test_every_study_can_be_planned(paper, tmp_path, capfd):
    assert main([paper, "--list"]) == 0
    assert capfd.readouterr().out.count("\n") == 1 + len(studies(paper))
    assert main([paper, "--dry-run", "--output", str(tmp_path)]) == 0
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "emnist", "femnist", "shakespeare"])
def test_real_data_have_the_setting_of_their_shipped_experiment(name):
    study = studies("fedem")[f"real-{name}"]
    run = runs_of(study, name, Path("out"), [0], {}, {})["FedEM"][0]
    shipped = to_mapping(resolve(read_experiment(f"{name}-fedem")))
    asked = to_mapping(resolve(apply_overrides(read_experiment(run.experiment), run.overrides)))
    cut = {"clients", "rounds", "data", "evaluation", "checkpoint"}
    differing = {key for key in shipped if shipped[key] != asked[key]}
    assert differing <= cut
    assert {k: v for k, v in asked["data"].items() if v != shipped["data"][k]}.keys() <= {
        "fraction",
        "sequence_length",
    }


def test_tuning_leaves_what_the_data_fix():
    study = studies("fedem")["table-2"]
    tuned, fixed = (
        trials_of(study, kind, Path("out"), 0, {}) for kind in ("published-tuned", "published")
    )
    assert {tried["local.lr"] for tried, _ in tuned["FedAvg"]} == {*LEARNING_RATES}
    assert "FedAvg" not in fixed and [tried for tried, _ in fixed["FedProx"]] == [
        {"algorithm.mu": mu} for mu in (10.0, 1.0, 0.1, 0.01, 0.001)
    ]
    runs = runs_of(study, "published", Path("out"), [0], {}, {})
    rates = [row[0].overrides["local.lr"] for row in runs.values()]
    assert rates == [0.1] * len(study.entries)


def test_overrides_of_a_user_win():
    study = studies("fedem")["table-2"]
    more = parse_overrides(["local.lr=0.5", "rounds=3"])
    runs = runs_of(study, "paper", Path("out"), [4], {"FedEM": {"local.lr": 0.1}}, more)
    assert runs["FedEM"][0].overrides["local.lr"] == 0.5
    assert runs["FedEM"][0].overrides["seed"] == 4


@pytest.mark.slow
def test_a_figure_is_split_by_seeds_into_the_same_directories(tmp_path):
    few = ["rounds=1", "clients=2", "data.samples=8", "algorithm.batch=4", "data.dim=[4]"]
    words = ["fedmm", "--study", "figure-1-homogeneous", "--processes", "1", "--output"]
    runs = tmp_path / "figure-1-homogeneous" / "runs"
    for seeds, number in (("seed=[1]", 2), ("seed=[0,1]", 4)):
        assert main([*words, str(tmp_path), *few, seeds]) == 0
        assert len(list(runs.glob("*/DONE"))) == number
