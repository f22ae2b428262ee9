"""Whatever a user's own component does wrongly is one sentence with its key, file and signature.

Each case is a file as a user would write it; the line that is told is the one that ends in
``# here``.
"""

from __future__ import annotations

import sys
import textwrap

import pytest
from commands import call

from mpifed.errors import MESSAGE
from mpifed.launch import main

WORDS = (
    "clients=8",
    "rounds=4",
    "data.n_test=5",
    "data.dimension=4",
    "model=linear",
    "algorithm=fedavg",
)
COMPRESSOR = (
    "__call__(rows, draws, ids, purpose), bits(size, itemsize, draws, ids, purpose), "
    "contraction(size), floats(size, draws, ids, purpose), omega(size)"
)
METHODS = (
    "deploy(state, clients, draws), init(clients, exchange, draws, dtype), payload(), "
    "round(state, clients, channel, draws)"
)
STEP = "step(x, moved, kept, neighbours)"
ROUND = "(mpifed calls round(state, clients, channel, draws)"

OF_ANOTHER_KIND = {
    "compression": f"made as (x), but mpifed calls own(**options) for an object with {COMPRESSOR}, "
    "unbiased (True or False); options are keyword-only parameters",
    "exchange.correction": f"made as (x), but mpifed calls own(**options) for an object with {STEP}"
    "; options are keyword-only parameters",
    "algorithm": f"write class own(Algorithm) with {METHODS}, made as own(model, local, **options)",
    "data": "write class own(Dataset) with load(client_ids, dtype), made as own(n_clients, seed, ",
    "exchange": "write class own(Exchange) with at(round, active, memory), ",
    "exchange.aggregator": "write class own(ByCoordinates) with combine(columns) or class own("
    "ByProducts) with shares(products), made as own(**options)",
    "attack": "which is not derived from mpifed.exchange.attacks.Attack; write class own(Attack)",
    "algorithm.surrogate": "cannot be used as a surrogate: it lacks init(generator), losses(z, thet"
    "a), minimiser(s), n_parameters (a whole number), penalty(theta), project(s), ",
}
"""What is said of a function of one argument in place of each kind of component."""


@pytest.fixture
def user(tmp_path, monkeypatch, capfd):
    """Runs the command with a user's file, and returns exit code, message, and the told line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(source, *words):
        file = textwrap.dedent(source).lstrip()
        (tmp_path / "comp.py").write_text(file)
        monkeypatch.delitem(sys.modules, "comp", raising=False)
        done = call([*words, "--output", tmp_path / "run"], capfd)
        (message,) = done.err.splitlines() or [""]
        assert len(message) <= MESSAGE + len("mpifed: ") and "Traceback" not in done.err
        lines = [number for number, line in enumerate(file.split("\n"), 1) if "# here" in line]
        assert not lines or f"comp.py, line {lines[0]}" in message, message
        return done.code, message.removeprefix("mpifed: "), done.out

    yield run
    sys.modules.pop("comp", None)


def gossips(key):
    return ["exchange=gossip"] if key.removeprefix("exchange.") in PARTS else []


PARTS = ("correction",)


@pytest.mark.parametrize("key", OF_ANOTHER_KIND)
def test_a_function_in_place_of_each_kind_is_told_what_is_wanted(key, user):
    source = """
        def own(x):  # here
            return 3
    """
    words = [*WORDS, *gossips(key), f"{key}=comp:own"]
    if key == "algorithm.surrogate":
        words = ["fedmm-homogeneous", "data=poisson"]
        words.append("algorithm={name: fedmm, surrogate: comp:own}")
    code, message, _ = user(source, *words)
    assert code == 2 and OF_ANOTHER_KIND[key] in message, message
    assert message.startswith(key) and "comp" in message


CLASSES = {
    "from mpifed.exchange.compression import Compressor as Base": (
        "compression",
        f"which lacks the methods {COMPRESSOR} (in ",
    ),
    "from mpifed.exchange.corrections.base import Correction as Base": (
        "exchange.correction",
        f"which lacks the methods {STEP} (in ",
    ),
    "from mpifed.algorithms.base import Algorithm as Base": (
        "algorithm",
        f"which lacks the methods {METHODS} (in ",
    ),
    "from mpifed.exchange.aggregation import ByProducts as Base": (
        "exchange.aggregator",
        "which lacks the methods shares(products) (in ",
    ),
    "from mpifed.data.base import Dataset as Base": (
        "data",
        "which lacks the methods load(client_ids, dtype) (in ",
    ),
    "from mpifed.exchange.attacks import Attack as Base": (
        "attack={name: comp:Own, clients: [1]}",
        "which changes nothing; write changes_labels = True with relabelled(y, n_classes) or ",
    ),
    "Base = object": (
        "compression",
        f"cannot be used as a compressor: it lacks {COMPRESSOR}, unbiased (True or False) (in ",
    ),
}


@pytest.mark.parametrize("base", CLASSES)
def test_an_empty_class_is_told_what_to_write(base, user):
    key, said = CLASSES[base]
    word = key if "=" in key else f"{key}=comp:Own"
    source = f"{base}\nclass Own(Base):  # here\n    pass\n"
    code, message, _ = user(source, *WORDS, *gossips(key), word)
    assert code == 2 and said in message, message
    assert message.startswith(f"{key.partition('=')[0]}.name is 'comp:Own', which ")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import numpy\nundefined  # here\nown = 1",
            "NameError: name 'undefined' is not defined in comp",
        ),
        ("import nothing_of_that_name  # here\nown = 1", "'nothing_of_that_name'"),
        ("raise SystemExit(3)  # here\nown = 1", "cannot be imported"),
        ("def f(:  # here", "SyntaxError: invalid syntax"),
    ],
)
def test_a_file_that_cannot_be_imported_has_its_place(source, said, user):
    code, message, _ = user(source, *WORDS, "exchange=gossip", "compression=comp:own")
    assert code == 2 and said in message and message.startswith("compression"), message


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
