"""The notebooks for lectures: their cells run, and what they keep is what they show."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest
from matplotlib import pyplot

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_its_outputs_and_is_small(path):
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, 1 + len(code)))
    shown = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in shown} == {"stream", "display_data"}
    assert path.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_print_what_is_kept(path, capsys, monkeypatch, tmp_path):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    program = ModuleType("__main__")  # in which functions of the notebook are found by name
    monkeypatch.setitem(sys.modules, "__main__", program)
    for number, cell in enumerate(cells_of(path)):
        if cell["cell_type"] != "code":
            continue
        exec(
            compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"),
            program.__dict__,
        )
        kept = "".join(
            line
            for output in cell["outputs"]
            if output["output_type"] == "stream"
            for line in output["text"]
        )
        pyplot.close("all")  # what is shown in a notebook is done
        assert capsys.readouterr().out == kept
