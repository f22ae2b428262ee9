"""A surrogate that is none is refused by a sentence that says what is amiss, before the run."""

from __future__ import annotations

import pytest
from commands import call

from mpifed.errors import InputError
from mpifed.surrogate import Surrogate, as_surrogate


class Halfway:
    """A surrogate that its user has only begun to write."""

    size = n_parameters = 1


def begun(data):
    """A surrogate without methods."""
    return Halfway()


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match=r"algorithm\.surrogate.*Halfway.*surrogate\.Surrogate"):
        as_surrogate(Halfway())

    class Begun(Surrogate):
        size = n_parameters = 1

    with pytest.raises(TypeError, match=r"Begun.*\binit\b.*\blosses\b.*\bminimiser\b"):
        Begun()


def test_a_run_is_refused_before_anything_is_written(tmp_path, capfd):
    surrogate = f"{{name: '{__name__}:begun'}}"
    words = ["fedmm-homogeneous", "clients=3", "rounds=1", "data=poisson"]
    words.append(f"algorithm={{name: fedmm, surrogate: {surrogate}}}")
    refused = call([*words, "--output", tmp_path / "run"], capfd)
    assert refused.code == 2 and "algorithm.surrogate" in refused.err, refused.err
    assert not (tmp_path / "run").exists()
