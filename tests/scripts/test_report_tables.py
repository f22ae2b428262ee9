"""Tables in a terminal of any width and in LaTeX, what ``±`` is in them, and what is bold."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from markdown_it import MarkdownIt
from reports import report
from rich.cells import cell_len
from run_directories import fill_columns, write_run
from scipy import stats

import mpifed
from mpifed.testing import run_command

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


LONG = "a name of 漢字 and of many-words-that-are-joined"


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_a_terminal_cuts_no_word_and_shows_all_names(
    width: int, runs: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = ["--label", f"FedEM={LONG}", "--format", "none", "--output", tmp_path / "out"]
    assert run_command(["report", runs, *words]) == 0
    shown = capfd.readouterr().out
    found = columns_of(shown)
    header = ["Data", "Method", "Seeds", "Test accuracy (%)", "Bottom decile (%)", "Rounds"]
    assert len(found) >= 2
    for column, head in zip(found, header, strict=False):
        assert column[: len(head.split())] == head.split()
    methods = [["FedAvg"], LONG.split(), ["Local"]]
    assert found[1] == ["Method", *(word for method in methods for word in method)]
    tables = [line for line in shown.splitlines() if line[:1] in "┏┃┡│└" and line]
    assert max(map(cell_len, tables)) <= width or len(found) == 2
    for name in header[len(found) :]:
        assert name in " ".join(shown.split())


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
    assert run_command(["report", *words]) == 0
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
    for name in ("fedavg", "local"):
        assert stats.ttest_rel(np.array(FINALS["fedem"]), FINALS[name]).pvalue < 0.05
    rows = cells_of(report(runs, "--latex").texts["table.tex"])
    head, bold = rows[0], [[cell.startswith(r"\textbf") for cell in row] for row in rows[1:]]
    accuracies = [k for k, cell in enumerate(head) if "accuracy" in cell or "decile" in cell]
    assert [row[1] for row in rows[1:]] == ["FedAvg", "FedEM", "Local"]
    assert [k for k, cell in enumerate(bold[1]) if cell] == accuracies
    assert not any(bold[0]) and not any(bold[2])
    write_run(runs / "close", final=0.7, seed=0, algorithm={"name": "fedprox"})
    assert "textbf" not in report(runs, "--latex").texts["table.tex"]


SPECIAL = r"50% of A&B_#1 {x} ~ ^ \a $ <2> [z] α −1 * Erdős"


@pytest.fixture(scope="module")
def special(tmp_path_factory):
    """The report of a method with all that is special to LaTeX in its name."""
    folder = tmp_path_factory.mktemp("special")
    write_run(folder / "a", data={"name": "csv", "path": f"[{SPECIAL.replace('/', '')}.csv"})
    return report(folder, "--latex", "--label", f"FedEM=[{SPECIAL}")


def test_all_that_is_special_to_latex_is_escaped(special) -> None:
    head, row = cells_of(special.texts["table.tex"])
    assert r"\%" in " ".join(head)
    assert row[0].startswith("{[}")  # behind the end of a row, a bracket begins an option
    for mark in (r"50\%", r"A\&B\_\#1", r"\{x\}", r"\textbackslash{}a", r"$\alpha$", "Erdős"):
        assert mark in row[1]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_reads_it(special, tmp_path: Path) -> None:
    text = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    table = special.texts["table.tex"]
    (tmp_path / "a.tex").write_text(text + "\n" + table + r"\end{document}")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)


def test_one_seed_makes_no_columns_of_dashes(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    single = [str(runs / "fedem0"), str(runs / "fedavg0")]
    words = ["--output", str(out), "--format", "none", "--latex", "--against", "FedAvg"]
    assert run_command(["report", *single, *words]) == 0
    for name in ("table.tex", "comparison.tex"):
        rows = cells_of((out / name).read_text())
        assert not any(set(column) == {"--"} for column in zip(*rows[1:], strict=True))
        assert "pm" not in str(rows)
    assert "p" not in rows[0]


# Letters, and all that Markdown, HTML, LaTeX, rich or a spreadsheet reads as more than itself.
MARKS = "".join(map(chr, range(33, 48))) + ":;<>?@[\\]^_`{|}~"
NAMES = (
    f"ab1 ⟨ø{MARKS}",
    f"{MARKS[::-1]}x",
    "*a* _b_ `c` ~~d~~ **e**",
    "- a",
    "[x](y)",
)


def test_every_format_shows_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    words: list[str] = []
    for number, name in enumerate(NAMES):
        data = {"name": "csv", "path": 'a,"b".csv'}
        write_run(tmp_path / str(number), local={"lr": number}, data=data)
        words += ["--label", f"FedEM, learning rate = {number}={name}"]
    found = report(tmp_path, *words)
    read = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    cells = re.findall(r"<t[hd][^>]*>(.*)</t[hd]>", read.render(found.texts["table.md"]))
    plain = [html.escape(name).replace("&#x27;", "'") for name in NAMES]
    bare = [re.sub("</?strong>", "", cell) for cell in cells]
    assert [cell for cell in bare if cell in plain] == [*plain, *plain]
    assert {row["data"] for row in found.rows()} == {'a,"b"'}
    assert columns_of(found.printed)[1] == ["Method", *" ".join(NAMES).split()]
    page = html.unescape(found.texts["report.html"])
    assert all(name in page for name in NAMES)


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
    assert run_command(["report", tmp_path / EVIL[0] / "\u202enowhere"]) == 2
    assert r"\x1b[31mred/\u202enowhere" in capfd.readouterr().err
    write_run(tmp_path / EVIL[0] / "<b>unfinished", finished=False, seed=1)
    out = tmp_path / "out"
    words = [str(tmp_path / EVIL[0]), "--clients", "--latex", "--output", str(out)]
    assert run_command(["report", *words, "--format", "svg"]) == 0
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


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Runs with scores, of which FedEM is better in all, and with a loss of the user's own."""
    for name, finals in FINALS.items():
        for seed, final in enumerate(finals):
            path = write_run(
                tmp_path / "scored" / f"{name}{seed}", final=final, seed=seed,
                algorithm={"name": name},
                evaluation={"every": 10, "metrics": ["auc", "confusion", "ours:own_loss"]},
            )  # fmt: skip
            columns = {"test_auc": final + 0.1, "test_own_loss": final}
            fill_columns(path, lambda rows, more=columns: [row.update(more) for row in rows])
            with h5py.File(path / "clients.h5", "a") as file:
                file["unseen"] = [False, False, False, True]
                file["test_confusion"] = np.arange(16).reshape(4, 2, 2)
    return tmp_path / "scored"


def test_scores_and_confusion_matrices_are_shown(scored: Path) -> None:
    found = report(scored, "--latex")
    auc = [f"{100 * (np.mean(finals) + 0.1):.2f} ±" for finals in FINALS.values()]
    for name in ("table.md", "report.html"):
        assert "AUC (%)" in found.texts[name] and "Own loss" in found.texts[name]
        assert all(each in found.texts[name] for each in auc)
    assert "AUC" in found.printed and "AUC" in found.texts["table.tex"]
    row = next(row for row in found.rows() if row["method"] == "FedEM")
    assert float(row["test_auc"]) == pytest.approx(np.mean(FINALS["fedem"]) + 0.1)
    # Of three seeds and the three clients in training.
    assert r"0 & \textbf{36} & 45 \\" in found.texts["confusion.tex"]
    assert "| 1 | 54 | **63** |" in found.texts["table.md"]
    # The page shades each cell by its share of the true class.
    shares = re.findall(r"--share:([\d.]+)", found.texts["report.html"])
    assert [float(share) for share in shares] == len(FINALS) * [0.44, 0.56, 0.46, 0.54]


def test_the_answer_names_the_scores_that_were_asked_for(scored: Path, tmp_path: Path) -> None:
    first = report(scored).printed.splitlines()[:2]
    assert first[0].startswith("Highest mean test accuracy: FedEM, ")
    assert first[1].startswith("Highest mean AUC: FedEM, ")
    (alone,) = report(scored / "fedem0").printed.partition("┏")[0].splitlines()
    assert re.search(r"test accuracy [\d.]+ %, AUC [\d.]+ %, own loss [\d.]+ after", alone)


def test_latex_has_the_columns_of_the_terminal(scored: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    worst = {"test_accuracy_worst10": "0.5"}
    fill_columns(scored / "fedem0", lambda rows: [row.update(worst) for row in rows])
    found = report(scored / "fedem0", "--latex")
    terminal, latex = found.printed.partition("\\begin")[0], found.texts["table.tex"]
    assert all("Worst" in text and "AUC" in text for text in (terminal, latex))
    assert (
        "over seeds" not in latex and "over seeds" in report(scored, "--latex").texts["table.tex"]
    )


def test_each_client_has_its_scores(tmp_path):
    words = ["digits-fedem", "rounds=1", "clients=3", "evaluation.metrics=[auc, confusion]"]
    assert run_command(["run", *words, "--output", tmp_path / "run", "--quiet"]) == 0
    words = [tmp_path / "run", "--clients", "--output", tmp_path / "out"]
    assert run_command(["report", *words]) == 0
    table = (tmp_path / "out" / "clients.md").read_text(encoding="utf-8")
    values = mpifed.read(tmp_path / "run").clients["test_auc"]
    assert "AUC (%), FedEM" in table and all(f"| {100 * v:.1f} |" in table for v in values)


def test_nothing_is_bold_in_a_score_of_which_nobody_knows_the_better_end(scored: Path) -> None:
    lines = report(scored).texts["table.md"].splitlines()
    header = next(line for line in lines if "AUC (%)" in line).split(" | ")
    row = next(line for line in lines if line.startswith("| synthetic-paper | FedEM |")).split(
        " | "
    )
    cells = dict(zip(header, row, strict=True))
    assert cells["AUC (%)"].startswith("**") and not cells["Own loss"].startswith("**")
