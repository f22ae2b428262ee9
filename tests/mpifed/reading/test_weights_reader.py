"""Files of weights: what fits is loaded, all else gets one sentence that names the tensor."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
import torch

import mpifed
from mpifed.dataset import Description
from mpifed.errors import InputError
from mpifed.testing import find_item, make_model

mobilenet_v2, resnet18, gpt = (
    find_item("model", name) for name in ("mobilenet_v2", "resnet18", "gpt")
)


def data(n_classes=10, channels=3):
    n = np.array([6, 4])
    return Description("drawn", (channels, 16, 16), n_classes, n, n, n)


def narrow(n_classes=10, channels=3, **options):
    return mobilenet_v2(data(n_classes, channels), width=0.1, **options)


@pytest.fixture
def stored(tmp_path):
    """A file of weights of a narrow MobileNet-v2 that has been trained a little."""
    torch.manual_seed(3)
    network = narrow().train()
    network(torch.rand(8, 3, 16, 16))
    path = tmp_path / "weights.pt"
    torch.save(network.state_dict(), path)
    return path, network.state_dict()


def test_weights_are_loaded_with_running_statistics(stored):
    path, tensors = stored
    network = narrow(weights=str(path))
    for _ in range(2):
        found = network.state_dict()
        assert list(found) == list(tensors)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
        with torch.no_grad():
            for tensor in found.values():
                tensor.fill_(7)
        network.reset_parameters()
    assert int(network.features[0][1].num_batches_tracked) == 1


def test_weights_are_loaded_into_another_floating_point_type(stored):
    path, tensors = stored
    network = narrow(weights=str(path)).double()
    network.reset_parameters()
    weight = network.state_dict()["features.0.0.weight"]
    assert weight.dtype == torch.float64
    assert torch.equal(weight, tensors["features.0.0.weight"].double())


@pytest.mark.parametrize("adapter", [None, {"rank": 2}])
def test_float64_weights_stay_what_they_are_where_the_run_is_float64(tmp_path, adapter):
    path, n = tmp_path / "exact.pt", np.array([6, 4])
    text = Description("drawn", (3,), 5, n, n, n, task="sequence")
    options = {"width": 8, "layers": 1, "heads": 2}
    tensors = {
        name: torch.rand(tensor.shape, dtype=torch.float64)
        for name, tensor in gpt(text, **options).state_dict().items()
    }
    tensors["embedding.weight"] = tensors["output.weight"]
    torch.save(tensors, path)
    section = {"name": "gpt", **options, "weights": str(path), "adapter": adapter}
    types = {"float64": torch.float64, "float32": torch.float32}
    exact, rounded = (make_model(section, text, dtype=name) for name in types)
    draws = [model.init(np.random.default_rng(0)) for model in (exact, rounded)]
    assert np.allclose(*draws, rtol=1e-7, atol=0)  # also of the adapters
    for row, model, dtype in zip(draws, (exact, rounded), types.values(), strict=True):
        loaded = model.module(torch.from_numpy(row).to(dtype)).state_dict()
        for name, tensor in tensors.items():
            assert torch.equal(loaded[name], tensor.to(dtype))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of weights that mpifed has saved, with a digest of it."""
    folder = tmp_path_factory.mktemp("saved")
    random = np.random.default_rng(0)
    pictures = mpifed.arrays(random.random((12, 3, 16, 16), np.float32), np.arange(12) % 10)
    options = {"model": {"name": "mobilenet_v2", "width": 0.1}, "clients": 1, "rounds": 1}
    mpifed.run("digits-fedem", data=pictures, algorithm="fedavg", output=folder / "run", **options)
    trained = mpifed.load(folder / "run")
    trained.save(folder / "weights.pt")
    return folder / "weights.pt", torch.load(folder / "weights.pt", weights_only=True)


@pytest.mark.parametrize("which", ["stored", "saved"])
def test_a_flipped_bit_is_seen(which, request, tmp_path):
    source, tensors = request.getfixturevalue(which)
    path, content = tmp_path / "flipped.pt", source.read_bytes()
    path.write_bytes(content)
    found = narrow(weights=str(path)).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    weight = tensors["features.0.0.weight"].numpy().tobytes()
    spoilt = bytearray(content)
    spoilt[content.index(weight)] ^= 1
    path.write_bytes(spoilt)
    with pytest.raises(InputError, match=r"flipped\.pt'.*damaged.*checksums"):
        narrow(weights=str(path))


def test_a_digest_is_of_more_than_the_tensors(saved, tmp_path):
    path, content = tmp_path / "flipped.pt", bytearray(saved[0].read_bytes())
    content[10] ^= 1  # when the first record was written, which has no CRC
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"flipped\.pt'.*checksums"):
        narrow(weights=str(path))


def test_a_classifier_of_another_width_is_named_and_can_be_drawn_anew(stored):
    path, tensors = stored
    with pytest.raises(InputError, match=r"model\.new_classifier=true.*classifier\.1\.weight"):
        narrow(62, weights=str(path))
    torch.manual_seed(1)
    network = narrow(62, weights=str(path), new_classifier=True)
    assert network.classifier[1].weight.shape == (62, 1280)
    body = tensors["features.0.0.weight"]
    assert torch.equal(network.features[0][0].weight, body)
    torch.manual_seed(2)
    drawn = network.classifier[1].weight.detach().clone()
    network.reset_parameters()
    assert not torch.equal(network.classifier[1].weight, drawn)
    assert torch.equal(network.features[0][0].weight, body)


def test_an_extra_linear_layer_lies_behind_a_loaded_classifier(tmp_path):
    path = tmp_path / "imagenet.pt"
    torch.save(narrow(1000).state_dict(), path)
    with pytest.raises(InputError, match=r"model\.new_classifier=true.*\"classifier\.2\.weight"):
        narrow(10, weights=str(path), extra_linear=True)
    network = narrow(10, weights=str(path), extra_linear=True, new_classifier=True)
    stored = torch.load(path, weights_only=True)
    assert torch.equal(network.classifier[1].weight, stored["classifier.1.weight"])


def changed(stored, tmp_path, change):
    path = tmp_path / "changed.pt"
    tensors = dict(stored[1])
    torch.save(change(tensors) or tensors, path)
    return path


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda t: {k: v for k, v in t.items() if k != "features.3.conv.2.weight"},
            r"changed\.pt.*\"features\.3\.conv\.2\.weight\"\.$",
        ),
        (
            lambda t: t.update({"features.0.1.bias": torch.zeros(9)}),
            r"features\.0\.1\.bias.*\[9\].*\[8\]",
        ),
        (
            lambda t: t.update({"features.0.1.bias": torch.full((8,), torch.nan)}),
            r"features\.0\.1\.bias.*NaN",
        ),
        (
            lambda t: t.update({"features.0.1.bias": torch.ones(8, dtype=torch.complex64)}),
            r"features\.0\.1\.bias.*torch\.complex64.*torch\.float32",
        ),
        (
            lambda t: t.update({"features.0.1.bias": torch.ones(8, device="meta")}),
            r"features\.0\.1\.bias.*\bno numbers.*torch\.float32",
        ),
        (
            lambda t: {f"net.{k}": v for k, v in t.items()},
            r"changed\.pt.*\"features\.0\.0\.weight\"",
        ),
    ],
)
def test_what_does_not_fit_is_named(stored, tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        narrow(weights=str(changed(stored, tmp_path, change)))


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod."])
def test_what_wrappers_put_before_names_is_taken_off(stored, tmp_path, wrapper):
    wrapped = changed(stored, tmp_path, lambda t: {wrapper + k: v for k, v in t.items()})
    with pytest.warns(UserWarning, match=re.escape(f"'{wrapper}'")):
        found = narrow(weights=str(wrapped)).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in stored[1].items())


@pytest.mark.parametrize("script", [False, True])
def test_a_whole_module_is_refused_with_the_line_that_saves_its_tensors(tmp_path, script):
    path, module = tmp_path / "whole.pt", torch.nn.Linear(2, 1)
    if script:
        torch.jit.save(torch.jit.trace(module, torch.ones(1, 2)), path)
    else:
        torch.save(module, path)
    with pytest.raises(InputError, match=r"torch\.save\(module\.state_dict\(\), PATH\)"):
        narrow(weights=str(path))


def test_weights_of_another_model_and_of_other_inputs_are_refused(stored):
    path, _ = stored
    with pytest.raises(InputError, match=r"weights\.pt.*\"conv1\.weight"):
        resnet18(data(), weights=str(path))
    with pytest.raises(
        InputError,
        match=r"features\.0\.0\.weight: .*\[8, 3, 3, 3\].*\[8, 1, 3, 3\]",
    ):
        narrow(channels=1, weights=str(path))


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_a_file_that_calls_functions_calls_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Harm()}, "harm.pt")
    with pytest.raises(InputError, match=r"'harm\.pt'.*damaged.*torch\.save\("):
        narrow(weights="harm.pt")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("kind", "words"), [("missing", "file"), ("text", "damaged"), ("cut", "damaged")]
)
def test_what_is_no_file_of_weights_is_refused(stored, tmp_path, kind, words):
    path = tmp_path / kind
    if kind == "text":
        path.write_text("weights")
    elif kind == "cut":
        path.write_bytes(stored[0].read_bytes()[:-400])
    with pytest.raises(InputError, match=f"{re.escape(str(path))}'.*{words}"):
        narrow(weights=str(path))
