from __future__ import annotations

import itertools

import numpy as np
import pytest
from run_directories import fill_columns, write_run

from mpifed.report.__main__ import main
from mpifed.report.figure import Series, Wanted, _figure, best, draw_figure, series
from mpifed.report.runs import find_runs


def run_with_gap(path, alpha, k, seed=0, scale=1.0, **more):
    """A run whose gap falls as exp(-round / 10), with the numbers sent so far."""
    algorithm = {"name": "diana", "flix_alpha": alpha, **more}
    compression = {"name": "rand_k", "k": k}
    write_run(path, seed=seed, algorithm=algorithm, compression=compression)

    def fill(rows):
        for row in rows:
            row["objective_gap"] = f"{scale * alpha**2 * np.exp(-float(row['round']) / 10):.17g}"
            row["up_floats"] = str(4 * k * int(row["round"]))

    return fill_columns(path, fill)


@pytest.fixture
def sweep(tmp_path):
    for alpha in (1.0, 0.1):
        for k in (9, 22, 113):
            run_with_gap(tmp_path / "runs" / f"{alpha}-{k}", alpha, k)
    return tmp_path / "runs"


def test_a_line_for_each_value_and_a_panel_for_what_else_differs(sweep):
    wanted = Wanted("objective_gap", "floats", ("algorithm.flix_alpha",))
    found = {(s.panel, s.line): s for s in series(find_runs([sweep]), wanted)}
    assert set(found) == {
        (f"k={k}", f"flix_alpha={alpha}") for k in (9, 22, 113) for alpha in (0.1, 1.0)
    }
    line = found["k=22", "flix_alpha=0.1"]
    assert line.x.tolist() == [0, 880, 1760, 2640, 3520]
    assert line.y == pytest.approx(0.01 * np.exp(-np.arange(5.0)))


def test_last_values_against_a_key(sweep):
    wanted = Wanted("objective_gap", "algorithm.flix_alpha")
    found = series(find_runs([sweep]), wanted)
    assert len(found) == 3
    for s in found:
        assert s.x.tolist() == [0.1, 1.0]
        assert s.y == pytest.approx(np.array([0.01, 1.0]) * np.exp(-4))


def test_seeds_are_averaged_and_where_a_run_began_is_no_difference(tmp_path):
    for seed, scale in ((0, 1.0), (1, 3.0)):
        run_with_gap(tmp_path / str(seed), 1.0, 9, seed, scale, start_from=f"runs/{seed}")
    (found,) = series(find_runs([tmp_path]), Wanted("objective_gap"))
    assert found.y == pytest.approx(2 * np.exp(-np.arange(5.0)))


@pytest.mark.parametrize(
    ("x", "name"),
    [
        ("rounds", "rounds"),
        pytest.param("bits", "bits", marks=pytest.mark.slow),
        ("algorithm.flix_alpha", "algorithm-flix-alpha"),
    ],
)
def test_it_is_drawn_against_any_x(x, name, sweep, tmp_path):
    wanted = Wanted("objective_gap", x)
    (drawn,) = draw_figure(series(find_runs([sweep]), wanted), wanted, tmp_path)
    assert drawn == tmp_path / f"objective-gap-{name}.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_command_draws_it(sweep, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--output", str(out), "--figure", "objective_gap", "--x", "floats"]
    assert main([str(sweep / "1.0-9"), str(sweep / "0.1-9"), *words]) == 0
    drawn = out / "objective-gap-floats.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert str(drawn) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--figure", "objectve_gap"], "did you mean 'objective_gap'?"),
        (["--figure", "objective_gap", "--x", "round"], "did you mean 'rounds'?"),
        (["--figure", "objective_gap", "--x", "data.variant"], "it must be a number in all"),
        (["--figure", "objective_gap", "--by", "flix_alpha"], "did you mean"),
        (["--figure", "consensus_distance"], "no number in the column"),
        (["--x", "rounds"], "--x is for --figure"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(words, expected, sweep, tmp_path, capsys):
    assert main([str(sweep), "--output", str(tmp_path / "out"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize(
    ("column", "where"),
    [
        ("test_loss", 0.4),
        ("objective_gap", 0.4),
        ("l2_uvp", 0.4),
        ("test_accuracy_std", 0.4),
        ("test_accuracy", 0.2),
        ("test_accuracy_p10", 0.2),
        ("test_recall_at_5", 0.2),
        ("cosine", 0.2),
    ],
)
def test_the_best_recall_is_the_largest_and_the_best_loss_the_least(column, where):
    line = Series("", "", np.array([0.2, 0.4, 0.6]), np.array([0.9, 0.1, 0.5]))
    assert best(line, column) == where


def test_the_line_of_the_drawing_stands_at_the_best_accuracy(tmp_path):
    for alpha, final in ((0.1, 0.5), (0.5, 0.9), (1.0, 0.6)):
        algorithm = {"name": "flix", "flix_alpha": alpha}
        write_run(tmp_path / str(alpha), algorithm=algorithm, final=final)
    wanted = Wanted("test_accuracy", "algorithm.flix_alpha", linear=True)
    (axes,) = _figure(series(find_runs([tmp_path]), wanted), wanted).axes
    marks = [line for line in axes.lines if len(set(line.get_xdata())) == 1]
    assert [mark.get_xdata()[0] for mark in marks] == [0.5]


def test_a_run_without_the_key_of_x_is_a_level_line(sweep, tmp_path):
    wanted = Wanted("objective_gap", "algorithm.flix_alpha", ("algorithm.name",))
    for k in (9, 22):
        path = run_with_gap(sweep / f"other {k}", 1.0, k, scale=0.3)
        text = (path / "config.yaml").read_text()
        text = text.replace("flix_alpha: 1.0", "outer_step: 1.0").replace("diana", "fomaml")
        (path / "config.yaml").write_text(text)
    found = {(s.panel, s.line): s for s in series(find_runs([sweep]), wanted)}
    assert len(found) == 5
    level = found["k=9", "algorithm=fomaml"]
    assert np.isnan(level.x).all()
    assert level.y == pytest.approx([0.3 * np.exp(-4)])
    assert found["k=9", "algorithm=diana"].x.tolist() == [0.1, 1.0]
    figure = _figure(list(found.values()), wanted)
    lines = [line for line in figure.axes[0].lines if len(set(line.get_ydata())) == 1]
    assert [line.get_ydata()[0] for line in lines] == pytest.approx([0.3 * np.exp(-4)])
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["algorithm=diana", "algorithm=fomaml"]


def test_all_panels_end_where_they_are_to(sweep, tmp_path, capsys):
    whole = series(find_runs([sweep]), Wanted("objective_gap", "floats"))
    until = float(np.median(np.concatenate([s.x for s in whole])))
    cut = series(find_runs([sweep]), Wanted("objective_gap", "floats", until=until))
    for before, after in zip(whole, cut, strict=True):
        assert after.x.tolist() == [x for x in before.x if x <= until]
        assert after.y.tolist() == before.y[: len(after.x)].tolist()
    figure = _figure(cut, Wanted("objective_gap", "floats", until=until))
    assert len({axes.get_xlim() for axes in figure.axes if axes.axison}) == 1
    words = ["--figure", "objective_gap", "--output", str(tmp_path / "out")]
    for more, said in (
        (["--until", "0"], "--until is 0; it must be above 0"),
        (["--until", "5", "--x", "algorithm.flix_alpha"], "it goes with rounds, bits, floats"),
    ):
        assert main([str(sweep), *words, *more]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_keys_and_sections_aside_part_no_panels(sweep):
    for aside in (("compression.k",), ("compression",)):
        wanted = Wanted("objective_gap", "algorithm.flix_alpha", aside=aside)
        assert [s.panel for s in series(find_runs([sweep]), wanted)] == [""]
    wanted = Wanted("objective_gap", "algorithm.flix_alpha", aside=("comp",))
    assert len(series(find_runs([sweep]), wanted)) == 3


@pytest.mark.parametrize("most", [160_000, 3_400_000, 54_321_000])
def test_numbers_on_x_do_not_run_into_each_other(most):
    x = np.linspace(0, most, 50)
    every = [Series(f"k={k}", "", x, np.exp(-x / most)) for k in (1, 2, 3)]
    figure = _figure(every, Wanted("objective_gap", "floats"))
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_a_figure_needs_a_directory(sweep, capsys):
    assert main([str(sweep), "--figure", "objective_gap"]) == 2
    assert "--figure needs --output" in capsys.readouterr().err
