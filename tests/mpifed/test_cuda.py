"""Runs on a GPU beside the same runs on the CPU; ``test_devices`` has what needs no GPU."""

from __future__ import annotations

import pytest
import torch
from engine_runs import stored_of
from test_devices import COMPRESSIONS, ON_DEVICE, of_network, rounds

from mpifed import state as states
from mpifed.checkpoint import files as checkpoint

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]


@pytest.fixture(autouse=True)
def deterministic_algorithms_end_with_the_test():
    yield
    torch.use_deterministic_algorithms(False)


def numbers(engine):
    is_rows = engine.setup.exchange.shared_is_rows
    found = {name: tensor.cpu() for name, tensor, _ in states.tensors(engine.state, is_rows)}
    # The position of a minimum that lies flat is not known to many digits.
    return {name: tensor for name, tensor in found.items() if name not in ("reference", "least")}


def near_the_cpu(name, exchange, **more):
    """An engine on the GPU after two rounds, near the CPU's and the same again."""
    found, again = (rounds(name, exchange, "cuda", **more) for _ in range(2))
    assert found.digest() == again.digest()
    on_cpu = rounds(name, exchange, "cpu", **more)
    torch.testing.assert_close(numbers(found), numbers(on_cpu), rtol=1e-3, atol=1e-4)
    return found


@pytest.mark.parametrize(("name", "exchange"), ON_DEVICE)
def test_two_rounds_of_a_method_are_near_the_cpus_and_repeat(name, exchange):
    near_the_cpu(name, exchange, participation=0.5)


@pytest.mark.parametrize("exchange", ["server", "gossip"])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda given: given["name"])
def test_compressed_rounds_repeat(compression, exchange):
    # A rounded number may fall to the other side, so that nothing is near.
    one, other = (rounds("fedavg", exchange, "cuda", compression=compression) for _ in range(2))
    assert one.digest() == other.digest()


@pytest.mark.parametrize("network", ["plain", "normalised", "recurrent"])
def test_networks_are_near_the_cpus_and_repeat(network):
    near_the_cpu("fedavg", "server", **of_network(network, "one_by_one"))


def test_stacked_clients_are_near_those_one_by_one():
    ways = [
        numbers(rounds("fedem", "server", "cuda", **of_network("plain", stepping)))
        for stepping in ("stacked", "one_by_one")
    ]
    torch.testing.assert_close(*ways, rtol=1e-3, atol=1e-4)


def test_dropout_is_drawn_from_the_runs_own_streams():
    more = of_network("dropping", "one_by_one")
    first = rounds("fedavg", "server", "cuda", **more)
    torch.rand(5, device="cuda")
    assert rounds("fedavg", "server", "cuda", **more).digest() == first.digest()


@pytest.mark.parametrize("name", ["fedem", "flix"])
def test_a_run_resumes_on_the_gpu(name, tmp_path):
    engine = rounds(name, "server", "cuda", 1)
    engine.checkpoint(tmp_path, "round\n", stored_of(engine))
    engine.writer.finish()
    path = checkpoint.path_of(tmp_path / "checkpoints", 1)
    again = rounds(name, "server", "cuda", 0)
    again.restore(path, checkpoint.read_meta(path))
    for going in (engine, again):
        going.advance()
    assert again.digest() == engine.digest()
