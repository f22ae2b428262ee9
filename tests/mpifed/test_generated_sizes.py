"""Options that neither memory nor int64 holds: refused with the field, before anything is made."""

from __future__ import annotations

import pytest
from commands import TINY, call
from test_bad_input import refused

from mpifed.data.__main__ import main as make_data
from mpifed.launch import main as run
from mpifed.report.__main__ import main as make_report

T, WIDEST, BEYOND = 10**12, 2**63 - 1, 10**20

SINE = ["flix-sine", "rounds=2"]
ATOMS = ["fedmm-homogeneous", "rounds=2"]
POINTS = [*ATOMS, "data=gaussian_mixture", "algorithm.surrogate=gaussian_mixture"]
COUNTS = [*ATOMS, "data=poisson", "algorithm.surrogate=poisson"]
TAGS = ["tags-reptile", "rounds=2"]
MAPS = ["transport-fedmm-ot", "rounds=2", "clients=2", "data.samples=4"]
TUNED = [*TINY, "algorithm=fedavg_ft"]

DATA = [
    (SINE, [f"data.n_train={T}"], "data.n_train is 1000000000000, which"),
    (SINE, [f"data.n_test={WIDEST}"], f"data.n_test is {WIDEST}, which"),
    (SINE, [f"data.n_val={BEYOND}"], f"at most {WIDEST}"),
    (SINE, ["clients=1000000000"], "clients is 1000000000, which"),
    (SINE, ["data.n_train=10000000", "clients=100000"], "data.name 'sine' gives the clients"),
    (ATOMS, [f"data.samples={T}"], "data.samples is 1000000000000, which"),
    (ATOMS, [f"data.dim={T}"], "with 15 atoms in 1000000000000 dimensions needs"),
    (ATOMS, [f"data.atoms={T}"], "with 1000000000000 atoms in"),
    (["fedmm-heterogeneous"], ["clients=1000000", "data.samples=1000000"], "clients is 1000000"),
    (POINTS, [f"data.n_components={T}"], "data.n_components is 1000000000000, which"),
    (POINTS, [f"data.dimension={T}"], "which in 1000000000000 dimensions"),
    (POINTS, [f"data.n_train={T}"], "data.n_train is 1000000000000, which"),
    (POINTS, ["data.sharding=sorted", "clients=20000000"], "data.sharding is sorted, which"),
    (POINTS, ["data.separation=1e308"], "data.separation is 1e+308, which makes"),
    (COUNTS, [f"data.n_train={T}"], "data.n_train is 1000000000000, which"),
    (COUNTS, ["data.theta=800"], "a Poisson mean of"),
    (TAGS, [f"data.vocabulary={T}"], "data.vocabulary is 1000000000000, which"),
    (TAGS, [f"data.tags={T}"], "data.tags is 1000000000000, which"),
    (TAGS, [f"data.topics={T}"], "data.tags is 50, which with 1000000000000 topics"),
    (TAGS, ["data.words=1e300"], "data.words is 1e+300, which"),
    (MAPS, [f"data.samples={T}"], "data.samples is 1000000000000, which"),
    (MAPS, ["data.dimension=10000000"], "data.dimension is 10000000, which"),
    (TINY, [f"data.n_test={T}"], "data.n_test is 1000000000000, which"),
]

STEPS = [
    (
        TINY,
        [f"local.steps={BEYOND}"],
        f"at least 1, or empty (null), at most {WIDEST}",
    ),
    (TINY, [f"local.steps={T}"], "local.steps is 1000000000000, which needs"),
    (TINY, [f"local.epochs={BEYOND}"], f"whole number, at least 1, at most {WIDEST}"),
    (TINY, [f"local.epochs={T}"], "local.epochs is 1000000000000, which with"),
    (TINY, [f"local.batch_size={BEYOND}"], f"local.batch_size is {BEYOND}; it must be"),
    (TINY, ["rounds=1e300"], "rounds is '1e300'; it must be"),
    (TUNED, [f"algorithm.tune_epochs={T}"], "algorithm.tune_epochs is 1000000000000, which"),
    (TAGS, [f"algorithm.inner_steps={T}"], "algorithm.inner_steps is 1000000000000, whose points"),
    (MAPS, [f"local.batch_size={T}"], "local.batch_size is 1000000000000, which"),
    (MAPS, [f"local.steps={T}"], "local.steps is 1000000000000, which"),
]


@pytest.mark.parametrize(
    ("words", "changes", "expected"), [*DATA, *STEPS], ids=[" ".join(c[1]) for c in [*DATA, *STEPS]]
)
def test_what_no_memory_holds_is_refused_with_its_field(words, changes, expected, tmp_path, capfd):
    outcome = call([*words, *changes, "--output", tmp_path / "run"], capfd)
    refused(outcome, expected, tmp_path / "run")


def test_minibatches_larger_than_any_shard_hold_all_of_it(tmp_path, capfd):
    runs = [
        [*TINY, "--output", tmp_path / str(size), f"local.batch_size={size}"]
        for size in (WIDEST, 2000)
    ]
    assert [call(words, capfd).code for words in runs] == [0, 0]
    one, other = ((words[-2] / "metrics.csv").read_text().splitlines() for words in runs)
    assert [line.split(",")[2:] for line in one] == [line.split(",")[2:] for line in other]


@pytest.mark.parametrize(
    "words",
    [
        ["poisson", "--clients", "2", "--n-train", str(T)],
        ["gaussian_mixture", "--clients", "2", "--dimension", str(WIDEST)],
        ["dictionary", "--clients", "2", "--samples", str(T)],
        ["synthetic", "--clients", str(T)],
        ["poisson", "--clients", "2", "--theta", "1000"],
    ],
)
def test_no_file_is_made_of_what_no_memory_holds(words, tmp_path, capfd):
    assert make_data([*words, "--output", str(tmp_path / "data.h5")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.isprintable()
    assert any(word in line for word in ("of memory, and", "Poisson mean"))
    assert list(tmp_path.iterdir()) == []


NAME = "x" * 5000
OUTPUT = ["--output", "o.h5"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (make_data, ["libsvm", "--path", NAME, "--clients", "2", *OUTPUT]),
        (make_data, ["ratings", "--raw", NAME, "--clients", "2", *OUTPUT]),
        (make_data, ["tags_file", "--path", NAME, "--clients", "2", *OUTPUT]),
        (make_data, ["federated", "--path", NAME, "--clients", "2", *OUTPUT]),
        (make_data, ["mnist", "--raw", NAME, "--clients", "2", *OUTPUT]),
        (make_data, ["mnist", "--raw", ".", "--prefix", NAME, "--clients", "2", *OUTPUT]),
        (make_data, ["poisson", "--clients", "2", "--output", NAME]),
        (make_report, [NAME, "--output", "o"]),
        (run, ["", "--dry-run"]),
    ],
)
def test_names_of_no_file_are_one_sentence(command, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert command(words) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.isprintable()
    assert list(tmp_path.iterdir()) == []
