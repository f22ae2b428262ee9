"""What ``mpifed.load`` gives is what the run deployed and scored."""

from __future__ import annotations

import gc
import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from network_modules import cnn
from on_ranks import folder_of, run, run_on_all
from torch import nn
from torch.nn import functional

import mpifed
from mpifed.dataset import Dataset, Description, Shards, Split, alike
from mpifed.errors import InputError
from mpifed.model import Linear
from mpifed.testing import make_model, run_command, world

SHORT = {
    **{"rounds": 3, "checkpoint.every": 1, "evaluation.every": 1, "dtype": "float64"},
    "local.batch_size": 128,
}
BINARY = {**SHORT, "clients": 5, "data.n_test": 30, "data.dimension": 10, "data.seed": 20}
IMAGES = {**SHORT, "clients": 5}
NETWORK = {**IMAGES, "model": {"name": "network_modules:cnn", "norm": True}}
GOSSIP = {"exchange": "gossip"}
SEQUENCES = {
    **IMAGES,
    "data": "sequence_data:Words",
    "model": {"name": "lstm", "hidden": 4, "layers": 1},
}
DEEP = {**IMAGES, "model": {"name": "mlp", "hidden": [7, 6]}}
HELD_OUT = {"evaluation.validation_fraction": 0.2}
CASES = {
    "fedem, linear": ("synthetic-fedem", BINARY),
    "fedem, float32": ("synthetic-fedem", {**BINARY, "dtype": "float32"}),
    "fedem, network": ("digits-fedem", NETWORK),
    "fedem, local buffers": ("digits-fedem", {**NETWORK, "local.buffers": "local"}),
    "fedem, gossip": ("digits-fedem", {**IMAGES, **GOSSIP}),
    "fedem, unseen": ("synthetic-fedem", {**BINARY, "evaluation.unseen_fraction": 0.4}),
    "fedem, unseen by gossip": (
        "digits-fedem",
        {**IMAGES, **GOSSIP, "evaluation.unseen_fraction": 0.4},
    ),
    "fedem, sequences": ("digits-fedem", SEQUENCES),
    "fedem, regression": (
        "flix-sine",
        {
            **SHORT,
            "clients": 4,
            "data.split": 2,
            "algorithm": "fedem",
            "model": {"name": "mlp", "hidden": [5]},
        },
    ),
    "fedem, tags": ("flix-tags", {**SHORT, "clients": 4, "algorithm": "fedem"}),
    "fedavg, gossip": ("digits-fedem", {**NETWORK, **GOSSIP, "algorithm": "fedavg"}),
    "fedavg, compressed gossip": (
        "digits-fedem",
        {
            **IMAGES,
            **GOSSIP,
            "algorithm": "fedavg",
            "compression": {"name": "top_k", "fraction": 0.2},
        },
    ),
    "fedavg_ft": ("digits-fedem", {**IMAGES, "algorithm": "fedavg_ft"}),
    "fedavg_ft, unseen by gossip": (
        "digits-fedem",
        {**IMAGES, **GOSSIP, "algorithm": "fedavg_ft", "evaluation.unseen_fraction": 0.4},
    ),
    "fedper, unseen": (
        "digits-fedem",
        {**DEEP, "algorithm": "fedper", "evaluation.unseen_fraction": 0.4},
    ),
    "fedrod": ("digits-fedem", {**NETWORK, "algorithm": "fedrod"}),
    "fedrod_hyper": ("digits-fedem", {**NETWORK, "algorithm": "fedrod_hyper"}),
    "knn_per": ("digits-fedem", {**DEEP, **HELD_OUT, "algorithm": "knn_per"}),
    "knn_per, unseen sequences": (
        "digits-fedem",
        {
            **SEQUENCES,
            "algorithm": {"name": "knn_per", "knn_lambda": 0.3},
            "evaluation.unseen_fraction": 0.4,
        },
    ),
    "fomaml": (
        "synthetic-fedem",
        {**BINARY, "algorithm": {"name": "fomaml", "inner_step": 0.1, "outer_step": 0.1}},
    ),
    "reptile, tags": ("tags-reptile", {**SHORT, "clients": 4}),
    "flix, gossip": ("synthetic-fedem", {**BINARY, **GOSSIP, "algorithm": "flix"}),
}
COMPONENTS = {"fedem": 3, "local": 0, "fedper": 0}
TASKS = {"sequences": "sequence", "regression": "regression", "tags": "multi_label"}


BY_DEFAULT = {
    *("fedem, linear", "fedem, network", "fedem, unseen", "fedem, regression", "fedavg, gossip"),
    *("fedavg_ft", "fedper, unseen", "knn_per", "fedrod", "flix, gossip"),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] * (name not in BY_DEFAULT)) for name in CASES
    ],
)
def case(request, tmp_path_factory):
    """The name of a case, its run, and what was loaded of it."""
    experiment, overrides = CASES[request.param]
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = mpifed.run(experiment, output=folder, **overrides)
    return request.param, result, mpifed.load(folder)


def scores(task: str, outputs, y) -> dict[str, float]:
    """Loss and accuracy or recall of outputs, by torch alone."""
    if task == "regression":
        return {"loss": float(functional.mse_loss(outputs, y))}
    if task == "multi_label":
        best = torch.zeros_like(y).scatter(1, outputs.topk(5).indices, 1)
        loss = functional.binary_cross_entropy_with_logits(outputs, y)
        return {"loss": float(loss), "recall_at_5": float((best * y).sum() / y.sum())}
    if outputs.shape[-1] == 1:
        loss = functional.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs))
        return {"loss": float(loss), "accuracy": float(((outputs[:, 0] > 0) == y).double().mean())}
    loss = functional.cross_entropy(outputs.movedim(-1, 1), y)
    return {"loss": float(loss), "accuracy": float((outputs.argmax(-1) == y).double().mean())}


def test_scores_of_clients_are_those_of_the_run(case):
    name, result, trained = case
    bound = 1e-5 if "float32" in name else 1e-10
    task = next((task for word, task in TASKS.items() if word in name), "classification")
    scored = 0
    for client in range(trained.n_clients):
        module, samples = trained.client(client), trained.samples(client)
        for which in ("train", "test"):
            split = getattr(samples, which)
            assert len(split.y) == result.clients[f"n_{which}"][client]
            if not len(split.y):
                continue
            with torch.no_grad():
                found = scores(task, module(split.x), split.y)
            for measure, value in found.items():
                expected = result.clients[f"{which}_{measure}"][client]
                assert value == pytest.approx(expected, rel=bound, abs=bound), (client, measure)
                scored += 1
    assert scored >= 2 * trained.n_clients


def test_the_merged_accuracy_is_that_of_the_average_of_all_models(case):
    name, result, trained = case
    if name != "fedavg, gossip":
        assert ("merged_test_accuracy" in result.metrics) == ("gossip" in name)
        return
    modules = [trained.client(client) for client in range(trained.n_clients)]
    every = [module.state_dict() for module in modules]
    floats = [key for key in every[0] if every[0][key].is_floating_point()]
    merged = {key: torch.stack([own[key] for own in every]).mean(0) for key in floats}
    modules[0].load_state_dict({**every[0], **merged})
    samples = [trained.samples(client).test for client in range(trained.n_clients)]
    with torch.no_grad():
        found = [scores("classification", modules[0](own.x), own.y)["accuracy"] for own in samples]
    assert found == pytest.approx(result.clients["merged_test_accuracy"].tolist())
    expected = np.average(found, weights=[len(own.y) for own in samples])
    assert result.metrics["merged_test_accuracy"][-1] == pytest.approx(expected)
    assert expected != pytest.approx(result.metrics["test_accuracy"][-1], abs=1e-3)


def test_components_are_what_clients_share(case):
    name, _, trained = case
    method = name.partition(",")[0]
    assert len(trained.components) == COMPONENTS.get(method, 1)
    assert trained.round == 3
    assert not any(module.training for module in (*trained.components, trained.client(0)))
    for number, module in enumerate(trained.components):
        own = module.state_dict()
        found = trained.state_dict(number)
        assert own.keys() == found.keys()
        assert all(torch.equal(own[key], found[key]) for key in own)
        assert all(tensor.is_contiguous() for tensor in found.values())


LOADED: list[list[int]] = []


class Points(Dataset):
    """Two classes; ``LOADED`` says whose samples are asked for."""

    def __init__(self, n_clients, run_seed, communicator):
        self.description = alike("points", (6,), 2, n_clients, (12, 4, 4), "classification")

    def load(self, client_ids, dtype):
        LOADED.append(client_ids.tolist())
        splits = []
        for name, count in (("train", 12), ("val", 4), ("test", 4)):
            draws = [np.random.default_rng([i, len(name)]) for i in client_ids.tolist()]
            x = [draw.normal(size=(count, 6)) for draw in draws]
            x = torch.from_numpy(np.concatenate([np.zeros((0, 6)), *x])).to(dtype)
            offsets = np.arange(len(client_ids) + 1) * count
            splits.append(Split(x, (x[:, 0] > 0).long(), offsets))
        return Shards(client_ids, *splits)


@pytest.mark.parametrize("unseen", [0.0, 0.4])
@pytest.mark.parametrize(
    ("method", "fitted", "fitted_if_unseen"),
    [
        ("fedavg", False, False),
        ("fedem", False, True),
        ("fedper", False, True),
        *((name, True, True) for name in ("fedavg_ft", "fomaml", "reptile", "fedala", "knn_per")),
    ],
)
def test_samples_are_loaded_only_where_a_predictor_is_fitted_to_them(
    method, fitted, fitted_if_unseen, unseen, tmp_path
):
    if unseen and method == "fedala":
        pytest.skip("refuses unseen clients")
    options = {"clients": 5, "rounds": 1, "model": {"name": "mlp", "hidden": [3]}}
    options |= {"evaluation.unseen_fraction": unseen, "data": Points, "algorithm": method}
    if method in ("fomaml", "reptile"):
        options["algorithm"] = {"name": method, "inner_step": 0.1, "outer_step": 0.1}
    result = mpifed.run("synthetic-fedem", output=tmp_path / "run", **options)
    for client, is_unseen in enumerate(result.clients["unseen"]):
        LOADED.clear()
        trained = mpifed.load(tmp_path / "run")
        assert trained.components or COMPONENTS.get(method, 1) == 0
        assert not any(LOADED)
        trained.client(client)
        assert any(LOADED) == (fitted_if_unseen if is_unseen else fitted)


def test_a_state_dict_loads_into_the_users_own_module(tmp_path):
    trained = mpifed.load(mpifed.run("digits-fedem", output=tmp_path / "run", **NETWORK).directory)
    x = trained.samples(0).test.x
    counts = np.ones(1)
    about = Description("digits", (8, 8), 10, counts, counts, counts)
    for number, component in enumerate(trained.components):
        trained.save(tmp_path / "component.pt", number)
        stored = torch.load(tmp_path / "component.pt", weights_only=True)
        assert b"mpifed sha256 " in (tmp_path / "component.pt").read_bytes()[-100:]
        own = cnn(about, norm=True).double()
        own.load_state_dict(stored)
        assert own[3].num_batches_tracked.dtype == torch.int64
        # Kernels have another memory format there, which may change the last bits of outputs.
        assert torch.allclose(own.eval()(x), component(x), rtol=1e-12, atol=1e-12)
        pairs = zip(own.parameters(), component.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    mixture = trained.client(1)
    weights = mixture.weights.view(-1, 1, 1)
    mixed = (weights * torch.stack([c(x).softmax(-1) for c in trained.components])).sum(0)
    assert torch.allclose(mixture(x).exp(), mixed)


def test_the_round_is_the_newest_or_the_one_asked_for(tmp_path):
    folder = tmp_path / "run"
    mpifed.run("synthetic-fedem", output=folder, **BINARY)
    last, before = mpifed.load(folder), mpifed.load(folder, round=2)
    assert (last.round, before.round) == (3, 2)
    assert not torch.equal(last.state_dict()["1.weight"], before.state_dict()["1.weight"])
    newest = folder / "checkpoints" / "round-000003.h5"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"round-000003\.h5"):
        assert mpifed.load(folder).round == 2
    with pytest.raises(InputError, match=r"round-000003\.h5.*seal"):
        mpifed.load(folder, round=3)
    with pytest.raises(InputError, match=r"round .*\b7\b.*run.* 2, 3$"):
        mpifed.load(folder, round=7)


ABOUT = alike("drawn", (6,), 3, 2, (6, 0, 4), "classification")
MLP = {"name": "mlp", "hidden": [4, 5]}


@pytest.mark.parametrize(
    "model", [Linear(6, 3), Linear(6, 1, bias=False), make_model(MLP, ABOUT, dtype="float64")]
)
def test_formulas_become_layers_of_torch(model):
    row = torch.from_numpy(model.init(np.random.default_rng(0)))
    module, x = model.module(row), torch.rand(7, 2, 3).double()
    assert {type(layer) for layer in module} <= {nn.Flatten, nn.Linear, nn.ReLU}
    assert torch.allclose(module(x), model.shared_logits(row[None], x)[0])
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), row)
    with torch.no_grad():
        next(module.parameters()).add_(1)
    assert torch.equal(nn.utils.parameters_to_vector(model.module(row).parameters()), row)


def test_the_gradient_of_a_mixture_is_finite(tmp_path):
    folder = mpifed.run("synthetic-fedem", output=tmp_path / "run", **BINARY).directory
    mixture = mpifed.load(folder).client(0)
    mixture.weights[:] = torch.tensor([1.0, 0.0, 0.0])
    mixture(torch.full((3, 10), 1e4, dtype=torch.float64)).sum().backward()
    gradients = [p.grad for p in mixture.parameters() if p.requires_grad]
    assert gradients and all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("refused") / "run"
    mpifed.run("digits-fedem", output=folder, **IMAGES, algorithm="local")
    return folder


def test_a_checkpoint_of_another_version_is_refused(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    for path in (folder / "checkpoints").glob("*.h5"):
        text = path.read_bytes()
        path.write_bytes(text.replace(b"mpifed checkpoint 1\n", b"mpifed checkpoint 9\n", 1))
    with pytest.raises(InputError, match=r"round-000003\.h5.*format 9.* 1"):
        mpifed.load(folder, round=3)


def test_wrong_numbers_are_refused(finished, tmp_path):
    trained = mpifed.load(finished)
    with pytest.raises(InputError, match=r"client .*\b5\b.* 0 to 4"):
        trained.client(5)
    with pytest.raises(InputError, match=r"client .*\b1\.5\b.* 0 to 4"):
        trained.samples(1.5)
    with pytest.raises(InputError, match=r"algorithm \'local\'.*client\(i\)\.state_dict\(\)"):
        trained.save(tmp_path / "model.pt")
    assert not any(tmp_path.iterdir())


def test_a_run_without_a_predictor_is_refused(tmp_path):
    folder = tmp_path / "run"
    overrides = {"rounds": 2, "clients": 3, "data.samples": 40}
    mpifed.run("fedmm-homogeneous", output=folder, **overrides)
    with pytest.raises(InputError, match=r"\'fedmm\'.*clients\.h5"):
        mpifed.load(folder)


def test_components_of_the_user_that_are_gone_are_named(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    (tmp_path / "gone.py").write_text("from network_modules import cnn\n")
    monkeypatch.syspath_prepend(tmp_path)
    mpifed.run("digits-fedem", output=folder, **{**IMAGES, "model": "gone:cnn"})
    (tmp_path / "gone.py").unlink()
    monkeypatch.delitem(sys.modules, "gone")
    importlib.invalidate_caches()
    with pytest.raises(InputError, match=r"run\'.*\'gone:cnn\'.*\'gone\'"):
        mpifed.load(folder)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["fedem, network", "fedem, gossip", "fedavg_ft"])
def test_the_number_of_ranks_changes_nothing(name, tmp_path):
    experiment, overrides = CASES[name]
    folder, communicator = folder_of(tmp_path), world()
    run_on_all(experiment, overrides, folder / "many")
    same = True
    if communicator.rank == 0:
        run(experiment, overrides, folder / "one")
        many, one = mpifed.load(folder / "many"), mpifed.load(folder / "one")
        pairs = list(zip(many.components, one.components, strict=True))
        pairs += [(many.client(client), one.client(client)) for client in range(one.n_clients)]
        for a, b in pairs:
            x, y = a.state_dict(), b.state_dict()
            same = same and x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
    assert communicator.broadcast_object(same)


# Runs that are loaded from their directory alone, where their data are no longer at hand.


OWN = """
from mpifed.testing import find_item
class Own(find_item("data", "digits")):
    pass
"""


def drawn(n=60):
    return np.random.default_rng(0).normal(size=(n, 4))


def run_of_arrays(folder, x, **options):
    data = mpifed.arrays(x, (x[:, 0] > 0).astype(int))
    small = {"clients": 3, "rounds": 1, "model": "linear", **options}
    return mpifed.run("digits-fedem", output=folder, data=data, **small)


def test_models_are_loaded_without_the_data_and_samples_with_them(tmp_path):
    folder, x = tmp_path / "run", drawn()
    run_of_arrays(folder, x)
    gc.collect()
    trained = mpifed.load(folder)
    assert trained.client(0)(torch.zeros(2, 4)).shape == (2, 1)
    assert len(trained.components) == 3 and trained.state_dict()
    with pytest.raises(InputError, match=r"run'.*data\.name.*'arrays'.*data = mpifed\.arrays\("):
        trained.samples(0)
    again = mpifed.arrays(x, (x[:, 0] > 0).astype(int))
    assert mpifed.load(folder).samples(0).test.x.shape[1:] == (4,)
    assert again["name"] == "arrays"


def test_what_is_loaded_is_the_same_without_the_data(tmp_path):
    folder, x = tmp_path / "run", drawn()
    result = run_of_arrays(folder, x, **{"evaluation.validation_fraction": 0.2})
    gc.collect()
    alone = mpifed.load(folder)
    data = mpifed.arrays(x, (x[:, 0] > 0).astype(int))
    beside = mpifed.load(folder)
    for client in range(3):
        samples = beside.samples(client)
        assert len(samples.train.y) == result.clients["n_train"][client] and len(samples.val.y)
        with torch.no_grad():
            found = alone.client(client)(samples.test.x), beside.client(client)(samples.test.x)
        assert torch.equal(*found)
    assert data["digest"]


def test_predictors_that_are_fitted_need_the_samples(tmp_path):
    folder = tmp_path / "run"
    run_of_arrays(folder, drawn(), algorithm="fedavg_ft")
    gc.collect()
    trained = mpifed.load(folder)
    assert len(trained.components) == 1
    with pytest.raises(InputError, match=r"run'.*data\.name.*'arrays'"):
        trained.client(0)


def test_a_data_set_of_the_users_own_may_be_gone(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    (tmp_path / "own_data.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    mpifed.run("digits-fedem", output=folder, clients=3, rounds=1, data="own_data:Own")
    (tmp_path / "own_data.py").unlink()
    monkeypatch.delitem(sys.modules, "own_data")
    trained = mpifed.load(folder)
    assert trained.client(1)(torch.zeros(2, 8, 8)).shape == (2, 10)
    with pytest.raises(
        InputError,
        match=r"'own_data:Own'.*'own_data'",
    ):
        trained.samples(1)


@pytest.mark.slow
def test_a_file_of_first_parameters_may_be_gone(tmp_path):
    n, weights = np.ones(1), tmp_path / "weights.pt"
    options = {"width": 0.25, "cifar_stem": True}
    about = Description("", (8, 8), 10, n, n, n)
    network = make_model({"name": "mobilenet_v2", **options}, about).network
    torch.save(network.state_dict(), weights)
    model = {"name": "mobilenet_v2", "weights": str(weights), **options}
    small = {"clients": 3, "rounds": 1, "algorithm": "fedavg", "model": model}
    mpifed.run("digits-fedem", output=tmp_path / "run", **small)
    before = mpifed.load(tmp_path / "run").state_dict()
    weights.unlink()
    after = mpifed.load(tmp_path / "run").state_dict()
    assert all(torch.equal(before[name], after[name]) for name in {*before, *after})


def test_other_samples_than_the_runs_are_refused(tmp_path):
    words = ["data", "digits", "--output", tmp_path / "digits.h5", "--clients", 3]
    assert run_command([*words, "--seed", 1]) == 0
    options = {"rounds": 1, "data": str(tmp_path / "digits.h5"), "clients": 3}
    mpifed.run("digits-fedem", output=tmp_path / "run", **options)
    (tmp_path / "digits.h5").unlink()
    assert run_command([*words, "--seed", 2]) == 0
    trained = mpifed.load(tmp_path / "run")
    with pytest.raises(InputError, match=r"'digits'.*n_train"):
        trained.samples(0)
