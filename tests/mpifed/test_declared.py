"""What a user's class declares is checked when it is made, and enforced in every configuration."""

from __future__ import annotations

import pytest

from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.config.configuration import resolve
from mpifed.errors import InputError


class ForServers(FedAvg):
    """FedAvg that declares a server alone."""

    exchanges = ("server",)


class Whole(FedAvg):
    """FedAvg that declares whole messages."""

    compressors = "none"


class Unbiased(FedAvg):
    """FedAvg that declares unbiased messages."""

    compressors = "unbiased"


class Silent(FedAvg):
    """FedAvg that declares that it sends nothing, to any exchange."""

    exchanges = ("server",)
    compressors = "none"
    communicates = False


def own(kind, **sections):
    return resolve({"algorithm": f"{__name__}:{kind.__name__}", **sections})


@pytest.mark.parametrize(
    ("kind", "sections", "words"),
    [
        (
            ForServers,
            {"exchange": "gossip"},
            "^exchange is 'gossip', which .*ForServers does not support; allowed: server$",
        ),
        (Whole, {"compression": "rand_k"}, "^compression is 'rand_k', but .*Whole sends its"),
        (
            Unbiased,
            {"compression": "top_k"},
            r"^compression.name is 'top_k', which is biased, but .*Unbiased needs E C\(v\) = v; ",
        ),
        (
            Unbiased,
            {"compression": {"name": "bernoulli", "inner": "top_k"}},
            "^compression.inner is 'top_k', which is biased",
        ),
    ],
)
def test_what_a_method_does_not_declare_is_refused(kind, sections, words):
    with pytest.raises(InputError, match=words):
        own(kind, **sections)


def test_what_it_declares_is_allowed():
    own(ForServers, exchange="server", compression="top_k")
    own(Whole, exchange="gossip")
    own(Unbiased, compression="rand_k")
    # Replicas of neighbours make up for what compression leaves out.
    own(Unbiased, exchange="gossip", compression="top_k")
    own(Silent, exchange="gossip", compression="rand_k")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("exchanges", "server", "'exchanges', which is 'server'; it must be a tuple .*; or None"),
        ("exchanges", ("servr",), "each one of 'server', 'gossip', or package.module:object"),
        ("compressors", "all", "must be one of 'any', 'unbiased', 'none'"),
        ("averages_by", "sample", "must be one of 'samples', 'clients'; or None"),
        ("tasks", "classification", "must be a tuple whose entries are each one of 'class"),
        ("columns", "abc", "must be a tuple whose entries are each a string"),
        ("columns", lambda self: ("a",), "'columns', which is a method; it must be a tuple"),
        ("local_options", ("lrr",), "each one of 'optimizer', 'lr', "),
        ("steps_locally", 1, "must be True or False"),
        ("model_type", "Model", "must be a class"),
        ("round", 3, r"'round', which is 3; it must be a method round\(state, clients, channel"),
        ("deploy", None, "'deploy', which is empty; it must be a method deploy"),
        ("round", lambda self, state: state, r"round\(self, state|round\(state\), but mpifed"),
        ("deploy", lambda self, state, clients, draws, more: state, "but mpifed calls deploy"),
        ("refuse", lambda self, configuration: None, r"but mpifed calls refuse\(configuration\)"),
        ("learned", lambda self, state, exchange: {}, "did you mean 'learnt'"),
    ],
)
def test_a_value_that_the_base_class_does_not_allow_is_refused_when_the_class_is_made(
    name, value, words
):
    with pytest.raises(InputError, match=f"^algorithm 'Mine' has .*{words}"):
        type("Mine", (FedAvg,), {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exchanges", ("server", "mine:Exchange")),
        ("exchanges", None),
        ("tasks", ("regression",)),
        ("local_options", ("lr", "batch_size")),
        ("columns", property(lambda self: ("a",))),
        ("round", lambda self, *everything: None),
        ("deploy", lambda self, state, clients, draws, more=None: None),
        ("refuse", staticmethod(lambda configuration: None)),
        ("payload", staticmethod(lambda: 3)),
    ],
)
def test_what_the_base_class_allows_is_not(name, value):
    type("Mine", (FedAvg,), {name: value})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("colums", ("a",), "'colums', which mpifed does not know; did you mean 'columns'"),
        ("columns", "a", "'columns', which is 'a'; it must be a tuple"),
        ("tasks", ("classify",), "'tasks', which is .*; it must be a tuple"),
        ("online", 1, "'online', which is 1; it must be True or False"),
        ("payload", 3, "'payload', which is 3; it must be a method"),
    ],
)
def test_attributes_of_an_object_are_checked_when_it_has_been_made(name, value, words):
    class Mine(FedAvg):
        def __init__(self, model, local):
            super().__init__(model, local)
            setattr(self, name, value)

    class Heir(Mine):
        pass

    for made in (Mine, Heir):
        with pytest.raises(InputError, match=f"^algorithm '{made.__name__}' sets {words}"):
            made(None, None)


def test_an_object_is_checked_after_the_last_of_its_constructors():
    class Mine(FedAvg):
        def __init__(self, model, local):
            self.columns = ["not yet a tuple"]
            super().__init__(model, local)
            self.columns = tuple(self.columns)

    assert Mine(None, None).columns == ("not yet a tuple",)
