"""What is remarked on and what is refused of a user's module, and that the remedy is named."""

from __future__ import annotations

import functools

import mistaken_modules as mistakes
import numpy as np
import pytest
import torch
from commands import call
from network_cases import data, made
from torch import nn

import mpifed
from mpifed.errors import InputError
from mpifed.models.losses import CROSS_ENTROPY, MULTI_LABEL, SQUARED
from mpifed.models.modules import module_model

SMALL = {"clients": 3, "rounds": 1, "algorithm": "fedavg"}


def model_of(build, loss=CROSS_ENTROPY, **options):
    return module_model(lambda: build(data((8, 8))), (8, 8), (10,), loss, **options)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (mistakes.Softmax, "outputs are probabilities (softmax), but the loss takes them as logit"),
        (mistakes.Sigmoid, "leave the sigmoid out of forward"),
        (mistakes.OwnLoss, "'loss' is not read: clients are trained on the loss of the task"),
        (mistakes.OwnCriterion, "'criterion' is not read"),
        (mistakes.LossMethod, "mpifed.models.losses.Loss"),
        (mistakes.BodyDetached, "no gradient reaches 'body.weight', 'body.bias'"),
        (mistakes.InList, "'layers' is not trained, since the module does not know it"),
        (mistakes.LooseTensor, "'scale' is not trained"),
        (mistakes.in_double, "'head.weight' and 1 more was built in float64 and is trained in flo"),
        (mistakes.in_bfloat16, "was built in bfloat16 and is trained in float32"),
    ],
)
def test_likely_mistakes_are_remarked_on(build, words):
    (remark,) = model_of(build).remarks
    assert words in remark and remark.startswith("model: ")


def test_nothing_is_said_of_modules_without_mistakes():
    # A softmax of a softmax's logarithm is the softmax: these outputs are logits, too.
    for build in (mistakes.Net, mistakes.LogSoftmax, mistakes.parametrised):
        assert model_of(build).remarks == ()
    assert model_of(mistakes.Net, dtype=torch.float64).remarks == ()
    assert model_of(mistakes.in_double, dtype=torch.float64).remarks == ()


@pytest.mark.parametrize("name", ["cnn", "mobilenet_v2", "resnet18", "lstm"])
def test_nothing_is_said_of_shipped_networks(name):
    shape = (12,) if name == "lstm" else (16, 16)
    model = module_model(lambda: made(name, shape), shape, (10,))
    assert model.remarks == ()


def test_probabilities_are_no_mistake_of_a_regression():
    assert model_of(mistakes.Sigmoid, SQUARED).remarks == ()
    assert "sigmoid" in model_of(mistakes.Sigmoid, MULTI_LABEL).remarks[0]


def test_a_loss_of_the_right_type_is_read_and_not_remarked_on():
    class Own(mistakes.Softmax):
        loss = SQUARED

    model = model_of(Own)
    assert model.loss is SQUARED and model.remarks == ()


def test_remarks_are_in_the_log(tmp_path):
    mpifed.run("digits-fedem", output=tmp_path / "run", **SMALL, model=mistakes.Softmax)
    assert "leave the softmax out of forward" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (mistakes.Doubled, "layer 'body' is given float64, but the run computes in float32"),
        (mistakes.Halved, "layer 'head' is given bfloat16, but the run computes in float32"),
        (mistakes.WithoutGradient, "outputs have no gradient.*leave out torch.no_grad"),
        (mistakes.Detached, "outputs have no gradient.*detach"),
        (mistakes.OnlyInList, "no parameters that are trained.*; layers in lists need nn.ModuleLi"),
        (mistakes.without_channels, r"layer '0' convolves samples without an axis of channels; be"),
        (mistakes.channels_last, r"layer '1' is given channels last; begin with x\.movedim\(-1, 1"),
        (mistakes.codes, r"layer '1' is given float32, and needs whole numbers: x\.long\(\)"),
        (
            mistakes.narrow,
            r"layer '1' takes 100 numbers and is given 64; make it nn\.Linear\(64, \.\.",
        ),
        (mistakes.not_flattened, r"layer '0' takes 64 numbers and is given 8; begin with nn\.Flat"),
        (
            mistakes.one_layer_of_a_column,
            r"the Linear takes 11 numbers and is given 8; .*or begin with nn\.Flatten\(\) .*\(64,",
        ),
        (
            mistakes.of_pictures_in_colour,
            r"layer '1' takes 3 channels and is given 1; make it nn\.C",
        ),
        (
            mistakes.normalises_fewer,
            r"layer '1' takes 16 channels and is given 64; make it nn\.Bat",
        ),
        (
            mistakes.Steps,
            r"layer 'lstm' takes 28 numbers and is given 8; make it nn\.LSTM\(8, \.\.",
        ),
        (
            mistakes.NeverCalled,
            r"'unused.weight', 'unused.bias' have no shape, since forward never",
        ),
        (mistakes.imaginary, "'1.weight' is complex64; allowed: real parameters"),
        (
            mistakes.InPlaceLayer,
            r"the output of exp is changed in place, .*; build 'cut' with inplace=False, and write",
        ),
        (
            mistakes.InPlaceSum,
            r"the output of sigmoid is changed in place, .*; write x = x \+ 1 for x \+= 1$",
        ),
    ],
)
def test_modules_that_cannot_be_trained_are_refused_with_the_remedy(build, words):
    with pytest.raises(InputError, match=words):
        model_of(build)


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
    ("words", "message"),
    [
        (("model=mistaken_modules:by_position",), "def build(data, *, width)"),
        (("model=mistaken_modules:with_default", "model.width=8"), "def ...(..., *, width)"),
    ],
)
def test_options_must_be_keyword_only(words, message, tmp_path, capfd):
    done = call(["digits-fedem", *words, "clients=3", "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and len(done.messages) == 1
    assert f"options are keyword-only parameters: {message}" in done.messages[0], done.err


def test_an_object_in_place_of_a_function_is_refused_on_the_command_line(tmp_path, capfd):
    run = ["digits-fedem", "model=mistaken_modules:THE_MODULE", "clients=3"]
    done = call([*run, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and len(done.messages) == 1
    assert "name a function that builds it: def build(data)" in done.messages[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "mistaken_modules.Net",
            "model.name is 'mistaken_modules.Net'; allowed: cnn, icnn",
        ),
        (
            "nowhere.Net",
            "or package.module:object for one of your own",
        ),
        ("mistaken_modules.py:Net", "model.name is 'mistaken_modules.py:Net'"),
        (
            "./folder/nets.py:Net",
            "write package.module:object, the module without '.py' or '/'",
        ),
        ("nowhere:Net", "the working directory or in a folder of PYTHONPATH"),
        ("__main__:Net", "model.name is '__main__:Net'"),
    ],
)
def test_names_of_another_form_get_the_right_one(name, words, tmp_path, capfd):
    done = call(["digits-fedem", f"model={name}", "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and len(done.messages) == 1
    assert words in done.messages[0], done.err
