"""Names of methods that differ in components, and the table of paired differences."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports import report
from run_directories import write_run
from scipy import stats

from mpifed.testing import run_command

INTERVAL = "95 % interval"
SERVER = {"name": "server", "average_over": "participants"}
PEER = {
    "name": "gossip",
    "topology": None,
    "weights": None,
    "schedule": {"name": "one_peer_exponential", "local_rounds": 1},
    "transport": "auto",
}
METROPOLIS = {"name": "metropolis_hastings"}


def gossip(
    topology: dict[str, Any], weights: dict[str, Any] = METROPOLIS, local_rounds: int = 1
) -> dict[str, Any]:
    schedule = {"name": "static", "local_rounds": local_rounds}
    return PEER | {"topology": topology, "weights": weights, "schedule": schedule}


def random_graph(p: float) -> dict[str, Any]:
    return {"name": "erdos_renyi", "p": p, "seed": None}


def methods_in(place: Path) -> dict[str, int]:
    """The seeds of each method, in the order of the table."""
    found = report(place)
    assert not found.notes
    return {method: seeds for (_, method), seeds in found.methods.items()}


@pytest.mark.parametrize(
    "exchanges",
    [
        {
            "FedEM": SERVER,
            "D-FedEM, ring, metropolis_hastings": gossip({"name": "ring"}),
            "D-FedEM, ring, fmmc": gossip({"name": "ring"}, {"name": "fmmc", "tolerance": 0.001}),
            "D-FedEM, erdos_renyi p=0.1, metropolis_hastings": gossip(random_graph(0.1)),
            "D-FedEM, erdos_renyi p=0.5, metropolis_hastings": gossip(random_graph(0.5)),
            "D-FedEM, one_peer_exponential": PEER,
        },
        {
            "D-FedEM, p=0.1": gossip(random_graph(0.1)),
            "D-FedEM, p=0.5": gossip(random_graph(0.5)),
        },
        {
            "D-FedEM, tolerance=0.1": gossip(random_graph(0.1), {"name": "fmmc", "tolerance": 0.1}),
            "D-FedEM, tolerance=0.5": gossip(random_graph(0.1), {"name": "fmmc", "tolerance": 0.5}),
        },
        {
            "D-FedEM, schedule.local_rounds=1": gossip({"name": "ring"}),
            "D-FedEM, schedule.local_rounds=2": gossip({"name": "ring"}, local_rounds=2),
        },
    ],
)
def test_components_are_named_and_their_options_where_they_differ(
    exchanges: dict[str, Any], tmp_path: Path
) -> None:
    for number, exchange in enumerate(exchanges.values()):
        write_run(tmp_path / f"{number}", exchange=exchange)
        write_run(tmp_path / f"{number}-again", exchange=exchange | {"transport": "x"}, seed=1)
    methods = methods_in(tmp_path)
    short = [name.replace("weights.", "").replace("topology.", "") for name in methods]
    assert short == list(exchanges)
    assert set(methods.values()) == {2}


def test_participation_by_name_and_by_number_stay_apart(tmp_path: Path) -> None:
    kinds = (1.0, 0.5, {"name": "bernoulli", "p": 0.5})
    for number, participation in enumerate(kinds):
        write_run(tmp_path / f"{number}", participation=participation)
    assert list(methods_in(tmp_path)) == [
        "FedEM, participation=1.0",
        "FedEM, participation=0.5",
        "FedEM, bernoulli",
    ]


def test_a_fraction_with_unbiased_weights_is_named_by_these(tmp_path: Path) -> None:
    def unbiased(fraction: float) -> dict[str, Any]:
        return {"name": "uniform", "fraction": fraction, "weights": "unbiased"}

    write_run(tmp_path / "a", participation=0.2)
    write_run(tmp_path / "b", participation=unbiased(0.2))
    assert list(methods_in(tmp_path)) == ["FedEM", "FedEM, weights=unbiased"]
    write_run(tmp_path / "c", participation=unbiased(0.5))
    assert list(methods_in(tmp_path)) == [
        "FedEM, participation=0.2",
        "FedEM, participation=0.2, weights=unbiased",
        "FedEM, participation=0.5, weights=unbiased",
    ]


def runs_of_three_seeds(place: Path) -> None:
    """FedEM at 0.7, 0.8 and 0.75 at the end, gossip above it by 1, 2 and 3 points on two seeds."""
    for seed, final in enumerate((0.7, 0.8, 0.75)):
        write_run(place / f"a{seed}", final=final, seed=seed)
    for seed, final in ((1, 0.82), (2, 0.78)):
        write_run(place / f"b{seed}", final=final, seed=seed, exchange=PEER, bits=5e5)


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    runs_of_three_seeds(tmp_path)
    server, peer = report(tmp_path, "--against", "FedEM").rows("comparison.csv")
    for column in ("test_accuracy", "test_accuracy_p10"):
        mean, deviation = (float(peer[f"{column}_difference{end}"]) for end in ("", "_deviation"))
        assert (mean, deviation) == pytest.approx((0.025, np.sqrt(0.5) / 100))
        assert float(server[f"{column}_difference"]) == 0


def test_runs_without_a_common_seed_have_no_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, exchange=PEER)
    text = report(tmp_path, "--against", "FedEM").texts["comparison.md"]
    assert "| – | – |" in text.splitlines()[-1]


def test_plus_minus_is_the_interval_everywhere_and_is_explained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs_of_three_seeds(tmp_path / "runs")
    output = tmp_path / "report"
    words = [str(tmp_path / "runs"), "--output", str(output), "--format", "none"]
    assert run_command(["report", *words, "--against", "FedEM"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    texts = {name: (output / name).read_text() for name in ("table.md", "comparison.md")}
    # Half the interval of differences of 2 and 3 points, and of ends at 82 and 78 per cent.
    half = stats.t.ppf(0.975, 1) * np.sqrt(0.5) / np.sqrt(2)
    assert f"+2.50 ± {half:.2f}" in texts["comparison.md"]
    ends = 100 * (np.array([0.82, 0.78]) - 0.25 * np.exp(-40 / 12))
    half = stats.t.ppf(0.975, 1) * ends.std(ddof=1) / np.sqrt(2)
    assert f"{ends.mean():.1f} ± {half:.1f}" in texts["table.md"]
    assert all(text.count(INTERVAL) == 1 for text in texts.values())
    assert said.count(INTERVAL) == 2  # below both tables
    assert f"{ends.mean():.2f} ± {half:.2f}" in (output / "report.html").read_text()


def test_the_first_round_at_a_target(tmp_path: Path) -> None:
    # Accuracy is 0.8 - 0.25 exp(-k / 12): 0.550, 0.691, 0.753, 0.779, 0.791.
    write_run(tmp_path / "a", final=0.8, bits=1e3)
    for target, expected in ((0.7, (20, 2e4, 2)), (0.8, None)):
        found = report(tmp_path, "--against", "FedEM", "--target", target)
        (row,) = found.rows("comparison.csv")
        cells = [row[name] for name in ("round", "up_bits", "seconds")]
        assert cells == [""] * 3 if expected is None else tuple(map(float, cells)) == expected


def test_the_command_writes_both_tables(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs_of_three_seeds(tmp_path / "runs")
    output = tmp_path / "report"
    words = [str(tmp_path / "runs"), "--output", str(output), "--against", "FedEM"]
    assert run_command(["report", *words, "--target", "0.76"]) == 0
    lines = (output / "comparison.md").read_text().splitlines()
    found = "+2.50 ± 6.35 | 0.126"
    assert lines[-2:] == [
        "| synthetic-paper | FedEM | 3 | 0 | – | 0 | – | 1 of 3 seeds | – | – |",
        f"| synthetic-paper | D-FedEM | 2 | {found} | {found} | 30 | 15 | 3 |",
    ]
    assert "+2.50 ± 6.35" in capfd.readouterr().out
    assert (output / "difference-rounds.png").stat().st_size > 5000
    with (output / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[1]["test_accuracy_difference"]) == pytest.approx(0.025)
    assert (rows[0]["round"], rows[1]["round"], rows[1]["seconds"]) == ("", "30", "3")


def test_the_best_graph_within_a_budget_and_accuracy_against_the_degree(tmp_path: Path) -> None:
    for degree, final in ((2, 0.7), (4, 0.75), (15, 0.8)):
        exchange = {"name": "gossip", "topology": {"name": f"graph_{degree}"}}
        write_run(tmp_path / f"runs/{degree}", final=final, bits=500.0 * degree, exchange=exchange,
                  graph={"degree": degree, "p": degree / 16})  # fmt: skip
    words = [str(tmp_path / "runs"), "--output", str(tmp_path / "report"), "--format", "none"]
    assert run_command(["report", *words, "--within", "degree=4", "bits=3e4"]) == 0
    # Accuracies of rounds 30 and 10, 0.7 - 0.25 exp(-30 / 12) and 0.75 - 0.25 exp(-10 / 12).
    lines = (tmp_path / "report" / "within.md").read_text().splitlines()
    assert [line.split(" | ")[1:] for line in lines[-2:]] == [
        ["D-FedEM, graph 2", "1", "2", "30", "30", "3", "67.9", "57.9 |"],
        ["D-FedEM, graph 4", "1", "4", "10", "20", "1", "64.1", "54.1 |"],
    ]
    for refused in (["speed=1"], ["bits=-1"], ["degree=1"]):
        assert run_command(["report", *words[:1], "--within", *refused]) == 2


def test_a_mean_within_limits_is_rounded_as_in_the_other_tables(tmp_path: Path, capfd) -> None:
    for seed, final in enumerate((0.75, 0.945)):
        write_run(tmp_path / f"{seed}", final=final, until=0, seed=seed)
    assert run_command(["report", tmp_path, "--within", "rounds=0", "--spread", "sd"]) == 0
    assert set(re.findall(r"59\.[78]", capfd.readouterr().out)) == {"59.8"}


def test_bad_comparisons_are_one_sentence_and_write_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs_of_three_seeds(tmp_path / "runs")
    for words, part in (
        (["--against", "FedM"], "--against.*'FedM'.*'FedEM'"),
        (["--target", "70"], r"--target.*70.*\(0, 1\)"),
        (["--target", "nan"], r"--target.*nan.*\(0, 1\)"),
    ):
        assert (
            run_command(["report", tmp_path / "runs", "--output", str(tmp_path / "report"), *words])
            == 2
        )
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert re.search(part, error)
        assert not (tmp_path / "report").exists()


def test_differences_are_drawn_with_their_intervals(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"runs/a{seed}", seed=seed, final=0.7 + 0.01 * seed)
        exchange = {"name": "gossip", "topology": {"name": "ring"}}
        final = 0.72 + 0.02 * seed
        write_run(tmp_path / f"runs/b{seed}", seed=seed, final=final, exchange=exchange)
    words = [tmp_path / "runs", "--format", "svg", "--label", "D-FedEM=D-FEDEM"]
    assert run_command(["report", *words, "--output", tmp_path / "alone"]) == 0
    assert not list((tmp_path / "alone").glob("difference*"))
    words += ["--against", "FedEM", "--output", tmp_path / "both"]
    assert run_command(["report", *words]) == 0
    assert (tmp_path / "both" / "difference-rounds.svg").exists()
    # Student's quantile with two degrees of freedom, times the error of 2, 3 and 4 points.
    half = 4.302653 / np.sqrt(3)
    assert f"+3.00 ± {half:.2f}" in (tmp_path / "both" / "comparison.md").read_text()
