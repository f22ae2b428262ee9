"""What needs neither torch nor data is refused before torch is imported, in the same words."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commands import environment
from mpifed.config.early import check_changes, check_early

from mpifed.config import early
from mpifed.config.configuration import (
    apply_overrides,
    parse_overrides,
    read_experiment,
    resolve,
    to_mapping,
)
from mpifed.errors import InputError

WRONG = (
    "rounds=-1",
    "roundz=3",
    "local.lr=fast",
    "evaluation.evry=2",
    "participation=2",
    "participation={name: bernouli}",
    "algorithm=fedm",
    "model.name=lineal",
    "exchange={}",
    "compression=null",
    "data=digit",
    "algorithm.foo=3",
    "model={name: mlp, hiden: [3]}",
    "data.n_tets=20",
    "exchange.topology=ring",
    "exchange.aggregator=meddian",
    "exchange={name: gossip, topology: rign}",
    "exchange={name: gossip, topology: {name: ring, p: 0.2}}",
    "exchange={name: gossip, topology: {name: torus, sides: 3}}",
    "exchange={name: gossip, weights: metropolis}",
    "exchange={name: gossip, schedule: onepeer}",
    "exchange={name: gossip, correction: gradient_tracking}",
    "exchange={name: gossip, transport: colective}",
    "compression={name: top_k, k: lots}",
    "algorithm.mixture_init=unifrom",
    "algorithm={name: fedmm, surrogate: quadrtic}",
    "algorithm=nowhere_to_be_found:Method",
    "model=not/a/module.py:net",
    "algorithm.n_components=0",
    "algorithm={name: fedprox, mu: x}",
    "attack.fraction=2",
    "compression={name: top_k, fraction: 2}",
    "data=csv",
    "exchange={name: gossip, topology: {name: erdos_renyi, p: 2}}",
    "exchange={name: gossip, topology: {name: torus, rows: 7}}",
    "model={name: mlp, hidden: x}",
    "model=json:net",
    "model=math:net",
    "algorithm=user_components:Fials",
    "algorithm={name: fedmm, surrogate: json:Problem}",
)


@pytest.mark.parametrize("word", WRONG)
def test_it_is_refused_in_the_words_of_the_whole_check(word):
    overrides = parse_overrides([word])
    with pytest.raises(InputError) as whole:
        resolve(apply_overrides(read_experiment("synthetic-fedem"), overrides))
    with pytest.raises(InputError) as early:
        check_early(None, overrides)
    assert str(early.value) == str(whole.value)


def test_torch_is_not_imported_for_it():
    program = (
        "import sys; from mpifed.launch import main\n"
        f"codes = [main([word]) for word in {WRONG}]\n"
        "print(set(codes), {'torch', 'mpi4py.MPI', 'networkx', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert done.stdout == "{2} set()\n", done
    assert len(done.stderr.splitlines()) == len(WRONG)


def test_a_word_outside_of_components_is_refused_without_large_libraries():
    program = (
        "import sys; from mpifed.launch import main\n"
        "codes = [main([word]) for word in ('roundz=3', 'participation=2', 'rounds=-1')]\n"
        "print(set(codes), {'torch', 'scipy', 'networkx', 'h5py'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert done.stdout == "{2} set()\n", done


@pytest.mark.parametrize("word", ["clients=ranks", "data=some.h5", "data.path=some.h5"])
def test_what_only_the_whole_check_knows_passes(word, monkeypatch):
    monkeypatch.setattr(early, "launched_rank", lambda: 0)  # ranks look for files together
    check_early(None, parse_overrides([word]))
    check_early("not-there.yaml", parse_overrides([word]))


@pytest.mark.parametrize(
    "word",
    [
        "exchange={name: gossip, topology: {name: erdos_renyi, p: 0.3, on_disconnected: keep}}",
        "exchange={name: gossip, schedule: {name: static, drop_edges: 0.1}}",
        "exchange={name: gossip, topology: {name: hypercube, dimension: 3}}",
        "exchange={name: gossip, topology: json:loads}",
        "exchange.aggregator={name: trimmed_mean, trim: 0.3}",
        "model=json:loads",
        "data={name: csv, path: own.csv, label: risk}",
    ],
)
def test_what_is_right_or_needs_more_passes(word, monkeypatch):
    monkeypatch.setattr(early, "launched_rank", lambda: 0)  # ranks look for files together
    overrides = parse_overrides([word])
    if "hypercube" in word:
        overrides |= {"clients": 10, "evaluation.unseen_fraction": 0.2}
    check_early(None, overrides)


@pytest.mark.parametrize(
    "word",
    [
        "data=nowhere.csv",
        "data.path=nowhere.csv.xz",
        "data=none.npz",
        "data=none.h5",
        "data={name: libsvm, path: a6a}",
        "data={name: libsvm, raw: nowhere}",
        "data={name: mnist, raw: nowhere}",
    ],
)
def test_a_table_that_is_missing_is_refused_where_one_process_runs(word, monkeypatch):
    monkeypatch.setattr(early, "launched_rank", lambda: None)
    with pytest.raises(InputError, match=r"there is no such (file|directory)"):
        check_early("digits-fedem", parse_overrides([word]))
    check_early("digits-fedem", parse_overrides([word]), with_files=False)


@pytest.mark.parametrize("word", ["data.label=z", "data.features=[a,z]", "data.delimiter=xx"])
def test_a_column_that_a_table_lacks_is_refused(word, monkeypatch, tmp_path):
    monkeypatch.setattr(early, "launched_rank", lambda: None)
    table = tmp_path / "own.csv"
    table.write_text("a,b,y\n1,2,0\n")
    said = {"data.label=z": "data.label is 'z', but '.*' has no such column; allowed: a, b, y"}
    with pytest.raises(InputError, match=said.get(word, word.partition("=")[0])):
        data = {"data": str(table), "data.label": "y"}
        check_early("digits-fedem", data | parse_overrides([word]))
    check_early("digits-fedem", {"data": {"name": "csv", "path": str(table), "label": "y"}})


def test_data_of_nowhere_are_refused(monkeypatch):
    monkeypatch.setattr(early, "launched_rank", lambda: None)
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    with pytest.raises(InputError, match=r"data\.raw is empty and MPIFED_DATA is not set"):
        check_early("digits-fedem", {"data": "mnist"})


def test_what_changes_a_stored_configuration_is_checked():
    stored = to_mapping(resolve(read_experiment("synthetic-fedem")))
    check_changes(stored, {"network.latency": 0.5})
    with pytest.raises(InputError, match=r"Unknown option 'network\.latncy'; did you mean"):
        check_changes(stored, {"network.latncy": 0.5})


def test_an_experiment_that_is_missing_is_refused_where_one_process_runs(monkeypatch):
    monkeypatch.setattr(early, "launched_rank", lambda: None)
    with pytest.raises(InputError, match=r"nowhere\.yaml cannot be read"):
        check_early("nowhere.yaml", {})


@pytest.mark.parametrize("word", ["algorithm={name: fedadam, server_lr: 0.1}", "clients=ranks"])
def test_an_inherited_option_passes(word):
    check_early(None, parse_overrides([word]))


def test_an_unknown_experiment_is_refused_before_torch_is_imported():
    program = (
        "import sys; from mpifed.launch import main; "
        "print(main(['no-such-experiment']), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=True,
    )
    assert done.stdout == "2 False\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("mpifed: Unknown experiment 'no-such-experiment'; ")
