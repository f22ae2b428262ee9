"""A surrogate that is none is refused by a sentence that says what is amiss, before the run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from commands import call

from mpifed.errors import InputError
from mpifed.surrogates.base import Surrogate, as_surrogate, check_returns
from mpifed.surrogates.remark_one import RemarkOne

Z = torch.ones(4, 1, dtype=torch.float64)


class Float32(RemarkOne):
    def statistics(self, z, theta, offsets):
        return super().statistics(z, theta, offsets).float()


class Flat(RemarkOne):
    def statistics(self, z, theta, offsets):
        return super().statistics(z, theta, offsets)[:, 0]


class OneThetaOnly(RemarkOne):
    def statistics(self, z, theta, offsets):
        return theta * super().statistics(z, theta, offsets) if theta.dim() == 1 else theta[0]


class Long(RemarkOne):
    def init(self, generator):
        return generator.normal(size=2)


class TensorStart(RemarkOne):
    def init(self, generator):
        return torch.ones(1, dtype=torch.float64)


class WholeRow(RemarkOne):
    def minimiser(self, s):
        return s.sum().sqrt()


class Broadcast(RemarkOne):
    def losses(self, z, theta):
        return z * theta


REFUSED = {
    Float32: "Float32.statistics returns a Tensor torch.float32 (1, 1)",
    Flat: "statistics returns a Tensor torch.float64 (1,); it must be a float64 Tensor of",
    OneThetaOnly: "statistics returns a Tensor torch.float64 (1,)",
    Long: "Long.init returns a ndarray float64 (2,)",
    TensorStart: "TensorStart.init returns a Tensor",
    WholeRow: "WholeRow.minimiser returns a Tensor torch.float64 ()",
    Broadcast: "Broadcast.losses returns a Tensor torch.float64 (4, 1)",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_method_returns_is_named_beside_what_is_wanted(kind):
    with pytest.raises(InputError) as refusal:
        check_returns(kind(), Z, np.random.default_rng(0))
    assert str(refusal.value).startswith("algorithm.surrogate: ")
    assert REFUSED[kind] in str(refusal.value)


def test_linear_algebra_that_fails_is_left_to_the_run():
    class Singular(RemarkOne):
        def minimiser(self, s):
            return torch.linalg.inv(s.new_zeros(2, 2))

    check_returns(Singular(), Z, np.random.default_rng(0))
    check_returns(RemarkOne(), Z, np.random.default_rng(0))


class Halfway:
    """A surrogate that its user has only begun to write."""

    size = n_parameters = 1


def begun(data):
    """A surrogate without methods."""
    return Halfway()


def of_one_number(data):
    """A surrogate with statistics of a wrong type."""
    return Float32()


def test_what_is_missing_is_named():
    with pytest.raises(
        InputError,
        match=r"Halfway, which is not derived",
    ):
        as_surrogate(Halfway())
    with pytest.raises(InputError, match="makes a RemarkOne, whose size is 0; it must be a whole"):
        as_surrogate(RemarkOne(size=0))

    class Begun(Surrogate):
        size = n_parameters = 1

    with pytest.raises(TypeError, match="abstract methods init, losses"):
        Begun()


@pytest.mark.parametrize("name", ["begun", "of_one_number"])
def test_a_run_is_refused_before_anything_is_written(name, tmp_path, capfd):
    surrogate = f"{{name: '{__name__}:{name}'}}"
    words = ["fedmm-homogeneous", "clients=3", "rounds=1", "data=poisson"]
    words.append(f"algorithm={{name: fedmm, surrogate: {surrogate}}}")
    refused = call([*words, "--output", tmp_path / "run"], capfd)
    assert refused.code == 2 and "algorithm.surrogate" in refused.err, refused.err
    assert not (tmp_path / "run").exists()
