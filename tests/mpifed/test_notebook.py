"""What a notebook completes, shows and draws."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from commands import environment

import mpifed
from mpifed.results.results import Result

SMALL = {"clients": 4, "rounds": 4, "data.n_test": 20, "evaluation.every": 2}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return mpifed.run(**SMALL, output=tmp_path_factory.mktemp("notebook") / "a<b")


def test_the_package_has_its_public_names_alone_and_waits_for_torch():
    code = (
        "import sys, mpifed; print(*dir(mpifed)); assert 'torch' not in sys.modules\n"
        "from mpifed import *; assert run is mpifed.run and InputError is mpifed.InputError\n"
        "assert not hasattr(mpifed, 'no_such_name')"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    names = {name for name in done.stdout.split() if not name.startswith("_")}
    assert {"InputError", "arrays", "load", "read", "run"} <= names
    assert not names & {"Any", "os", "signal", "annotations", "AgreedInputError", "contextmanager"}


@pytest.mark.parametrize("name", ["run", "load", "read", "arrays", "frame", "plot"])
def test_functions_have_true_signatures_types_and_documentation(name):
    function = getattr(mpifed, name)
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function, None, {"Axes": plt.Axes})
    named = [each.name for each in signature.parameters.values()]
    assert {*named, "return"} == {*hints} and hints["return"] is not typing.Any
    text = inspect.cleandoc(function.__doc__)
    described = re.search(r"\nParameters\n-+\n(.*?)\n\n", text, re.DOTALL)[1]
    for each in signature.parameters.values():
        stars = {each.VAR_KEYWORD: "**", each.VAR_POSITIONAL: "*"}.get(each.kind, "")
        names = re.escape(stars + each.name)
        assert re.search(rf"^(\S+, )*{names}(, \S+)*( : |$)", described, re.MULTILINE), each.name
    if name == "run":
        assert {"output", "resume", "topology", "ranks", "on_round"} <= {*named}
        assert issubclass(hints["return"], Result)


def test_bad_input_is_the_error_that_is_exported(tmp_path):
    with pytest.raises(mpifed.InputError, match="fedavg") as refused:
        mpifed.run(algorithm="fedavgg", output=tmp_path / "run")
    assert type(refused.value) is mpifed.InputError


def test_a_result_shows_its_last_scores_and_a_curve(result):
    shown = ElementTree.fromstring(result._repr_html_())
    assert shown.find("code").text == str(result.directory) and shown.find("b").text == "finished"
    heads, values = ([cell.text for cell in row] for row in shown.find("table"))
    table = dict(zip(heads, values, strict=True))
    assert table["round"] == "4"
    assert table["test accuracy"] == f"{result.metrics['test_accuracy'][-1]:.4f}"
    (line,) = shown.iter("polyline")
    points = np.array([point.split(",") for point in line.get("points").split()], float)
    accuracies = result.metrics["test_accuracy"]
    assert len(points) == 3 and (np.diff(points[:, 0]) > 0).all()
    # Pixels count from the top.
    assert (points[:, 1].argsort() == (-accuracies).argsort()).all()
    assert mpifed.read(result)._repr_html_() == result._repr_html_()


def test_a_result_shows_the_scores_that_were_chosen(tmp_path):
    words = {**SMALL, "rounds": 1, "evaluation.metrics": ["f1", "confusion"]}
    chosen = mpifed.run(**words, output=tmp_path / "run")
    shown = ElementTree.fromstring(chosen._repr_html_())
    heads, values = ([cell.text for cell in row] for row in shown.find("table"))
    table = dict(zip(heads, values, strict=True))
    assert table["test f1"] == f"{chosen.metrics['test_f1'][-1]:.4f}"


def test_a_result_without_scores_shows_its_status(tmp_path):
    (tmp_path / "config.yaml").touch()
    shown = ElementTree.fromstring(mpifed.read(tmp_path)._repr_html_())
    assert shown.find("b").text == "unfinished" and shown.find("table") is None


def test_columns_are_plotted_over_rounds(result):
    axes = result.plot()
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [0, 2, 4])
    np.testing.assert_array_equal(line.get_ydata(), result.metrics["test_accuracy"])
    assert result.plot("train_loss", "test_loss", ax=axes) is axes and len(axes.get_lines()) == 3
    with pytest.raises(mpifed.InputError, match="'test_loss'"):
        result.plot("tset_loss")
    plt.close("all")


def test_curves_of_several_runs_are_in_one_picture(result, tmp_path):
    other = mpifed.run(**SMALL, algorithm="fedavg", output=tmp_path / "other")
    axes = mpifed.plot([result, other.directory])
    assert [line.get_label() for line in axes.get_lines()] == ["a<b", "other"]
    for line, run in zip(axes.get_lines(), (result, other), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), run.metrics["test_accuracy"])
    axes = mpifed.plot({"FedEM": result, "FedAvg": other}, ["test_loss", "train_loss"])
    assert axes.get_legend() is not None and len(axes.get_lines()) == 4
    assert len(result.plot(["test_loss", "train_loss"]).get_lines()) == 2
    with pytest.raises(mpifed.InputError, match="no run"):
        mpifed.plot([tmp_path / "none"])
    plt.close("all")


@pytest.mark.slow
def test_a_result_writes_its_report(result, tmp_path, capfd):
    page = result.report()
    assert page == result.directory / "report" / "report.html" and page.is_file()
    assert result.report(tmp_path).parent == tmp_path and capfd.readouterr().out == ""
    assert mpifed.run(output=result.directory, resume=True, rounds=6).status == "finished"
    with pytest.raises(mpifed.InputError):
        result.report(Path(__file__))
