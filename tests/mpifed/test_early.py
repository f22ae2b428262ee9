"""What needs neither torch nor data is refused before torch is imported, in the same words."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commands import environment

from mpifed.config.configuration import apply_overrides, parse_overrides, read_experiment, resolve
from mpifed.config.early import check_early
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
        "print(set(codes), {'torch', 'mpi4py.MPI', 'networkx'} & set(sys.modules))"
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
def test_what_only_the_whole_check_knows_passes(word):
    check_early(None, parse_overrides([word]))
    check_early("not-there.yaml", parse_overrides([word]))


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
