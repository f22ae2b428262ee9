"""Base classes of components: what a user's own class must be, and how mistakes in it are named."""

from __future__ import annotations

import pytest

from mpifed.algorithms.base import Algorithm
from mpifed.algorithms.fedavg import FedAvg
from mpifed.components.registry import ALGORITHMS, find
from mpifed.config.configuration import resolve
from mpifed.errors import InputError


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("steps_without_client", True, "steps_without_clients"),
        ("step_locally", True, "steps_locally"),
        ("colums", ("loss",), "columns"),
        ("exchange", ("server",), "exchanges"),
        ("remark", lambda self, state, clients, exchange: [], "remarks"),
        ("measures", lambda self, state, clients, exchange, draws: {}, "measure"),
        ("refused", staticmethod(lambda configuration: None), "refuse"),
        ("complete_option", staticmethod(lambda options, n: options), "complete_options"),
    ],
)
def test_a_misspelt_name_is_refused_when_the_class_is_made(name, value, meant):
    with pytest.raises(InputError, match=f"'Mine' has '{name}'.*did you mean '{meant}'"):
        type("Mine", (Algorithm,), {name: value})
    with pytest.raises(InputError, match=meant):
        type("Mine", (FedAvg,), {name: value})


def test_a_plain_attribute_that_nothing_reads_is_refused():
    with pytest.raises(InputError, match="has 'patience', which mpifed does not know"):
        type("Mine", (FedAvg,), {"patience": 3})


def test_methods_and_private_names_of_the_class_itself_are_allowed():
    class Mine(FedAvg):
        _patience = 3
        level: int = 2

        class Kept:
            pass

        def half(self):
            return self._patience / 2

        @property
        def double(self):
            return 2 * self._patience

    assert Mine.steps_locally and not Mine.steps_without_clients


class Unrelated:
    """Has all the methods and derives from nothing."""

    init = round = deploy = payload = None


class Incomplete(Algorithm):
    """Lacks two methods."""

    def init(self, clients, exchange, draws, dtype):
        return None

    def deploy(self, state, clients, draws):
        return None


def not_a_class(model, local):
    """A function."""


@pytest.mark.parametrize("name", ["Unrelated", "not_a_class"])
def test_what_is_not_derived_from_algorithm_is_refused(name):
    with pytest.raises(InputError) as refused:
        resolve({"algorithm": f"{__name__}:{name}"})
    assert str(refused.value) == (
        f"algorithm.name is '{__name__}:{name}', which is not derived from "
        "mpifed.algorithms.base.Algorithm"
    )


def test_a_class_that_lacks_a_method_is_refused():
    with pytest.raises(InputError, match="which lacks the methods payload, round"):
        resolve({"algorithm": f"{__name__}:Incomplete"})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_derives_from_the_base_class_and_is_complete(name):
    found = find("algorithm", name)
    assert issubclass(found, Algorithm) and not found.__abstractmethods__
