"""How often a user's module is built, what is loaded of it, and names of another form."""

from __future__ import annotations

import functools

import mistaken_modules as mistakes
import numpy as np
import pytest
import torch
from commands import call
from network_cases import data
from torch import nn

import mpifed
from mpifed.errors import InputError
from mpifed.models.modules import module_model

SMALL = {"clients": 3, "rounds": 1, "algorithm": "fedavg"}


def model_of(build):
    return module_model(lambda: build(data((8, 8))), (8, 8), (10,))


def test_lazy_layers_may_be_built_in_another_type():
    assert model_of(mistakes.lazy_in_double).n_parameters == 650


@pytest.mark.parametrize("build", [mistakes.weight_norm, mistakes.parametrised, mistakes.Keeps])
def test_modules_whose_attributes_have_a_graph_are_trained_and_loaded(build, tmp_path):
    """Their row is as long as that of the parameters, and what is loaded is what was scored."""
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **SMALL, model=build)
    trained = mpifed.load(tmp_path / "run")
    module, test = trained.client(1), trained.samples(1).test
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module(test.x), test.y)
    assert float(loss) == pytest.approx(result.clients["test_loss"][1], rel=1e-5)
    own = build(data((8, 8)))
    own.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert torch.allclose(own.eval()(test.x), module(test.x))


def test_a_module_is_built_once_before_its_first_parameters_are_drawn():
    calls = []

    def build():
        calls.append(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))

    model = module_model(build, (8, 8), (10,))
    assert len(calls) == 1
    model.init(np.random.default_rng(0))
    assert len(calls) == 2


def test_a_file_of_first_parameters_is_read_once_to_make_the_model(tmp_path, monkeypatch):
    from mpifed.models import images
    from mpifed.mpi.communicator import Alone
    from mpifed.training.build import make

    weights, reads = tmp_path / "weights.pt", []
    about = {"width": 0.25, "cifar_stem": True}
    resolved = functools.partial(_resolved, weights, **about)
    torch.save(_shipped(about).state_dict(), weights)
    read = images.load_weights
    monkeypatch.setattr(images, "load_weights", lambda *words: (reads.append(words), read(*words)))
    make(resolved(), Alone(), 1)
    assert len(reads) == 1


def _resolved(weights, **options):
    from mpifed.config.configuration import read_experiment, resolve

    model = {"name": "mobilenet_v2", "weights": str(weights), **options}
    return resolve({**read_experiment("digits-fedem"), "clients": 3, "model": model})


def _shipped(options):
    from mpifed.components.registry import find

    return find("model", "mobilenet_v2")(data((8, 8)), **options)


def test_statistics_are_as_before_the_trial():
    model = module_model(lambda: nn.BatchNorm1d(4), (4,), (4,))
    assert bool((model.network.running_mean == 0).all())
    assert int(model.network.num_batches_tracked) == 0


@pytest.mark.parametrize("method", ["flix", "dcgd", "diana", "fomaml", "maml", "reptile"])
def test_methods_of_whole_risks_refuse_batch_normalisation_before_their_options(method, tmp_path):
    """They would ask for a step size first, in vain."""
    with pytest.raises(InputError, match="computes gradients of whole risks; use a network"):
        mpifed.run(
            "digits-fedem",
            output=tmp_path / "run",
            clients=3,
            algorithm=method,
            model={"name": "network_modules:cnn", "norm": True},
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mistaken_modules.Net", "allowed: cnn, icnn, linear"),
        ("nowhere.Net", "or package.module:object for one of your own"),
        ("mistaken_modules.py:Net", "mistaken_modules.py:Net"),
        ("./folder/nets.py:Net", "write package.module:object, the module without '.py'"),
        ("nowhere:Net", "the working directory or in a folder of PYTHONPATH"),
        ("__main__:Net", "no callable 'Net'"),
    ],
)
def test_names_of_another_form_get_the_right_one(name, words, tmp_path, capfd):
    done = call(["digits-fedem", f"model={name}", "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and len(done.messages) == 1
    assert words in done.messages[0], done.err
