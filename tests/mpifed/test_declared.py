"""What a user's class declares is enforced in every configuration."""

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
            "^exchange is 'gossip', but .*ForServers.* does not support.*allowed: server$",
        ),
        (
            Whole,
            {"compression": "rand_k"},
            "^compression is .*rand_k.* but .*Whole.*; allowed: none",
        ),
        (
            Unbiased,
            {"compression": "top_k"},
            r"^compression is .*top_k.*unbiased is false, but .*Unbiased.*E C\(v\) = v",
        ),
        (
            Unbiased,
            {"compression": {"name": "bernoulli", "inner": "top_k"}},
            "^compression is .*bernoulli.*unbiased is false",
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
