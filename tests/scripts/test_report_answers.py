"""What a report says first, and what it leaves out because all methods have it in common."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from pages import parsed
from reports import report
from run_directories import fill_columns, write_run
from scipy import stats

FEDAVG = {"name": "fedavg"}
EM, AVERAGE = (0.75, 0.76, 0.77), (0.74, 0.77, 0.755)


def two_methods(place: Path, one=EM, other=AVERAGE) -> Path:
    for seed, finals in enumerate(zip(one, other, strict=True)):
        write_run(place / f"em{seed}", final=finals[0], seed=seed)
        write_run(place / f"avg{seed}", final=finals[1], seed=seed, algorithm=FEDAVG)
    return place


def words_of(page: str, section: str = "") -> str:
    """The words of a page, or of one of its sections, up to what is folded."""
    if section:
        page = page.partition(f'<section id="{section}">')[2].partition("</section>")[0]
        page = page.partition("<details>")[0]
    return " ".join(" ".join(parsed(page).words).split())


def difference(one, other) -> str:
    """The paired difference in points, as a sentence has it."""
    apart = 100 * (np.array(one) - other)
    half = stats.t.ppf(0.975, len(apart) - 1) * stats.sem(apart)
    p = stats.ttest_rel(one, other).pvalue
    return f"{apart.mean():+.2f} ± {half:.2f} points, p = {p:.3f}.".replace("-", "−")


def test_the_page_begins_with_whether_methods_differ(tmp_path: Path) -> None:
    found = report(two_methods(tmp_path))
    page = found.texts["report.html"]
    expected = f"No difference shown between FedAvg and FedEM: {difference(AVERAGE, EM)}"
    assert expected in words_of(page, "answer")
    assert "Highest mean test accuracy: FedEM, 75.11 ± 2.48 %." in words_of(page, "answer")
    assert re.findall(r'<section id="(\w+)"', page)[:3] == ["answer", "curves", "results"]
    assert found.printed.splitlines()[1] == expected


def test_a_method_that_differs_is_said_to_be_better_or_worse(tmp_path: Path) -> None:
    worse = np.array(EM) - (0.031, 0.03, 0.029)
    found = report(two_methods(tmp_path, other=worse), "--against", "FedAvg")
    assert "FedEM is better than FedAvg: +3.00 ± 0.25 points, p < 0.001." in found.printed
    found = report(tmp_path)
    assert "FedAvg is worse than FedEM: −3.00 ± 0.25 points, p < 0.001." in found.printed


def test_one_seed_does_not_tell_whether_methods_differ(tmp_path: Path) -> None:
    printed = report(two_methods(tmp_path, EM[:1], AVERAGE[:1])).printed
    assert "differs from FedEM by −1.00 points, with one common seed." in printed


@pytest.mark.parametrize(("seeds", "few"), [(1, "One seed"), (2, "Two seeds"), (3, "")])
def test_the_answer_tells_of_too_few_seeds(seeds: int, few: str, tmp_path: Path) -> None:
    found = report(two_methods(tmp_path, EM[:seeds], AVERAGE[:seeds]))
    for words in (found.printed, words_of(found.texts["report.html"], "answer")):
        assert ("cannot show much" in words) == ("seed=range(10)" in words) == bool(few)
        assert few in words


def test_without_accuracies_the_least_objective_is_the_answer(tmp_path: Path) -> None:
    blank = {"test_accuracy": "", "test_accuracy_p10": ""}
    for name, value in (("fedmm", 0.5), ("fedmm_theta", 0.25)):
        run = write_run(tmp_path / name, algorithm={"name": name}, finished=False)
        change = blank | {"objective": str(value)}
        fill_columns(run, lambda rows, c=change: [row.update(c) for row in rows])
    assert "Least mean objective: FedMM-Θ" in report(tmp_path).printed


def test_what_all_methods_have_in_common_is_said_once(tmp_path: Path) -> None:
    for seed in range(2):
        for name in ("ring", "star"):
            exchange = {"name": "gossip", "topology": {"name": name}}
            write_run(tmp_path / f"{name}{seed}", seed=seed, exchange=exchange)
    found = report(tmp_path)
    page = found.texts["report.html"]
    assert "D-FedEM on synthetic-paper" in words_of(page)
    results = words_of(page, "results")
    assert "D-FedEM" not in results and "ring" in results and "star" in results
    assert results.count("synthetic-paper") == 1 and "Seeds: 2. Rounds: 40." in results
    assert {method for _, method in found.methods} == {"D-FedEM, ring", "D-FedEM, star"}


def test_only_settings_that_somebody_has_set_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "a", local={"lr": 0.3, "batch_size": 128})
    write_run(tmp_path / "b", local={"lr": 0.3, "batch_size": 128}, algorithm=FEDAVG)
    shown = words_of(report(tmp_path).texts["report.html"], "settings")
    assert "algorithm.name" in shown and "local.lr" in shown and "rounds" in shown
    # Their values are the defaults, of all or of the component that has them.
    for key in ("local.batch_size", "checkpoint.keep", "algorithm.n_components", "data.variant"):
        assert key not in shown
    write_run(tmp_path / "c", algorithm={"name": "fedem", "n_components": 5}, seed=1)
    shown = words_of(report(tmp_path).texts["report.html"], "settings")
    assert "algorithm.n_components" in shown


@pytest.mark.parametrize(
    ("chosen", "defaults"),
    [
        ({"name": "csv", "path": "p.csv", "label": "ill"}, {"standardise": True, "min_samples": 5}),
        ({"name": "arrays", "digest": "5eed"}, {"min_samples": 5}),
    ],
)
def test_settings_of_own_data_are_those_that_somebody_has_set(
    chosen: dict, defaults: dict, tmp_path: Path
) -> None:
    write_run(tmp_path / "a", data={**chosen, **defaults})
    shown = words_of(report(tmp_path).texts["report.html"], "settings")
    assert set(re.findall(r"\bdata\.(\w+)", shown)) == {*chosen}


def test_numbers_of_a_column_have_as_many_decimals(tmp_path: Path) -> None:
    losses = {"fedavg": (0.59081, 0.6), "local": (0.4, 0.431234)}
    for name, of_seeds in losses.items():
        for seed, loss in enumerate(of_seeds):
            run = write_run(tmp_path / f"{name}{seed}", seed=seed, algorithm={"name": name})
            fill_columns(run, lambda rows, x=loss: [row.update(objective=str(x)) for row in rows])
    lines = report(tmp_path).texts["table.md"].splitlines()
    cells = [
        line.split(" | ")[3]
        for line in lines
        if re.match(r"\| synthetic-paper \| (FedAvg|Local) ", line)
    ]
    numbers = [number for cell in cells for number in cell.strip("*").split(" ± ")]
    assert len(numbers) == 4
    assert {len(number.partition(".")[2]) for number in numbers} == {4}


def test_the_least_accurate_clients_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", final=0.75)
    shown = words_of(report(tmp_path).texts["report.html"], "distribution")
    assert re.search(r"Least accurate.*65\.00 1 77\.00 2 78\.00 3 80\.00 0", shown)


@pytest.mark.parametrize(
    ("spread", "name"),
    [("ci", "95 % intervals"), ("sd", "one standard deviation"), ("se", "one standard error")],
)
def test_the_spread_names_the_bands_of_each_chart(spread: str, name: str, tmp_path: Path) -> None:
    page = report(two_methods(tmp_path), "--spread", spread).texts["report.html"]
    curves = page.partition('<section id="curves">')[2].partition("</section>")[0]
    captions = re.findall(r"<figcaption>.*?</figcaption>", curves, re.DOTALL)
    measured = [caption for caption in captions if "accuracy" in caption]
    assert len(measured) > 3 and all(f"bands: {name} over seeds" in each for each in measured)
