"""The first hour of a student, an administrator and a reader, as the pages say."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_rel

sys.path.append(str(Path(__file__).parent / "mpifed"))
import commands
from commands import mpirun, rows, summary_of

import mpifed
import topologies
from mpifed.testing import run_command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SMALL = {"clients": 4, "rounds": 6, "evaluation.every": 3}
WORDS = "digits-fedem clients=4 rounds=6 evaluation.every=3"
LONG = "digits-fedem clients=4 rounds=1000000 evaluation.every=1000 checkpoint.every=10"
MODEL = 64 * 10 + 10  # the parameters of a linear model of the digits
HOSPITALS = ["Bergen", "Oslo", "Tromsø"]
NET = """from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A working directory with a CSV, a network, and a folder named as a clone would be."""
    place = tmp_path_factory.mktemp("desk")
    (place / "mpifed").mkdir()
    (place / "net.py").write_text(NET)
    lines = ["id;age;sex;hospital;ill"]
    for k in range(240):
        ill = "yes" if (7 * k) % 70 > 35 - k % 11 else "no"
        lines.append(f"{k};{20 + 7 * k % 70};{'FM'[k % 2]};{HOSPITALS[k % 3]};{ill}")
    (place / "patients.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


@pytest.fixture(autouse=True)
def sitting_there(desk, monkeypatch) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.syspath_prepend(str(desk))
    for name, value in commands.OPEN_MPI.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def typed(capfd):
    """``mpifed ...`` as it is typed, in this process."""

    def answer(line: str, code: int = 0) -> commands.Outcome:
        _, subcommand, *words = shlex.split(line)
        found = commands.call(words, capfd, subcommand)
        assert found.code == code, found.err
        return found

    return answer


def words_of(line: str) -> list[str]:
    """A line for processes of its own."""
    known = {"mpifed": [sys.executable, "-m", "mpifed"], "mpirun": [mpirun()]}
    return [part for word in shlex.split(line) for part in known.get(word, [word])]


def shell(line: str, cwd: Path | None = None, **variables: str) -> str:
    """What a line prints in processes of its own."""
    more = {"env": commands.environment(**variables), "capture_output": True, "text": True}
    done = subprocess.run(words_of(line), cwd=cwd, timeout=120, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def first(desk) -> Path:
    """The first run of all."""
    shell(f"mpifed run {WORDS} --output runs/first", desk)
    return desk / "runs" / "first"


@pytest.fixture(scope="module")
def patients(desk) -> Path:
    options = {"data.label": "ill", "data.client": "hospital", "data.drop": ["id"], "rounds": 5}
    return mpifed.run(data=f"{desk}/patients.csv", **options, output=desk / "patients").directory


@pytest.fixture(scope="module")
def study(desk) -> Path:
    """FedAvg and Local over three seeds."""
    for name in ("fedavg", "local"):
        for seed in range(3):
            where = desk / "study" / f"{name}-{seed}"
            mpifed.run("digits-fedem", **SMALL, algorithm=name, seed=seed, output=where)
    return desk / "study"


def scores(study: Path, column: str) -> np.ndarray:
    """What FedAvg and Local reached over the seeds, (2, 3)."""
    runs = [[f"{name}-{seed}" for seed in range(3)] for name in ("fedavg", "local")]
    return np.array([[mpifed.read(study / run).metrics[column][-1] for run in row] for row in runs])


def digest(run: str | Path) -> str:
    return summary_of(Path(run))["state_digest"]


def table(page: str) -> pd.DataFrame:
    """The table of a page."""
    lines = re.findall(r"^\| (.*) \|$", Path(page).read_text(encoding="utf-8"), re.MULTILINE)
    return pd.DataFrame([line.split(" | ") for line in lines[2:]], columns=lines[0].split(" | "))


# A student.


def test_student_1_a_first_run_has_a_score(first):
    score = float(rows(first)[-1]["test_accuracy"])
    assert summary_of(first)["test_accuracy"] == score > 0.5 and (first / "DONE").exists()


def test_student_2_two_ranks_give_the_digest_of_one(first, typed):
    shell(f"mpifed run {WORDS} --ranks 2 --output runs/ranks")
    assert summary_of(Path("runs/ranks"))["ranks"] == 2
    assert rows(Path("runs/ranks")) == rows(first)  # with their digests
    typed(f"mpifed run {WORDS} --output runs/ranks", 2)  # there is a run


def test_student_3_hospitals_of_a_csv_keep_their_names(patients, typed):
    found, trained = mpifed.read(patients), mpifed.load(patients)
    assert found.clients["client_name"].tolist() == HOSPITALS
    assert (found.class_names, summary_of(patients)["experiment"]) == (("no", "yes"), "patients")
    for name, expected in zip(HOSPITALS, found.clients["test_accuracy"], strict=True):
        samples = trained.samples(name).test
        right = (trained.client(name)(samples.x)[:, 0] > 0) == samples.y.bool()
        assert right.double().mean().item() == pytest.approx(expected)
    lines = Path("patients.csv").read_text(encoding="utf-8").splitlines()
    lines[1], lines[6] = "0;;F;Oslo;no", "5;30;F;;yes"
    Path("faulty.csv").write_text("\n".join(lines), encoding="utf-8")
    refused = typed("mpifed run data=faulty.csv data.label=ill data.client=hospital", 2)
    assert "line 2" in refused.err and "line 7" in refused.err


def test_student_4_a_topology_on_the_command_line_and_in_python(typed):
    typed(f"mpifed run {WORDS} topology=ring --output runs/ring")
    python = mpifed.run("digits-fedem", **SMALL, topology="ring")
    assert python.summary["state_digest"] == digest("runs/ring")
    assert summary_of(Path("runs/ring"))["graph"]["degree"] == 2


def test_student_5_words_of_other_tools(typed):
    known = {"lr=0.1": "local.lr", "data.batch_size=9": "local.batch_size"}
    known |= {"--rounds 3": "rounds=3", "model=net.py": "net:Net"}
    for word, meant in known.items():
        assert meant in typed(f"mpifed run {WORDS} {word} --output runs/wrong", 2).err
    assert not Path("runs/wrong").exists()
    words = "epochs=2 batch_size=16 optimizer=adam"
    found = json.loads(typed(f"mpifed run {WORDS} {words} --dry-run --json").out)["configuration"]
    assert {"epochs": 2, "batch_size": 16, "optimizer": "adam"}.items() <= found["local"].items()


def resumed_as_if_never_stopped(line: str, name: str, number: int, typed) -> bool:
    """Stop a long run, go on in one process, and run as many rounds without a stop."""
    cut = Path(name).absolute()
    line = f"{line} {LONG} --output {cut}"
    with commands.started(words_of(line), stdout=subprocess.DEVNULL) as process:
        commands.wait_for(cut / "checkpoints" / "round-000010.h5", process)
        process.send_signal(number)
        assert process.wait(60) == 75
    end = f"rounds={summary_of(cut)['rounds'] + 3}"
    typed(f"mpifed run --resume --output {cut} {end}")
    typed(f"mpifed run {LONG} {end} --output {cut}-whole")
    return summary_of(cut)["ranks"] == 1 and digest(cut) == digest(f"{cut}-whole")


def test_student_6_ctrl_c_saves_and_resume_goes_on(typed):
    assert resumed_as_if_never_stopped("mpifed run", "runs/cut", signal.SIGINT, typed)


def test_student_7_a_sweep_over_seeds_and_a_table_with_spread(first, typed):
    for _ in range(2):  # the second time nothing is left to do
        typed(f"mpifed sweep {WORDS} 'seed=range(2)' --jobs 2 --output runs/sweep")
    assert digest("runs/sweep/seed=0") == digest(first) != digest("runs/sweep/seed=1")
    typed("mpifed report runs/sweep --format none --output spread")
    row = pd.read_csv("spread/table.csv").iloc[0]
    found = [summary_of(Path(f"runs/sweep/seed={seed}"))["test_accuracy"] for seed in range(2)]
    spread = [row["test_accuracy"], row["test_accuracy_deviation"]]
    assert spread == pytest.approx([np.mean(found), np.std(found, ddof=1)])


def test_student_search_with_optuna(typed):
    pytest.importorskip("optuna")
    words = f"{WORDS} evaluation.validation_fraction=0.2 'local.lr=log(1e-3,1)'"
    typed(f"mpifed sweep {words} --optuna 2 --output runs/search")
    typed(f"mpifed sweep {words} --optuna 3 --output runs/search")
    scores = pd.read_csv("runs/search/index.csv", index_col="directory")["local.lr"]
    assert list(scores.index) == ["trial-0000", "trial-0001", "trial-0002"]
    assert scores.between(1e-3, 1).all()
    typed("mpifed report runs/search --format none --output found")
    assert len(pd.read_csv("found/table.csv")) == 3


def test_student_8_a_method_of_ones_own(typed):
    typed("mpifed new method gentle")
    own = {**SMALL, "algorithm": "gentle:Gentle"}
    one = mpifed.run("digits-fedem", **own)
    several = mpifed.run("digits-fedem", **own, ranks=2)
    assert several.summary["state_digest"] == one.summary["state_digest"]
    shipped = mpifed.run("digits-fedem", **SMALL, algorithm="fedavg")
    assert np.allclose(one.metrics["train_loss"], shipped.metrics["train_loss"], rtol=1e-5)


def test_student_9_a_network_of_ones_own(typed):
    typed(f"mpifed run {WORDS} algorithm=fedavg model=net.py:Net --output runs/net")
    (network,) = mpifed.load("runs/net").components
    assert [tuple(each.shape) for each in network.parameters()] == [(10, 64), (10,)]
    assert summary_of(Path("runs/net"))["up_bits"] == 4 * 6 * 32 * MODEL


def test_student_10_from_a_notebook():
    result = mpifed.run("digits-fedem", **SMALL)
    trained, found = mpifed.load(result), result.clients["test_accuracy"]
    samples = trained.samples(3).test
    right = trained.client(3)(samples.x).argmax(1) == samples.y
    assert right.double().mean().item() == pytest.approx(found[3])
    mean = np.average(found, weights=result.clients["n_test"])
    assert mean == pytest.approx(result.metrics["test_accuracy"][-1])


def test_student_11_auc_and_f1_of_hospitals(typed):
    words = "data=patients.csv data.label=ill data.client=hospital data.drop=[id] rounds=5"
    words += " evaluation.metrics=[balanced_accuracy,f1,auc,confusion]"
    typed(f"mpifed run {words} --output runs/ill")
    last, result = rows(Path("runs/ill"))[-1], mpifed.read("runs/ill")
    (_, fp), (fn, tp) = result.clients["test_confusion"].sum(axis=0)
    assert float(last["test_f1"]) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    trained = mpifed.load("runs/ill")
    for name, auc in zip(HOSPITALS, result.clients["test_auc"], strict=True):
        test = trained.samples(name).test
        scores, ill = trained.client(name)(test.x)[:, 0].detach().numpy(), test.y.numpy() == 1
        above, below = scores[ill][:, None], scores[~ill][None]
        assert auc == pytest.approx(((above > below) + (above == below) / 2).mean())
    typed("mpifed report runs/ill --latex --format none --output ill")
    assert f"{100 * float(last['test_auc']):.1f}" in Path("ill/table.tex").read_text()
    assert str(tp) in Path("ill/confusion.tex").read_text()
    assert "AUC" in Path("ill/report.html").read_text(encoding="utf-8")


def test_student_12_a_score_of_ones_own(typed):
    Path("ours.py").write_text("def right(y_true, y_pred):\n    return (y_true == y_pred).mean()\n")
    for name in ("ours:right", "ours.py:right"):
        typed(f"mpifed run {WORDS} evaluation.metrics={name} --output runs/{name[:7]}")
        last = rows(Path(f"runs/{name[:7]}"))[-1]
        assert float(last["test_right"]) == pytest.approx(float(last["test_accuracy"]))


def test_student_13_one_test_set_as_papers_on_one_model_have(typed):
    typed(f"mpifed run {WORDS} algorithm=fedavg evaluation.central=holdout --output runs/central")
    last = rows(Path("runs/central"))[-1]
    assert 0.3 < float(last["central_test_accuracy"]) <= 1 and float(last["central_test_loss"]) > 0
    refused = typed(f"mpifed run {WORDS} algorithm=local evaluation.central=holdout", 2)
    assert "local" in refused.err and "share" in refused.err


def test_student_13_one_test_set_of_ones_own(people, typed):
    words = "data=patients.csv data.label=ill data.client=hospital data.drop=[id] rounds=5"
    other = people.drop(columns=["id", "hospital"])[:90]
    other.to_csv("elsewhere.csv", index=False)
    other.to_parquet("elsewhere.parquet")
    scores = []
    for ending in ("csv", "parquet"):
        central = f"evaluation.central=elsewhere.{ending}"
        typed(f"mpifed run {words} {central} --output runs/central-{ending}")
        scores.append(float(rows(Path(f"runs/central-{ending}"))[-1]["central_test_accuracy"]))
    named = {"label": "ill", "client": "hospital", "drop": ["id"], "rounds": 5}
    result = mpifed.run(data=people, **named, **{"evaluation.central": other})
    assert scores == [pytest.approx(result.metrics["central_test_accuracy"][-1])] * 2


def test_student_14_a_new_patient(patients):
    trained = mpifed.load(patients)
    new = pd.DataFrame({"sex": ["F", "M"], "age": [63, 21]})  # in another order, without an id
    new.to_csv("new.csv", index=False)
    said, p = trained.predict("new.csv"), trained.predict(new, probabilities=True)
    assert set(said) <= {"no", "yes"} and p.shape == (2, 2)
    assert np.array_equal(said, p.idxmax(axis=1))
    assert np.array_equal(said, trained.predict(new)) and trained.encode(new).shape == (2, 3)
    assert trained.feature_names == ("age", "sex_F", "sex_M")
    assert set(trained.predict("patients.csv", client="Oslo")) == {"no", "yes"}
    with pytest.raises(ValueError, match="'X' in column 'sex'"):
        trained.predict({"age": 63, "sex": "X"})


def test_student_15_a_csv_is_standardised_whatever_the_model(patients, typed):
    words = "data=patients.csv data.label=ill data.client=hospital data.drop=[id] rounds=5"
    typed(f"mpifed run {words} model=linear --output runs/linear")
    assert digest("runs/linear") == digest(patients)
    for run in ("runs/linear", patients):
        assert "numbers are standardised" in (Path(run) / "log.txt").read_text(encoding="utf-8")
    typed(f"mpifed run {words} data.standardise=false --output runs/raw")
    assert "not standardised" in Path("runs/raw/log.txt").read_text(encoding="utf-8")
    assert digest("runs/raw") != digest("runs/linear")


def test_student_16_texts_of_unequal_length_with_labels(typed):
    lines = ["review,stars,site"]
    for k in range(120):
        words = "good fine" if k % 2 else "bad awful dull"
        lines.append(f'"{words}, {"really " * (k % 7)}",{"up" if k % 2 else "down"},{k % 3}')
    Path("reviews.csv").write_text("\n".join(lines))
    words = (
        "data.path=reviews.csv data.features=review data.label=stars data.client=site local.lr=1"
    )
    typed(f"mpifed run data=labelled_texts {words} rounds=8 --output runs/bag")
    typed(f"mpifed run data=labelled_texts {words} model=gru rounds=8 --output runs/gru")
    for run in ("runs/bag", "runs/gru"):
        assert summary_of(Path(run))["test_accuracy"] > 0.9
        assert mpifed.load(run).predict(["Good fine, really", "bad dull,"]).tolist() == [
            "up",
            "down",
        ]


# An administrator.


def test_administrator_1_an_installation_works_and_names_its_versions(first):
    shell(f"mpirun -n 2 mpifed run {WORDS} --output runs/two")
    summary = summary_of(Path("runs/two"))
    assert summary["mpi_bytes_sent"] > 0 and summary["state_digest"] == digest(first)
    assert summary["versions"]["python"] == platform.python_version()
    assert re.fullmatch(r"\w.* \d+\.\d+\.\d+", summary["versions"]["mpi"])
    supported = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    for page in ("README.md", "docs/install.md"):
        assert f"Python {supported[0]} to {supported[-1]}" in (ROOT / page).read_text()


def test_administrator_2_memory_and_bytes_before_a_run(first, typed):
    words = f"{WORDS} --output runs/planned --dry-run --json"
    plan = json.loads(typed(f"mpifed run {words}").out)["plan"]
    assert not Path("runs/planned").exists()
    assert plan["sample_bytes_by_rank"] == [1797 * (64 * 4 + 8)]  # pixels and a label
    assert plan["state_bytes_by_rank"][0] >= 4 * 3 * 4 * MODEL  # clients, components
    assert plan["message_bytes"] == 3 * 4 * MODEL
    assert summary_of(first)["up_bits"] == 6 * 4 * 8 * plan["message_bytes"]


def test_administrator_3_the_script_of_a_job(typed):
    Path("site.yaml").write_text("{account: my-project, modules: [gcc/13]}")
    script = typed(f"mpifed jobs render {WORDS} job.ranks=4 --site site.yaml").out
    assert re.search(r"^#.*my-project$(.*\n)+module load -- gcc/13$", script, re.MULTILINE)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_administrator_4_a_job_is_checked_where_there_is_no_scheduler(typed, monkeypatch):
    words = f"{WORDS} job.ranks=2 job.mpirun={mpirun()} --output runs/job"
    monkeypatch.setenv("PATH", "/usr/nowhere")
    assert "SLURM" in typed(f"mpifed jobs check {words}").out
    typed(f"mpifed jobs submit {words}", 2)
    assert not Path("runs/job").exists()


def test_administrator_5_a_killed_rank_ends_the_job_and_is_named(desk):
    words = words_of(f"mpirun -n 2 mpifed run {LONG} --output {desk}/killed")
    with commands.started(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        commands.wait_for(desk / "killed" / "checkpoints" / "round-000010.h5", process)
        os.kill(commands.of_rank(1, desk / "killed"), signal.SIGKILL)
        assert process.wait(20) not in (0, 2, 75)
        (line,) = [each for each in process.stderr if each.startswith("mpifed: ")]
    assert "rank 1 " in line and not (desk / "killed" / "DONE").exists()


def test_administrator_6_an_output_that_cannot_be_written(typed):
    before = sorted(Path().rglob("*"))
    for place in ("patients.csv", "patients.csv/runs", "/proc/run"):
        assert place in typed(f"mpifed run {WORDS} --output {place}", 2).err
    assert sorted(Path().rglob("*")) == before


def test_administrator_7_a_job_stops_and_goes_on_with_other_ranks(typed):
    number = signal.SIGUSR1 if "Open MPI" in shell("mpirun --version") else signal.SIGTERM
    assert resumed_as_if_never_stopped("mpirun -n 2 mpifed run", "runs/moved", number, typed)


def test_administrator_8_data_are_staged_as_one_file(patients, typed):
    words = "--path patients.csv --label ill --client hospital --drop [id] --standardise true"
    typed(f"mpifed data csv {words} --clients 3 --output staged.h5")
    typed("mpifed run data=staged.h5 rounds=5 --output runs/staged")
    assert digest("runs/staged") == digest(patients)
    assert list(mpifed.load("runs/staged").client_names) == HOSPITALS


def test_administrator_9_a_finished_run_is_repeated_and_verified(first, typed):
    typed("mpifed run runs/first/config.yaml --output runs/again")
    assert rows(Path("runs/again")) == rows(first)
    shell("mpifed verify runs/first --last 1 --ranks 2")
    metrics = Path(shutil.copytree(first, "runs/changed")) / "metrics.csv"
    metrics.write_text(metrics.read_text().replace(rows(first)[-1]["test_loss"], "0.5"))
    assert commands.in_child(lambda: run_command(["verify", "runs/changed"])) == 1


def test_administrator_10_answers_for_programs(first, typed):
    listed = json.loads(typed("mpifed run --list --json").out)
    kinds = {(each["kind"], each["name"]) for each in listed}
    assert {("algorithm", "fedprox"), ("topology", "ring"), ("data", "csv")} <= kinds
    (about,) = json.loads(typed("mpifed run --list fedprox --json").out)
    defaults = {each["name"]: each["default"] for each in about["options"]}
    plan = json.loads(typed(f"mpifed run {WORDS} algorithm=fedprox --dry-run --json").out)
    assert plan["configuration"]["algorithm"] == {"name": "fedprox", **defaults}


# What people ask for next.


def test_a_run_stops_at_a_target_and_goes_on(first, typed):
    line = f"mpifed run {WORDS} evaluation.stop_at='test_accuracy>=0.3' --output runs/target"
    assert "stopped_at" in typed(line).out and summary_of(Path("runs/target"))["rounds"] == 3
    typed("mpifed run --resume --output runs/target")
    assert summary_of(Path("runs/target"))["status"] == "stopped_at"
    typed("mpifed run --resume --output runs/target stop_at=null")
    assert digest("runs/target") == digest(first)


def test_patience_and_the_best_round():
    words = {**SMALL, "rounds": 30, "evaluation.validation_fraction": 0.2, "local.lr": 1e-12}
    words |= {"evaluation.patience": 2, "checkpoint.best": "validation_accuracy"}
    result = mpifed.run("digits-fedem", **words)
    assert (result.status, result.summary["rounds"]) == ("stopped_at", 6)
    assert mpifed.load(result, "best").round == 0


def test_a_function_of_a_notebook_stops_a_run(typed):
    result = mpifed.run("digits-fedem", **SMALL, on_round=lambda recorded: recorded.round >= 3)
    assert (result.status, result.summary["rounds"]) == ("stopped_at", 3)
    assert "test accuracy" in result._repr_html_() and result.plot().get_lines()
    with pytest.raises(mpifed.InputError):
        mpifed.run("digits-fedem", **SMALL, algorithm="fedavgg")


def test_a_run_is_cited(first, typed):
    bibtex = typed("mpifed cite runs/first").out
    assert "@software{mpifed," in bibtex and "Mixture of Distributions" in bibtex


def test_a_key_is_explained_by_its_full_name(typed):
    shown = typed("mpifed run --list evaluation.central").out
    assert "'holdout'" in shown and "(default null)" in shown
    assert "of fedprox" in typed("mpifed run --list algorithm.mu").out


def test_curves_of_two_methods_are_drawn_together(study):
    axes = mpifed.plot({"FedAvg": study / "fedavg-0", "Local": study / "local-0"})
    assert [line.get_label() for line in axes.get_lines()] == ["FedAvg", "Local"]


def test_a_cluster_is_tried_on_one_page(typed):
    assert "page" in typed("mpifed test --ranks 2 --output tried.md").out
    page = Path("tried.md").read_text(encoding="utf-8")
    assert "**All is fine.**" in page and "failed" not in page and "| MPI |" in page
    assert "a killed rank ends the job of 2 | ok" in page
    assert list(Path().glob(".mpifed-test-*")) == []


# A reader.


@pytest.fixture(scope="module")
def report(study, desk) -> Path:
    words = f"report {study} --against FedAvg --spread se --latex --output {desk}/report"
    assert run_command(words.split()) == 0
    return desk / "report"


def test_reader_1_the_report_is_one_page_without_a_network(report):
    page = (report / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=[\"']?(?!#|data:)[^\"' >]+", page)
    assert not re.findall(r"url\((?![\"']?(?:#|data:))|@import", page)
    assert {"prefers-color-scheme", "viewport"} <= {*re.findall(r"[\w-]+", page)}


def test_reader_2_a_table_for_latex(report, study):
    tex = (report / "table.tex").read_text(encoding="utf-8")
    lines = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert tex.count("{") == tex.count("}")
    assert len(lines) == 3 and len({line.count(" & ") for line in lines}) == 1
    for values, line in zip(100 * scores(study, "test_accuracy"), lines[1:], strict=True):
        assert rf"{values.mean():.1f} $\pm$ {values.std(ddof=1) / 3**0.5:.1f}" in line
    names = ("test_accuracy", "test_accuracy_p10", "test_accuracy_worst10")
    columns = [scores(study, column) for column in names]
    assert tex.count(r"\textbf") == sum(ttest_rel(*both).pvalue < 0.05 for both in columns)


def test_reader_3_a_terminal_of_eighty_columns_and_one_of_ascii(study, typed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = typed(f"mpifed report {study}").out
    for text in (shown, shell(f"mpifed report {study}", PYTHONIOENCODING="ascii", LC_ALL="C")):
        assert max(map(len, text.splitlines())) <= 80
        assert {"FedAvg", "Local", "digits"} <= {*re.findall(r"\w+", text)}


def test_reader_4_accuracy_of_each_client_by_name(patients, typed):
    typed(f"mpifed report {patients} --clients --format none --output by-client")
    shown = table("by-client/clients.md")
    expected = 100 * mpifed.read(patients).clients["test_accuracy"]
    assert shown["Client"].tolist() == HOSPITALS
    assert shown["FedAvg"].astype(float).to_numpy() == pytest.approx(expected, abs=0.051)


NEIGHBOURS = {"ring": 2, "hypercube": 3, "complete": 7}  # of each of eight clients


@pytest.fixture(scope="module")
def graphs(desk) -> Path:
    """FedAvg by gossip over three graphs, with a clock."""
    about = {"clients": 8, "rounds": 12, "evaluation.every": 1, "algorithm": "fedavg"}
    links = {"network.latency": 0.01, "network.bandwidth": 1e6}
    for name in NEIGHBOURS:
        place = desk / "graphs" / name
        mpifed.run("digits-fedem", **about, **links, topology=name, output=place)
    return desk / "graphs"


def test_reader_5_the_best_graph_for_some_bits(graphs, typed):
    budget = 4 * 8 * 7 * 32 * MODEL  # four rounds of the complete graph
    typed(f"mpifed report {graphs} --within bits={budget} --format none --output within")
    best = []
    for name, degree in NEIGHBOURS.items():
        row = rows(graphs / name)[min(12, budget // (8 * degree * 32 * MODEL))]
        best.append(100 * float(row["test_accuracy"]))
    shown = table("within/within.md")["Average (%)"].astype(float)
    assert shown.tolist() == pytest.approx(sorted(best, reverse=True), abs=0.051)
    ranked = typed("mpifed topologies rank ring complete --n 8 --budget degree=2 --json").out
    assert [each["label"].split()[0] for each in json.loads(ranked)] == ["ring"]


def test_reader_6_the_gap_of_a_ring_and_its_picture(typed):
    words = "ring:n=16 --weights metropolis_hastings --json"
    shown = json.loads(typed(f"mpifed topologies show {words}").out)
    assert shown["spectral_gap"] == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 16)))
    w = topologies.mixing_matrix(topologies.build_graph("ring", 16), "metropolis_hastings")
    assert 1 - topologies.slem(w) == pytest.approx(shown["spectral_gap"])
    typed("mpifed topologies plot ring:n=16 --kind graph --output ring.png")
    assert Path("ring.png").read_bytes().startswith(b"\x89PNG")


def test_reader_7_bits_and_seconds_of_gossip_have_closed_forms(graphs):
    for name, degree in NEIGHBOURS.items():
        summary, bits = summary_of(graphs / name), degree * 32 * MODEL  # of a client's round
        assert summary["up_bits"] == summary["down_bits"] == 12 * 8 * bits
        seconds = 12 * (0.01 + bits / 1e6)  # a link is shared by its messages
        assert summary["simulated_seconds"] == pytest.approx(seconds)


def test_reader_8_two_methods_are_compared_seed_by_seed(report, study):
    shown = pd.read_csv(report / "comparison.csv").set_index("method").loc["Local"]
    fedavg, local = scores(study, "test_accuracy")
    assert shown["test_accuracy_difference"] == pytest.approx((local - fedavg).mean())
    p = ttest_rel(local, fedavg).pvalue
    assert f"| {p:.3f} |" in (report / "comparison.md").read_text()


def test_reader_9_fedem_finds_the_mixtures_that_the_data_have():
    random, shares = np.random.default_rng(0), np.linspace(0, 1, 5)  # of the second labelling
    x = random.standard_normal((2000, 10))
    clients = np.arange(2000) % 5
    swapped = random.random(2000) < shares[clients]
    y = (x @ random.standard_normal(10) > 0) ^ swapped
    options = {"algorithm.name": "fedem", "algorithm.n_components": 2, "local.lr": 0.3}
    result = mpifed.run(data=mpifed.arrays(x, y, clients=clients), clients=5, rounds=60, **options)
    found = result.clients["mixture"][:, 1]
    assert (found if found[-1] > 0.5 else 1 - found) == pytest.approx(shares, abs=0.2)


def test_reader_10_every_method_leads_to_its_paper(typed):
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    links = dict(re.findall(r"^\| \[`(\w+)`\]\(([^)]+)\)", page, re.MULTILINE))
    listed = json.loads(typed("mpifed run --list algorithms --json").out)
    assert {each["name"] for each in listed} == {*links}
    for place in links.values():
        path, _, anchor = place.partition("#")
        text = (ROOT / "docs" / path).read_text(encoding="utf-8")
        slugs = re.sub(r"[^\w\n -]", "", text).lower().replace(" ", "-").splitlines()
        assert anchor in ["", *(each.lstrip("-") for each in slugs)]
        assert re.search(r"\b(19|20)\d\d\b", text)


# Data as a newcomer has them.


@pytest.fixture(scope="module")
def people(desk) -> pd.DataFrame:
    """The patients, as pandas reads them."""
    return pd.read_csv(desk / "patients.csv", sep=";")


def test_data_1_a_table_gives_the_digest_of_its_file(people, typed):
    words = "data.label=ill data.client=hospital data.drop=[id] rounds=5"
    typed(f"mpifed run data=patients.csv {words} --output runs/file")
    table = mpifed.frame(people, label="ill", client="hospital", drop=["id"])
    result = mpifed.run(data=table, rounds=5)
    assert result.summary["state_digest"] == digest("runs/file")
    assert result.clients["client_name"].tolist() == HOSPITALS
    people.to_parquet("patients.parquet")
    words += " data.standardise=true"
    typed(f"mpifed run data=patients.parquet {words} --output runs/parquet")
    assert digest("runs/parquet") == digest("runs/file")


def test_data_2_each_client_has_samples_of_its_own(people):
    of_each = {
        name: part.drop(columns=["id", "hospital"]) for name, part in people.groupby("hospital")
    }
    result = mpifed.run(data=mpifed.frame(of_each, label="ill"), rounds=5)
    whole = mpifed.frame(people, label="ill", client="hospital", drop=["id"])
    assert np.allclose(
        result.metrics["test_accuracy"],
        mpifed.run(data=whole, rounds=5).metrics["test_accuracy"],
        atol=0.2,
    )
    assert result.clients["client_name"].tolist() == HOSPITALS
    x, y = np.random.default_rng(0).normal(size=(90, 4)), np.arange(90) % 3
    listed = mpifed.run(data=[(x[:40], y[:40]), (x[40:], y[40:])], rounds=1)
    assert listed.clients["n_train"].tolist() == [24, 30]


def test_data_3_a_torch_data_set_is_dealt_by_a_partition():
    x, y = torch.randn(300, 1, 4, 4), torch.arange(300) % 5
    dataset = torch.utils.data.TensorDataset(x, y)
    words = {"data.partition": "pathological", "clients": 5, "rounds": 1}
    result = mpifed.run(data=dataset, **words)
    assert result.clients["n_train"].sum() == 180
    tested = mpifed.run(data={"train": dataset, "test": dataset}, clients=3, rounds=1)
    assert tested.clients["n_train"].sum() == tested.clients["n_test"].sum() == 300


def test_data_4_a_directory_has_a_file_for_each_hospital(people, typed):
    Path("hospitals").mkdir()
    for name, part in people.groupby("hospital"):
        part.drop(columns=["id", "hospital"]).to_csv(f"hospitals/{name}.csv", index=False)
    typed("mpifed run data=hospitals data.label=ill rounds=2 --output runs/hospitals")
    assert mpifed.read("runs/hospitals").clients["client_name"].tolist() == HOSPITALS


def test_data_5_dates_of_a_file_of_windows_are_told(people, typed):
    days = pd.date_range("2025-01-01", periods=len(people)).strftime("%d.%m.%Y")
    people.assign(admitted=days).to_csv("windows.csv", index=False, encoding="cp1252")
    words = "data=windows.csv data.label=ill data.client=hospital"
    assert "data.encoding=cp1252" in typed(f"mpifed run {words} --output runs/w", 2).err
    told = typed(f"mpifed run {words} data.encoding=cp1252 --dry-run").out
    assert "data.drop=[admitted]" in told


def test_data_6_devices_are_there_as_recorded(typed):
    Path("devices.csv").write_text("client,from,to\n0,1,\n1,1,2\n2,3,6\n")
    trace = "'participation={name: trace, path: devices.csv}'"
    typed(f"mpifed run {WORDS} {trace} evaluation.every=1 --output runs/devices")
    found = [int(row["active_clients"]) for row in rows(Path("runs/devices"))[1:]]
    assert found == [2] * 6
    Path("named.csv").write_text("client,from,to\nOslo,1,\nBergen,1,2\n")
    hospitals = "data=patients.csv data.label=ill data.client=hospital data.drop=[id] rounds=3"
    named = trace.replace("devices", "named")
    typed(f"mpifed run {hospitals} {named} evaluation.every=1 --output runs/named")
    assert [int(row["active_clients"]) for row in rows(Path("runs/named"))[1:]] == [2, 2, 1]
    Path("devices.csv").write_text("client,from,to\n0,5,1\n")
    assert "line 2" in typed(f"mpifed run {WORDS} {trace}", 2).err


def test_data_7_a_word_that_arrays_does_not_take(people):
    with pytest.raises(mpifed.errors.InputError, match=r"is no option.*'clients'"):
        mpifed.arrays(people[["age"]], people["ill"], client_s=people["hospital"])
