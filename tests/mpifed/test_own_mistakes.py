"""Files as users write them: what cannot be imported, and what runs as the shipped component."""

from __future__ import annotations

import sys
import textwrap

import pytest
from commands import call

from mpifed.launch import main

WORDS = (
    "clients=8",
    "rounds=4",
    "data.n_test=5",
    "data.dimension=4",
    "model=linear",
    "algorithm=fedavg",
)


@pytest.fixture
def user(tmp_path, monkeypatch, capfd):
    """Run the command with a user's file; return exit code, message and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(source, *words):
        file = textwrap.dedent(source).lstrip()
        (tmp_path / "comp.py").write_text(file)
        monkeypatch.delitem(sys.modules, "comp", raising=False)
        done = call([*words, "--output", tmp_path / "run"], capfd)
        return done.code, done.err.removeprefix("mpifed: "), done.out

    yield run
    sys.modules.pop("comp", None)


@pytest.mark.parametrize("kind", ["compression", "model"])
@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("undefined\nown = 1", 1, "NameError: name 'undefined'"),
        ("import nothing_of_that_name\nown = 1", 1, "'nothing_of_that_name'"),
        ("raise SystemExit(3)\nown = 1", 1, "SystemExit: 3"),
        ("def f(:", 1, "SyntaxError"),
        ("own = 1", 2, "no callable 'own'"),
    ],
)
def test_a_file_that_cannot_be_imported(kind, source, code, said, user):
    found, message, _ = user(source, *WORDS, f"{kind}=comp:own")
    assert found == code and message.startswith(kind) and said in message
    assert ("comp.py" in message) == (code == 1)  # in the traceback


def test_a_rule_that_returns_an_array_is_run_as_the_shipped_one(tmp_path, user):
    source = """
        import networkx, numpy

        def own(graph):
            a = networkx.to_numpy_array(graph, range(len(graph)))
            w = a / (1 + a.sum(axis=1).max())
            return w + numpy.diag(1 - w.sum(axis=1))
    """
    words = [*WORDS, "exchange=gossip", "exchange.topology=star"]
    assert user(source, *words, "exchange.weights=comp:own")[0] == 0
    own = (tmp_path / "run" / "metrics.csv").read_text()
    shipped = [*words, "exchange.weights=max_degree"]
    assert main([*shipped, "--quiet", "--output", str(tmp_path / "shipped")]) == 0
    other = (tmp_path / "shipped" / "metrics.csv").read_text()
    columns = own.split("\n")[0].split(",")
    seconds = columns.index("seconds")
    for one, two in zip(own.splitlines(), other.splitlines(), strict=True):
        one, two = one.split(","), two.split(",")
        assert one[:seconds] == two[:seconds]
        accuracy = columns.index("test_accuracy")
        assert one[accuracy] == two[accuracy]
