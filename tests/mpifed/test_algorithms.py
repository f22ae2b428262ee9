"""What every registered algorithm must do, whatever it computes."""

from __future__ import annotations

import inspect
import re
import typing

import pytest
import torch
from on_ranks import SMALL, unlike_one_rank_though_resumed
from small_runs import CASES, NEVER_CUT_SHORT, goes_with, problem, refused, rounds_of

from mpifed.method import Algorithm, Channel, GossipChannel, ServerChannel
from mpifed.testing import check_method, find_item, names, run_rounds

RING = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}
every_algorithm = pytest.mark.parametrize("name", names("algorithms"))


@every_algorithm
def test_it_says_what_it_is_and_where_it_is_from(name):
    found = find_item("algorithm", name)
    assert re.match(r"[\w+-]+(:|;| ).{10,}\.$", found.__doc__.strip().split("\n")[0])
    where = [inspect.getmodule(kind).__doc__ for kind in found.__mro__ if kind is not Algorithm]
    sources = re.findall(r"\(?(?:19|20)\d\d\b", " ".join([found.__doc__, *filter(None, where)]))
    assert sources, f"neither {name} nor its module names a paper"


@every_algorithm
def test_the_type_of_its_channel_says_whether_it_needs_a_server(name):
    found = find_item("algorithm", name)
    channel = typing.get_type_hints(found.round)["channel"]
    if isinstance(channel, typing.TypeVar):
        # The base class leaves it open, and the class itself says which.
        named = typing.get_args(found.__orig_bases__[0])
        (channel,) = (kind for kind in named if issubclass(kind, Channel))
    only = {Channel: found.exchanges, ServerChannel: ("server",), GossipChannel: ("gossip",)}
    assert found.exchanges == only[channel]


BY_DEFAULT = {"fedavg", "fedem", "apfl", "fedbn", "clustered", "flix"}
"""Methods of a server that the default run checks under gossip too."""


@pytest.mark.parametrize(
    ("name", "exchange"),
    [
        pytest.param(
            *case.values,
            id=case.id,
            marks=[pytest.mark.slow]
            * (
                case.values[1] == "gossip"
                and goes_with(case.values[0], "server")
                and case.values[0] not in BY_DEFAULT
            ),
        )
        for case in CASES
    ],
)
def test_it_passes_the_common_checks(name, exchange):
    check_passes(name, exchange, ranks=(3,) if exchange == "gossip" else (2,))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in names("algorithms") if goes_with(n, "server")])
def test_it_passes_the_common_checks_on_five_ranks_under_a_server(name):
    check_passes(name, "server", ranks=(5,))


def check_passes(name, exchange, ranks):
    own = problem(name, exchange)
    del own["exchange"]
    method, data = own.pop("algorithm"), own.pop("data")
    check_method(method, data, exchanges=(exchange,), ranks=ranks, **own)


def test_a_resumed_run_goes_on_with_what_it_has_read():
    rounds = rounds_of("fedem", participation=0.5, rounds=1)
    again = rounds.resumed()
    assert again.state.optimizer.momentum.equal(rounds.state.optimizer.momentum)
    assert again.advance().digest == rounds.advance().digest


@every_algorithm
def test_it_does_what_it_declares_and_refuses_the_rest(name):
    found = find_item("algorithm", name)
    for exchange in ("server", "gossip"):
        assert refused(name, exchange) == (not goes_with(name, exchange))
    home = "server" if goes_with(name, "server") else "gossip"
    late = {"name": "stragglers", "rate": 0.5, "late": "partial"}
    assert refused(name, home, participation=late) == (name in NEVER_CUT_SHORT)
    unseen = {"every": 2, "unseen_fraction": 0.3}
    if name != "sa_ssmm":  # has a single client
        assert refused(name, home, evaluation=unseen) == (not found.serves_unseen_clients())


LATE = {"name": "stragglers", "rate": 0.6, "late": "partial"}
NORMALISED = "network_modules:normalised_mlp"
HARDSHIPS = (
    ({"participation": LATE}, {"participation": 0.5}),
    ({"evaluation": {"every": 2, "unseen_fraction": 0.3}},),
    ({"compression": {"name": "top_k", "k": 3}}, {"compression": "rand_k"}),
)
OPTIONS = (
    ("fedprox", {"server_optimizer": "yogi"}),
    ("fedbn", {"server_optimizer": {"name": "adam", "bias_correction": True}}),
    ("scaffold", {"server_optimizer": "nesterov", "algorithm": {"variate_option": "I"}}),
    ("fednova", {"server_optimizer": "momentum"}),
    ("moon", {"model": NORMALISED, "algorithm": {"moon_mu": 2.0}}),
    ("apfl", {"algorithm": {"apfl_adaptive": True}}),
    ("pfedme", {"local": {"stepping": "one_by_one"}, "algorithm": {"beta": 1.5}}),
    ("l2gd", {"algorithm": {"l2gd_gradients": "minibatch", "l2gd_p": 0.3}}),
    ("ifca", {"algorithm": {"n_clusters": 2, "averaging": "gradients"}}),
    ("fedgmm", {"algorithm": {"n_gaussians": 2, "n_components": 2}}),
    ("fedper", {"algorithm": {"head_init": "per_client"}}),
    ("fedpac", {"model": NORMALISED}),
    ("fedfomo", {"evaluation": {"every": 2, "validation_fraction": 0.2}}),
    ("knn_per", {"evaluation": {"every": 2, "validation_fraction": 0.2}}),
)


def hard(name, exchange, **more):
    """What a method bears of late, absent and unseen clients, and of messages with losses."""
    if "algorithm" in more:
        more["algorithm"] = {"name": name, **more["algorithm"]}
    for ways in HARDSHIPS:
        borne = (way for way in ways if not {*way} & {*more})
        more |= next((way for way in borne if not refused(name, exchange, **more, **way)), {})
    clients = 1 if name == "sa_ssmm" else SMALL["clients"]
    return {**problem(name, exchange), "checkpoint": {"every": 2}, **more, "clients": clients}


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "exchange", "more"),
    [*((*case.values, {}) for case in CASES), *((name, "server", more) for name, more in OPTIONS)],
)
def test_files_depend_neither_on_ranks_nor_on_resumes(name, exchange, more, tmp_path):
    assert unlike_one_rank_though_resumed(hard(name, exchange, **more), tmp_path) == []


@pytest.mark.parametrize(
    ("name", "exchange"),
    [
        ("scaffold", "server"),
        ("fednova", "server"),
        ("scaffnew", "server"),
        ("scaffnew", "gossip"),
        ("kgt", "gossip"),
    ],
)
@pytest.mark.parametrize("clock", ["round", "local_epoch"])
def test_steps_of_rate_zero_leave_what_is_known_of_gradients_as_it_is(name, exchange, clock):
    local = {"lr_schedule": "cosine", "lr_clock": clock, "epochs": 2, "batch_size": 16}
    rounds = run_rounds(
        name, rounds=4, local=local, exchange=RING if exchange == "gossip" else exchange
    )
    before, after = rounds.state, rounds.advance(3).state
    for field in ("variate", "variates", "correction"):
        if hasattr(before, field):
            gradients = getattr(before, field)
            assert gradients.any()
            torch.testing.assert_close(getattr(after, field), gradients, rtol=0, atol=1e-7)
    if exchange == "server":
        torch.testing.assert_close(after.model, before.model)
    assert torch.isfinite(after.model).all()


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "qffl", "agnostic", "ifca"])
def test_a_server_books_the_numbers_that_a_method_says_it_sends(name):
    rounds = run_rounds(name, rounds=2)
    numbers = rounds.metrics["up_bits"] / (32 * 2 * rounds.configuration.clients)
    assert numbers == rounds.algorithm.payload()


def test_pfeddst_sends_each_neighbour_a_model_and_a_loss():
    rounds = run_rounds("pfeddst", rounds=2, model="mlp", exchange=RING)
    numbers = rounds.metrics["up_bits"] / (32 * 2 * 2 * rounds.configuration.clients)
    assert numbers == rounds.algorithm.payload()
