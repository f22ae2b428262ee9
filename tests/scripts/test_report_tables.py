"""Tables in a terminal of any width and in LaTeX, what ``±`` is in them, and what is bold."""

from __future__ import annotations

import csv
import html
import io
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console
from run_directories import write_run
from scipy import stats

from mpifed.report.__main__ import main
from mpifed.report.groups import group_runs
from mpifed.report.runs import ACCURACY, find_runs
from mpifed.report.tables import Bold, Table, csv_lines, results

FEDAVG, LOCAL = {"name": "fedavg"}, {"name": "local"}
FINALS = {"fedem": (0.75, 0.77, 0.78), "fedavg": (0.70, 0.73, 0.72), "local": (0.60, 0.65, 0.61)}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, finals in FINALS.items():
        for seed, final in enumerate(finals):
            write_run(tmp_path / "runs" / f"{name}{seed}", final=final, seed=seed,
                      algorithm={"name": name})  # fmt: skip
    return tmp_path / "runs"


def columns_of(drawn: str) -> list[list[str]]:
    """The words of each column that a terminal shows, its head first."""
    lines = [re.split("[│┃]", line)[1:-1] for line in drawn.splitlines() if line[:1] in ("│", "┃")]
    return [" ".join(cells).split() for cells in zip(*lines, strict=True)]


WORD = st.text("abcőЖ漢-", min_size=1, max_size=12)
NAME = st.lists(WORD, min_size=1, max_size=6).map(" ".join)
ROW = st.tuples(NAME, NAME, st.just("3"), st.just(Bold("75.1 ± 2.5")), st.just("40"))


@given(st.lists(ROW, min_size=1, max_size=5), st.integers(1, 200))
def test_a_terminal_cuts_no_word_and_shows_all_names(
    rows: list[tuple[str, ...]], width: int
) -> None:
    table = Table(["Data", "Method", "Seeds", "Test accuracy (%)", "Rounds"], rows)
    console = Console(width=10_000, color_system=None)
    with console.capture() as captured:
        console.print(table.terminal(width))
    found = columns_of(captured.get())
    whole = [" ".join(cells).split() for cells in zip(table.header, *rows, strict=True)]
    assert found == whole[: len(found)]
    assert len(found) >= 2
    widest = max(map(cell_len, captured.get().splitlines()))
    assert widest <= width or len(found) == 2
    for name in table.header[len(found) :]:
        assert name in " ".join(captured.get().split())


def cells_of(text: str) -> list[list[str]]:
    """The cells of the tables of LaTeX, whose environments and braces must be balanced."""
    bare = re.sub(r"\\\\|\\[{}%&$]", lambda found: " " if found[0] != r"\\" else "\n", text)
    assert bare.count("{") == bare.count("}")
    assert bare.replace("\\", "").count("$") % 2 == 0
    open_ones = []
    for kind, name in re.findall(r"\\(begin|end){(\w+)}", text):
        if kind == "begin":
            open_ones.append(name)
        else:
            assert open_ones.pop() == name
    assert not open_ones
    (columns,) = set(re.findall(r"\\begin{tabular}{([lr]+)}", text))
    body = text.partition("\\toprule\n")[2].partition("\\bottomrule")[0].replace("\\midrule\n", "")
    rows = [re.split(r"(?<!\\) & ", row.strip()) for row in body.split(" \\\\\n") if row.strip()]
    assert {len(row) for row in rows} == {len(columns)}
    return rows


@pytest.mark.parametrize("spread", ["ci", "sd", "se"])
def test_the_spread_is_the_one_that_was_asked_for(
    spread: str, runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [str(runs), "--output", str(out), "--format", "none", "--latex", "--spread", spread]
    assert main(words) == 0
    text = (out / "table.tex").read_text()
    assert text in capfd.readouterr().out
    last = 100 * (np.array(FINALS["fedavg"]) - 0.25 * np.exp(-40 / 12))
    deviation = last.std(ddof=1)
    width = {
        "ci": stats.t.ppf(0.975, 2) * deviation / 3**0.5, "sd": deviation, "se": deviation / 3**0.5
    }[spread]  # fmt: skip
    row = next(row for row in cells_of(text) if row[1] == "FedAvg")
    assert row[3] == rf"{last.mean():.1f} $\pm$ {width:.1f}"
    assert f"{last.mean():.2f} ± {width:.2f}" in (out / "report.html").read_text()
    about = {"ci": "95", "sd": "standard deviation", "se": "standard error"}
    for name in ("table.tex", "table.md"):
        captions = (out / name).read_text()
        assert [one for one in about if about[one] in captions] == [spread]


def test_bold_is_what_the_paired_test_calls_better(runs: Path) -> None:
    groups, _ = group_runs(find_runs([runs]))
    table = results(groups, [ACCURACY, "train_loss"])
    best = np.array(FINALS["fedem"])
    for name in ("fedavg", "local"):
        assert stats.ttest_rel(best, FINALS[name]).pvalue < 0.05
    (chosen,) = (row for row in table.rows if isinstance(row[3], Bold))
    assert chosen[1] == "FedEM"
    assert not any(isinstance(row[4], Bold) for row in table.rows)
    write_run(runs / "close", final=0.7, seed=0, algorithm={"name": "fedprox"})
    groups, _ = group_runs(find_runs([runs]))
    rows = results(groups, [ACCURACY]).rows
    assert not any(isinstance(cell, Bold) for row in rows for cell in row)


SPECIAL = r"50% of A&B_#1 {x} ~ ^ \a $ <2> [z] α = −1 * Erdős"


def test_all_that_is_special_to_latex_is_escaped() -> None:
    table = Table(["Data", "x (%)"], [[f"[{SPECIAL}", Bold("-1.5 ± 2e-06")]], 1, SPECIAL)
    head, row = cells_of(table.latex())
    assert head[1] == r"x (\%)"
    assert row[1] == r"\textbf{$-$1.5 $\pm$ 2e-06}"
    assert row[0].startswith("{[}")  # behind the end of a row, a bracket begins an option
    for mark in (r"50\%", r"A\&B\_\#1", r"\{x\}", r"\textbackslash{}a", r"$\alpha$", "Erdős"):
        assert mark in row[0]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_reads_it(tmp_path: Path) -> None:
    table = Table(["Data", "x (%)"], [[f"[{SPECIAL}", Bold("-1.5 ± 2e-06")]] * 2, 1, SPECIAL)
    text = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "a.tex").write_text(text + "\n" + table.latex() + r"\end{document}")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)


def test_one_seed_makes_no_columns_of_dashes(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    single = [str(runs / "fedem0"), str(runs / "fedavg0")]
    words = ["--output", str(out), "--format", "none", "--latex", "--against", "FedAvg"]
    assert main([*single, *words]) == 0
    for name in ("table.tex", "comparison.tex"):
        rows = cells_of((out / name).read_text())
        assert not any(set(column) == {"--"} for column in zip(*rows[1:], strict=True))
        assert "pm" not in str(rows)
    assert "p" not in rows[0]


# Letters, and all that Markdown, HTML, LaTeX, rich or a spreadsheet reads as more than itself.
NAMES = st.text("ab1 ⟨ø" + "".join(map(chr, range(33, 48))) + ":;<=>?@[\\]^_`{|}~", min_size=1)


@given(st.lists(NAMES.map(str.strip).filter(bool), min_size=1, max_size=3))
def test_every_format_shows_names_as_they_are(names: list[str]) -> None:
    table = Table(["Data", *names], [["x", *map(Bold, names)], ["y", *names]], 2)
    read = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(table.markdown())
    cells = re.findall(r"<t[hd][^>]*>(.*)</t[hd]>", read)
    plain = [html.escape(name).replace("&#x27;", "'") for name in names]
    bold = [f"<strong>{name}</strong>" for name in plain]
    assert cells == ["Data", *plain, "x", *bold, "y", *plain]
    console = Console(width=10_000, color_system=None)
    with console.capture() as captured:
        console.print(table.terminal(1000))
    columns = [" ".join(column) for column in columns_of(captured.get())]
    words = [" ".join(name.split()) for name in names]
    assert columns == ["Data x y", *(" ".join([name] * 3) for name in words)][: len(columns)]
    assert (
        list(csv.reader(io.StringIO(csv_lines([{name: name for name in names}]))))
        == [list(dict.fromkeys(names))] * 2
    )


EVIL = ["\x1b[31mred", "<script>x</script>", "a|b", "\u202eabc", "two\nlines", "[bold]*b*`c`$d$"]
SEEN = [r"\x1b[31mred", EVIL[1], "a|b", r"\u202eabc", r"two\nlines", EVIL[5]]


def test_no_name_of_a_user_steers_a_terminal_or_a_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    data = {"name": "csv", "path": f"{EVIL[0]}.csv"}
    run = write_run(tmp_path / EVIL[0] / "<b>a|b", data=data)
    with h5py.File(run / "clients.h5", "w") as file:
        count = len(EVIL)
        file["client_id"] = np.arange(count)
        file["client_name"] = np.array([name.encode() for name in EVIL])
        file["test_accuracy"] = np.linspace(0.1, 0.9, count)
        file["n_train"] = file["n_test"] = np.arange(count)
        file.attrs["class_names"] = np.array([name.encode() for name in EVIL])
    (run / "log.txt").write_text("warning: \x1b[31m <script>y</script>\n")
    assert main([str(tmp_path / EVIL[0] / "\u202enowhere")]) == 2
    assert r"\x1b[31mred/\u202enowhere" in capfd.readouterr().err
    write_run(tmp_path / EVIL[0] / "<b>unfinished", finished=False, seed=1)
    out = tmp_path / "out"
    words = [str(tmp_path / EVIL[0]), "--clients", "--latex", "--output", str(out)]
    assert main([*words, "--format", "svg"]) == 0
    printed = capfd.readouterr().out
    texts = {path.name: path.read_text("utf-8") for path in out.iterdir()} | {"": printed}
    assert [name for name, text in texts.items() if "\x1b" in text or "\u202e" in text] == []
    for name in SEEN:
        assert name in printed
    read = MarkdownIt("commonmark").enable("table").render((out / "clients.md").read_text("utf-8"))
    rows = re.findall(r"<tr>\s*<td[^>]*>(.*)</td>\s*<td[^>]*>(.*)</td>", read)
    assert rows == [(SEEN[0], html.escape(name)) for name in SEEN]
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<script>") == 1 and "<b>unfinished" not in page
    assert "<b>unfinished" not in (out / "table.md").read_text("utf-8")
