"""Wrong data sets, parts of an exchange and schedules of a user's are told before a run begins."""

from __future__ import annotations

import dataclasses
import importlib
import re

import numpy as np
import pytest
import torch
from annotated_types import Gt
from commands import HERE, call, launch

from mpifed.components.registry import find
from mpifed.components.tables import BASES
from mpifed.dataset import Dataset, Description, GeneratedDataset, Shards, Split, alike
from mpifed.errors import InputError
from mpifed.message import Attack, ByCoordinates, Only, Requirement
from mpifed.method import Algorithm, ServerChannel
from mpifed.testing import find_item, run_rounds

FedAvg, Identity = find_item("algorithm", "fedavg"), find_item("compression", "identity")
Plain, Sgd = find_item("correction", "none"), find_item("server_optimizer", "sgd")
POINTS = [([[1.0]], [0]), ([[2.0]], [1]), ([[3.0]], [0])]
WORDS = ("model=linear", "clients=8", "rounds=3", "data.n_test=5", "data.dimension=4")


class Points(Dataset):
    """Points of two classes."""

    def __init__(self, n_clients, run_seed, communicator) -> None:
        counts = np.full(n_clients, 20)
        self.description = Description("points", (2,), 2, counts, counts, counts)

    def load(self, client_ids, dtype):
        return Shards(client_ids, *(self.split(client_ids, dtype) for _ in range(3)))

    def split(self, client_ids, dtype):
        x = torch.linspace(-1, 1, 40, dtype=dtype).reshape(20, 2).repeat(len(client_ids), 1)
        return Split(x, (x[:, 0] > 0).long(), np.arange(len(client_ids) + 1) * 20)


class WidePoints(Points):
    """Has other inputs than it describes."""

    def split(self, client_ids, dtype):
        found = super().split(client_ids, dtype)
        return dataclasses.replace(found, x=found.x[:, :1])


class Drawn(GeneratedDataset):
    """Points drawn client by client, of which the second client has fewer columns."""

    def __init__(self, n_clients, run_seed, communicator) -> None:
        self.description = alike("points", (2,), 2, n_clients, (20, 0, 20), "classification")

    def _make(self, client, split, n):
        return np.zeros((n, 1 if client == 1 else 2)), np.arange(n) % 2


class OneLabel(Drawn):
    """Has one label for all samples of a client."""

    def _make(self, client, split, n):
        return np.zeros((n, 2)), np.zeros(1, int)


class OtherLabels(Points):
    """Has a label that it does not describe."""

    def split(self, client_ids, dtype):
        found = super().split(client_ids, dtype)
        found.y[25] = 7
        return found


WRONG_DATA = {
    WidePoints: r"\(160, 1\).*torch\.float32.*\(160, 2\)",
    Drawn: r"\bx\b.*train.*client 1\b.*\(20, 1\).*\(20, 2\)",
    OneLabel: r"\by\b.*train.*client 0\b.*\(1,\).*\(20,\)",
    OtherLabels: r"label 7\b.* 0 \.\. 1.*client 1\b",
}


@pytest.mark.parametrize("kind", WRONG_DATA, ids=lambda kind: kind.__name__)
def test_a_wrong_data_set_is_refused_before_anything_is_written(kind, tmp_path, capfd):
    words = ["clients=8", "rounds=1", "algorithm=fedavg", "model=linear"]
    words += [f"data={__name__}:{kind.__name__}", "--output", tmp_path / "run"]
    done = call(words, capfd)
    assert done.code == 2, done
    (line,) = done.err.splitlines()
    assert re.search(WRONG_DATA[kind], line) and kind.__name__ in line
    assert list(tmp_path.iterdir()) == []


class Lossy(Identity):
    """Loses a number."""

    def __call__(self, rows, draws, ids, purpose=""):
        return rows[:, 1:]


class Uncombined(ByCoordinates):
    """Returns what it is given."""

    def combine(self, columns):
        return columns


class Forgets(Plain):
    """Returns the values alone."""

    def step(self, x, moved, kept, neighbours):
        return neighbours.mix(moved)


class Halts(Sgd):
    """Returns the step alone."""

    def step(self, mean, state):
        return mean


class Narrows(Sgd):
    """Returns a number fewer."""

    def step(self, mean, state):
        return mean[1:], state


class Withholds(Attack):
    """Sends nothing."""

    changes_updates = True

    def sent(self, updates, malicious, participants):
        return None


PLACES = {
    Lossy: ["compression"],
    Uncombined: ["exchange.aggregator"],
    Forgets: ["exchange.correction", "exchange=gossip"],
    Halts: ["server_optimizer"],
    Narrows: ["server_optimizer"],
    Withholds: ["attack.name", "attack.clients=[1]"],
}


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
def test_what_parts_of_a_round_return_has_the_form_of_what_they_were_given(kind, tmp_path, capfd):
    place, *more = PLACES[kind]
    words = [*WORDS, "algorithm=fedavg", f"{place}={__name__}:{kind.__name__}", *more]
    done = call([*words, "--output", tmp_path / "run"], capfd)
    named = f"mpifed: round 1: {__name__}:{kind.__name__}: "
    assert done.code == 1 and done.err.startswith(named), done


# What a user's class declares is enforced in every configuration.


class ForServers(FedAvg):
    """FedAvg that declares a server alone."""

    exchanges = ("server",)


class Sends(Algorithm[ServerChannel]):
    """A method whose channel sends, which says no more."""

    __init__, init, deploy = FedAvg.__init__, FedAvg.init, FedAvg.deploy

    def round(self, state, clients, channel, draws):
        return state


class Whole(FedAvg):
    """FedAvg that declares whole messages."""

    compressors = "none"


class Unbiased(FedAvg):
    """FedAvg that declares unbiased messages."""

    compressors = "unbiased"


class Silent(FedAvg):
    """FedAvg that declares that it sends nothing, to any exchange."""

    exchanges = ()
    compressors = "none"


def own(kind, **sections):
    return run_rounds(kind, POINTS, rounds=0, **sections)


GATED = {"name": "bernoulli", "inner": "top_k"}


@pytest.mark.parametrize(
    ("kind", "sections", "names"),
    [
        (ForServers, {"exchange": "gossip"}, ("exchange ", "'gossip'", "server")),
        (Sends, {"exchange": "gossip"}, ("exchange ", "'gossip'", "server")),
        (Whole, {"compression": "rand_k"}, ("compression ", "rand_k", "allowed: none")),
        (Unbiased, {"compression": "top_k"}, ("compression ", "top_k", "unbiased")),
        (Unbiased, {"compression": GATED}, ("compression ", "bernoulli", "unbiased")),
    ],
)
def test_what_a_method_does_not_declare_is_refused(kind, sections, names):
    with pytest.raises(InputError) as refused:
        own(kind, **sections)
    assert all(name in str(refused.value) for name in (kind.__name__, *names))


def test_what_it_declares_is_allowed():
    own(ForServers, exchange="server", compression="top_k")
    own(Whole, exchange="gossip")
    own(Unbiased, compression="rand_k")
    # Replicas of neighbours make up for what compression leaves out.
    own(Unbiased, exchange="gossip", compression="top_k")
    own(Silent, exchange="gossip", compression="rand_k")


# A user's component that raises ends the job with one line that says where, and a traceback.


def failing(key, kind, place):
    """The words of a run with a component of this module."""
    return [*WORDS, "--quiet", f"{key}={__name__}:{kind.__name__}", "--output", place]


class Own(FedAvg):
    """FedAvg without options."""

    def __init__(self, model, local) -> None:
        super().__init__(model, local)


class Fails(Own):
    """Fails in the second round of the rank that hosts client 7."""

    def round(self, state, clients, channel, draws):
        if draws.round == 2 and 7 in clients.ids:
            return {}["momentum"]
        return super().round(state, clients, channel, draws)


class Validates(Own):
    """Fails as it checks its options."""

    @staticmethod
    def validate(options, local):
        return options["rate"] / local.lr


class Completes(Own):
    """Fails as it completes its options."""

    @staticmethod
    def complete_options(options, n_training):
        return options | {"of each": 1 // (n_training - n_training)}


class ReturnsNothing(Own):
    """Forgets its ``return``."""

    def round(self, state, clients, channel, draws):
        super().round(state, clients, channel, draws)


class StartsWithNothing(Own):
    """Forgets its ``return`` before round 1."""

    def init(self, clients, exchange, draws, dtype):
        super().init(clients, exchange, draws, dtype)


class DeploysNumbers(Own):
    """Deploys no predictor."""

    def deploy(self, state, clients, draws):
        return state.model


class MeasuresMore(Own):
    """Has a column that it does not declare."""

    def measure(self, state, clients, exchange, draws):
        return {"norm": 1.0}


class Unfinished(Algorithm):
    """Has no round."""

    init, deploy = FedAvg.init, FedAvg.deploy


class Batches(torch.nn.Module):
    """Fails in the fourth client's first minibatch."""

    def __init__(self, data) -> None:
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(4, data.n_outputs), torch.nn.Dropout(0.5)

    def forward(self, x):
        if self.training and len(x) > 60:
            raise ValueError("too many samples")
        return self.dropout(self.layer(x))


def test_the_line_names_component_and_round_and_the_traceback_follows(tmp_path, capfd):
    done = call(failing("algorithm", Fails, tmp_path / "run"), capfd)
    line, *traceback = done.err.splitlines()
    assert line == f"mpifed: algorithm '{__name__}:Fails', round 2: KeyError: 'momentum'"
    assert done.code == 1 and traceback[0] == "Traceback (most recent call last):"
    assert f'File "{__file__}"' in traceback[1] and "KeyError: 'momentum'" in traceback[-2:]
    assert not (tmp_path / "run" / "DONE").exists()


def test_a_client_that_is_trained_alone_is_named(tmp_path, capfd):
    done = call(["algorithm=fedavg", *failing("model", Batches, tmp_path / "run")], capfd)
    line = done.err.splitlines()[0]
    said = rf"mpifed: .*'{__name__}:Batches'.*client \d.*round 1.*ValueError: too many samples"
    assert done.code == 1 and re.fullmatch(said, line), line


class Ends(Own):
    """Takes the next of nothing."""

    def round(self, state, clients, channel, draws):
        return next(iter(()))


def a_layer(data):
    return Batches(data)


def a_net(data):
    net = Batches(data)
    net.layer = _shaped(data)
    return net


def _shaped(data):
    return {}[data.n_outputs]


def _raises(recorded) -> None:
    raise ValueError("what is recorded")


@pytest.mark.parametrize(
    ("algorithm", "model", "said"),
    [
        (Fails, a_layer, r"model '{0}:a_layer', client \d, round 1: ValueError: too many samples"),
        (Own, Batches, r"model '{0}:Batches', client \d, round 1: ValueError: too many samples"),
        (Own, a_net, r"model '{0}:a_net': KeyError: 1"),
        (Ends, a_layer, r"algorithm '{0}:Ends', round 1: StopIteration$"),
    ],
)
def test_of_several_components_of_a_module_the_one_that_failed_is_named(
    algorithm, model, said, tmp_path, capfd
):
    words = [f"algorithm={__name__}:{algorithm.__name__}", "local.batch_size=128"]
    done = call([*words, *failing("model", model, tmp_path / "run")], capfd)
    line = done.err.splitlines()[0]
    assert done.code == 1 and re.fullmatch(f"mpifed: {said.format(__name__)}", line), line
    assert "Traceback (most recent call last):" in done.err


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Validates, "KeyError: 'rate'"), (Completes, "ZeroDivisionError: .*zero")],
)
def test_a_component_is_named_whose_check_of_its_options_fails(kind, reason, tmp_path, capfd):
    done = call(failing("algorithm", kind, tmp_path / "run"), capfd)
    line, *traceback = done.err.splitlines()
    named = f"mpifed: algorithm '{__name__}:{kind.__name__}': {reason}"
    assert done.code == 1 and re.fullmatch(named, line), line
    assert f'File "{__file__}"' in traceback[1]
    assert not (tmp_path / "run").exists()


def test_a_function_beside_a_component_is_named(tmp_path, capfd):
    words = [*failing("algorithm", Fails, tmp_path / "run"), "--on-round", f"{__name__}:_raises"]
    line = call(words, capfd).err.splitlines()[0]
    assert re.search("on_round _raises.* round 0.*ValueError: what is recorded", line)


WRONG_RESULTS = {
    ReturnsNothing: "round 1: {}: round .*NoneType.*FedAvgState",
    StartsWithNothing: "{}: init .*NoneType.*dataclass",
    DeploysNumbers: "round 0: {}: deploy .*Tensor.*Predictor",
    MeasuresMore: "round 0: {}: measure .*'norm'.*columns",
}


@pytest.mark.parametrize("kind", WRONG_RESULTS, ids=lambda kind: kind.__name__)
def test_what_a_method_returns_wrongly_is_one_line(kind, tmp_path, capfd):
    done = call(failing("algorithm", kind, tmp_path / "run"), capfd)
    (line,) = done.err.splitlines()
    said = WRONG_RESULTS[kind].format(f"{__name__}:{kind.__name__}")
    assert done.code == 1 and re.match(f"mpifed: {said}", line)


def test_a_method_without_a_round_is_refused(tmp_path, capfd):
    done = call(failing("algorithm", Unfinished, tmp_path / "run"), capfd)
    said = f"algorithm.name is '{__name__}:Unfinished', which has no round of its own"
    assert done.code == 2 and done.err == f"mpifed: {said}\n" and not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", BASES)
def test_the_base_class_that_a_part_lacks_is_named_on_a_promised_page(kind):
    with pytest.raises(InputError) as refused:
        find(kind, "collections:Counter", kind)
    promised = (HERE.parents[1] / "docs" / "stability.md").read_text(encoding="utf-8")
    bases = re.findall(r"(mpifed[\w.]*)\.(\w+)", str(refused.value))
    assert bases
    for page, name in bases:
        assert f"`{page}`" in promised and name in importlib.import_module(page).__all__


class Forgetful(Withholds):
    """Takes nothing that says who is malicious."""

    def __init__(self, *, scale: float = 1.0) -> None:
        super().__init__()


@pytest.mark.parametrize("more", [["attack.clients=[1]"], []])
def test_an_attack_without_the_options_of_all_attacks_is_refused(more, tmp_path, capfd):
    words = [*failing("attack.name", Forgetful, tmp_path / "run"), "algorithm=fedavg", *more]
    done = call(words, capfd)
    (line,) = done.err.splitlines()
    assert done.code == 2 and list(tmp_path.iterdir()) == []
    assert all(word in line for word in ("Forgetful", "clients", "fraction", "**options"))


@pytest.mark.parametrize("kind", [Fails, pytest.param(StartsWithNothing, marks=pytest.mark.slow)])
def test_one_rank_says_it_for_all(kind, tmp_path):
    done = launch(2, *failing("algorithm", kind, tmp_path / "run"))
    (line,) = done.messages
    assert done.code == 1 and f"{__name__}:{kind.__name__}" in line
    rank, error = (1, "round 2: KeyError") if kind is Fails else (0, "init ")
    assert f"rank {rank} on " in line and error in line
    assert done.err.count("Traceback (most recent call last):") == (kind is Fails)


def test_a_run_that_failed_in_its_first_round_begins_again(tmp_path, capfd, monkeypatch):
    words = failing("algorithm", ReturnsNothing, tmp_path / "run")
    assert call(words, capfd).code == 1
    assert call(words, capfd).code == 2  # the directory holds a run
    monkeypatch.setitem(globals(), "ReturnsNothing", Own)
    assert call([*words, "--resume"], capfd).code == 0


class Punctual(Identity):
    """Goes with all clients in each round alone."""

    requires = (Requirement({"participation": 1.0}, "which waits for all"),)


class PunctualInBatches(Punctual):
    """Needs batches under momentum, too."""

    requires = (
        *Punctual.requires,
        Requirement({"local.batch_size": Gt(1)}, "which sums", {"local.momentum": Gt(0)}),
    )


class Faint(Withholds):
    """Goes with SGD."""

    requires = (Requirement({"local.optimizer": "sgd"}, "which adds"),)


MISSPELT = {
    "local.momentun": Requirement({"local.momentun": 0.0}, "which adds"),
    "algorithm.pp": Requirement({"local.momentum": 0.0}, "which adds", {"algorithm.pp": 0.5}),
    "attack:colluds": Requirement({"attack:colluds": False}, "which adds"),
    "topology.p": Requirement({"topology.p": 0.5}, "which adds"),
    "local.rate": Requirement({"local": Only("rate")}, "which adds"),
}
DECLARED = (
    Requirement({"exchange.correction:within_steps": (None, False)}, "which adds"),
    Requirement({"exchange.topology.p": 0.5, "exchange.schedule.drop_edges": 0}, "which adds"),
    Requirement({"participation.late": "miss", "algorithm.colour": "red"}, "which adds"),
)


class Misspelt(FedAvg):
    """Needs something that there is not."""


class Spelt(FedAvg):
    """Needs what only others have, and what it has itself."""

    requires = DECLARED

    def __init__(self, model, local, *, colour: str = "red") -> None:
        super().__init__(model, local)


@pytest.mark.parametrize("key", MISSPELT)
def test_a_misspelt_key_of_what_a_class_requires_raises(key, monkeypatch):
    monkeypatch.setattr(Misspelt, "requires", (MISSPELT[key],))
    with pytest.raises(ValueError, match=f"{__name__}:Misspelt.*'{key}'"):
        run_rounds(Misspelt, POINTS, rounds=0)


def test_keys_that_other_components_have_may_be_required():
    run_rounds(Spelt, POINTS, rounds=0)
    with pytest.raises(InputError, match=r"algorithm\.colour is 'blue'"):
        run_rounds({"name": Spelt, "colour": "blue"}, POINTS, rounds=0)


def narrow(description):
    """Return a model with few inputs."""
    return torch.nn.Linear(1, 1)


narrow.requires = (Requirement({"local": Only("lr")}, "which reads lr alone"),)

ADAM = {"local": {"optimizer": "adam"}}
UNMET = {
    "compressor": ({"compression": f"{__name__}:Punctual", "participation": 0.5}, "participation"),
    "derived": (
        {"compression": f"{__name__}:PunctualInBatches", "participation": 0.5},
        "participation",
    ),
    "extended": (
        {
            "compression": f"{__name__}:PunctualInBatches",
            "local": {"momentum": 0.5, "batch_size": 1},
        },
        "local.batch_size",
    ),
    "attack": (
        {"attack": {"name": f"{__name__}:Faint", "clients": [1]}, **ADAM},
        "local.optimizer",
    ),
    "model": ({"model": f"{__name__}:narrow", **ADAM}, "local.optimizer"),
}


@pytest.mark.parametrize("kind", UNMET)
def test_what_an_own_class_requires_is_checked(kind):
    words, key = UNMET[kind]
    with pytest.raises(InputError) as refusal:
        run_rounds("fedavg", POINTS, rounds=0, **words)
    assert str(refusal.value).startswith(f"{key} ") and __name__ in str(refusal.value)
    met = {**words, "participation": 1.0, "local": {"momentum": 0.5 if kind == "extended" else 0}}
    run_rounds("fedavg", POINTS, rounds=0, **met)
