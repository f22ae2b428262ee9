"""Every method keeps its tensors on the device of the run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from engine_runs import engine_of, stored_of
from pretend_device import OnDevice, pretended
from small_runs import CASES, problem

from mpifed import state as states
from mpifed.checkpoint import files as checkpoint
from mpifed.errors import InputError
from mpifed.federation.federation import Federation
from mpifed.federation.reduction import weighted_sum
from mpifed.mpi.communicator import Alone
from mpifed.training import evaluation
from mpifed.training.build import choose_device

FACTS = {"gradient_norm", "smoothness", "step", "least"}
"""Numbers of the whole run and of each client that methods keep on the CPU."""

ON_CPU = {"mocha", "fedmm", "fedmm_theta", "sa_ssmm", "fedmgs"}
QUICKLY = {
    *(("fedavg", "server"), ("fedavg", "gossip"), ("fedem", "server"), ("scaffold", "server")),
    *(("apfl", "gossip"), ("fedbn", "server"), ("flix", "server"), ("fedmm_ot", "server")),
    *(("kgt", "gossip"), ("fedgmm", "server"), ("clustered", "server"), ("pfedme", "server")),
}
"""What the default run tries of these."""

ON_DEVICE = [
    case if case.values in QUICKLY else pytest.param(*case.values, marks=pytest.mark.slow)
    for case in CASES
    if case.values[0] not in ON_CPU
]
QUICK = {"algorithm": {"name": "flix", "local_iterations": 5, "step": 0.1}}


def elsewhere(engine):
    """The names of tensors that are not on the device, but for facts and counters."""
    is_rows = engine.setup.exchange.shared_is_rows
    found = states.tensors(engine.state, is_rows)
    away = {n for n, t, _ in found if t.is_floating_point() and not isinstance(t, OnDevice)}
    return away - FACTS


def numbers(engine):
    """All tensors of the state, on the CPU."""
    is_rows = engine.setup.exchange.shared_is_rows
    return {name: tensor.cpu() for name, tensor, _ in states.tensors(engine.state, is_rows)}


def rounds(name, exchange, device, count=2, **more):
    engine = engine_of(name, exchange, device=device, **more)
    with torch.no_grad():
        engine.prepare()
    engine.evaluate(None, None)
    evaluation.remarks(engine.setup, engine.state, engine.shards)
    for _ in range(count):
        engine.advance()
        engine.agree(False)
    engine.evaluate(None, None)
    return engine


def same_on_the_device(name, exchange, **more):
    on_cpu = rounds(name, exchange, "cpu", **more)
    with pretended():
        engine = rounds(name, exchange, "cuda", **more)
        assert not elsewhere(engine)
        torch.testing.assert_close(numbers(engine), numbers(on_cpu), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "exchange"), ON_DEVICE)
def test_a_method_keeps_its_state_on_the_device(name, exchange):
    own = {"flix", "dcgd", "diana", "scafflix"} & {name} and {
        "algorithm": {**QUICK["algorithm"], "name": name}
    }
    share = 1.0 if name in ("scafflix", "clustered", "fedpd", "streaming_diloco") else 0.5
    # two steps, as each operation takes long there
    local = {**problem(name, exchange)["local"], "batch_size": 64}
    same_on_the_device(name, exchange, participation=share, local=local, **(own or {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "exchange", "more"),
    [
        ("fedavg", "server", {"local": {"optimizer": "adam", "lr_clock": "local_epoch"}}),
        ("fedavg", "server", {"evaluation": {"unseen_fraction": 0.5, "validation_fraction": 0.3}}),
        ("fedavg", "server", {"on_divergence": "drop"}),
        ("fedavg", "server", {"model": {"name": "mlp", "hidden": [5, 4]}}),
        ("fedem", "gossip", {"algorithm": {"name": "fedem", "mixture_init": "random"}}),
        ("fedem", "server", {"local": {"stepping": "one_by_one"}, "dtype": "float64"}),
        *(
            ("flix", "server", {"algorithm": {**QUICK["algorithm"], **options}})
            for options in (
                {"local_solver": "lbfgs", "l2": 0.1, "reference": "lbfgs"},
                {"local_solver": "newton", "l2": 0.1, "step": None},
                {"local_solver": "published_code"},
                {"step": "line_search", "start": "zeros"},
                {"stop_at": 1e-9, "gradient": "stochastic"},
            )
        ),
        ("flix", "gossip", {**QUICK, "model": {"name": "mlp", "hidden": [4]}}),
    ],
)
def test_options_of_a_method_work_on_the_device(name, exchange, more):
    same_on_the_device(name, exchange, **more)


COMPRESSIONS = [
    {"name": "rand_k"},
    {"name": "top_k"},
    {"name": "quantise"},
    {"name": "natural"},
    {"name": "bernoulli", "p": 0.5, "inner": {"name": "rand_k"}},
    {"name": "composition", "outer": "natural", "inner": "rand_k"},
]


@pytest.mark.parametrize(
    ("compression", "exchange"),
    [
        *((given, "server") for given in COMPRESSIONS),
        (COMPRESSIONS[2], "gossip"),
        *(
            pytest.param(given, "gossip", marks=pytest.mark.slow)
            for given in COMPRESSIONS[:2] + COMPRESSIONS[3:]
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else given["name"],
)
def test_compressed_messages_stay_on_the_device(compression, exchange):
    same_on_the_device("fedavg", exchange, compression=compression)


@pytest.mark.parametrize("name", ["dcgd", "diana"])
def test_chosen_coordinates_of_gradients_stay_on_the_device(name):
    algorithm = {**QUICK["algorithm"], "name": name}
    same_on_the_device(name, "server", compression="rand_k", algorithm=algorithm)


@pytest.mark.parametrize(
    ("network", "stepping"),
    [
        *itertools.product(["plain", "normalised"], ["stacked", "one_by_one"]),
        ("recurrent", "stacked"),
        pytest.param("recurrent", "one_by_one", marks=pytest.mark.slow),
    ],
)
def test_networks_are_trained_on_the_device(network, stepping):
    if network != "plain" and stepping == "stacked":
        with pytest.raises(InputError, match=r"local\.stepping.*'stacked'.*auto, one_by_one"):
            rounds("fedavg", "server", "cpu", **of_network(network, stepping))
        return
    same_on_the_device("fedavg", "server", **of_network(network, stepping))


def of_network(network, stepping):
    return {
        "model": {"name": f"device_networks:{network}"},
        "local": {"batch_size": 8, "stepping": stepping},
    }


@pytest.mark.parametrize("name", ["fedem", "flix"])
def test_a_checkpoint_is_read_onto_the_device(name, tmp_path):
    with pretended():
        engine = rounds(name, "server", "cuda", 1)
        engine.checkpoint(tmp_path, "round\n", stored_of(engine))
        engine.writer.finish()
        path = checkpoint.path_of(tmp_path / "checkpoints", 1)
        again = engine_of(name, "server", device="cuda")
        again.restore(path, checkpoint.read_meta(path))
        assert not elsewhere(again)
        for going in (engine, again):
            going.advance()
        assert again.digest() == engine.digest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-300, 1.0, 1e30])
def test_a_sum_has_the_bits_of_the_cpu(dtype, scale):
    rows = (torch.randn(7, 3, 11, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)
    weights, ids = np.linspace(0.1, 2, 7), np.arange(7)
    where = Federation(Alone(), 0 * ids, ids < 0, ids + 1)
    expected = weighted_sum(where, rows, weights, ids)
    with pretended() as device:
        found = weighted_sum(where, rows.to(device), weights, ids).cpu()
    assert found.numpy().tobytes() == expected.numpy().tobytes()


def test_the_pretended_device_refuses_what_a_gpu_refuses():
    with pretended() as device:
        there, here = torch.ones(3, device=device), torch.ones(3)
        for mistake in (
            lambda: there + here,
            lambda: here[torch.tensor([0]).to(device)],
            lambda: there.index_select(0, torch.tensor([0])),
            lambda: there.numpy(),
            lambda: torch.randn(3, device=device, generator=torch.Generator()),
        ):
            with pytest.raises((RuntimeError, TypeError)):
                mistake()
        assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2]
        assert there[torch.tensor([0])].cpu().numpy() == [1]
        there[:2].add_(1)
        assert there.tolist() == [2, 2, 1]


@pytest.mark.parametrize("name", ["fedmm", "fedmm_theta", "sa_ssmm", "fedmgs"])
def test_methods_of_the_cpu_alone_say_so(name):
    with pytest.raises(InputError, match=rf"device.*'cuda'.*'{name}'.*auto, cpu"):
        engine_of(name, "server", device="cuda")
    assert engine_of(name, "server", device="auto").setup.device.type == "cpu"


@pytest.fixture
def two_gpus(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    flags = (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "deterministic"),
        (torch.utils.deterministic, "fill_uninitialized_memory"),
    )
    before = [getattr(place, name) for place, name in flags]
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    yield chosen
    torch.use_deterministic_algorithms(False)
    for (place, name), value in zip(flags, before, strict=True):
        setattr(place, name, value)


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_ranks_of_a_node_share_its_gpus_which_compute_reproducibly(name, two_gpus, monkeypatch):
    monkeypatch.setattr(Alone, "local_rank", lambda self: 3)
    assert choose_device(name, True, Alone()) == torch.device("cuda", 1)
    assert two_gpus == [torch.device("cuda", 1)]
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("name", "supported"), [("cpu", True), ("auto", False)])
def test_a_run_on_the_cpu_leaves_torch_as_it_is(name, supported, two_gpus):
    assert choose_device(name, supported, Alone()) == torch.device("cpu")
    assert not torch.are_deterministic_algorithms_enabled() and not two_gpus


def test_without_a_gpu_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", True, Alone()) == torch.device("cpu")
    with pytest.raises(InputError, match=r"device.*'cuda'.*GPU.*auto, cpu"):
        choose_device("cuda", True, Alone())


@pytest.mark.parametrize(
    ("model", "on_cpu", "on_gpu"),
    [
        ("linear", "auto", "stacked"),
        ("device_networks:plain", "one_by_one", "stacked"),
        ("device_networks:normalised", "one_by_one", "one_by_one"),
        ("device_networks:recurrent", "one_by_one", "one_by_one"),
    ],
)
def test_gpus_stack_what_can_be_stacked_and_the_configuration_records_it(model, on_cpu, on_gpu):
    def stepping(device):
        return engine_of("fedavg", "server", device=device, model=model).setup.solver.options

    assert stepping("cpu").stepping == on_cpu
    with pretended():
        assert stepping("cuda").stepping == on_gpu
