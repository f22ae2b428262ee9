"""The shipped networks: sizes, first parameters, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from network_cases import made, size

from mpifed.errors import InputError

ALL = ("cnn", "mobilenet_v2", "resnet18", "resnet34", "lstm")


@pytest.mark.parametrize(
    "name, shape, n_classes, options, parameters",
    [
        ("cnn", (28, 28), 62, {}, 1_206_590),  # Reddi et al. 2021
        ("cnn", (1, 28, 28), 62, {"variant": "published"}, 2_278_334),
        ("mobilenet_v2", (3, 32, 32), 10, {}, 2_236_682),
        ("mobilenet_v2", (3, 224, 224), 1000, {}, 3_504_872),
        ("mobilenet_v2", (3, 32, 32), 10, {"extra_linear": True}, 3_504_872 + 10_010),
        ("mobilenet_v2", (3, 32, 32), 10, {"cifar_stem": True}, 2_236_682),
        ("resnet18", (3, 224, 224), 1000, {}, 11_689_512),
        ("resnet34", (3, 224, 224), 1000, {}, 21_797_672),
        ("resnet18", (3, 32, 32), 10, {"cifar_stem": True, "norm": "group"}, 11_173_962),
        # Reddi et al. 2021: 820,522 with one bias a gate; torch has two, 2 x 4 x 256 more.
        ("lstm", (80,), 90, {}, 820_522 + 2048),
    ],
)
def test_parameters_are_counted_as_in_the_papers(name, shape, n_classes, options, parameters):
    assert size(made(name, shape, n_classes, **options)) == parameters


def test_the_width_of_mobilenet_is_a_factor_rounded_to_eights():
    network = made("mobilenet_v2", (3, 32, 32), width=0.75)
    widths = [network.features[i].conv[-1].num_features for i in range(1, 18)]
    # 0.75 times (16, 24, 32, 64, 96, 160, 320)
    assert sorted(set(widths)) == [16, 24, 48, 72, 120, 240]
    assert network.features[18][0].out_channels == 1280
    wide = made("mobilenet_v2", (3, 32, 32), width=1.5)
    assert wide.features[18][0].out_channels == 1920


def test_the_default_lstm_is_that_of_the_paper():
    network = made("lstm", (80,), 80, "sequence")
    assert network.embedding.embedding_dim == 8
    assert (network.lstm.num_layers, network.lstm.hidden_size) == (2, 256)
    assert network.loss.name == "sequence"


@pytest.mark.parametrize("name", ALL)
def test_first_parameters_are_drawn_anew_and_depend_on_the_seed_alone(name):
    network = made(name, (12,) if name == "lstm" else (3, 16, 16))

    def drawn(seed):
        torch.manual_seed(seed)
        network.reset_parameters()
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    first = drawn(1)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.fill_(3)
    assert torch.equal(drawn(1), first) and not torch.equal(drawn(2), first)
    buffers = dict(network.named_buffers())
    for buffer_name, value in buffers.items():
        assert bool((value == (1 if buffer_name.endswith("running_var") else 0)).all())


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])
def test_kernels_are_drawn_by_their_fan_out(name):
    network = made(name, (3, 16, 16))
    scaled = [
        conv.weight.detach().flatten() * (conv.out_channels * conv.kernel_size[0] ** 2 / 2) ** 0.5
        for conv in network.modules()
        if isinstance(conv, torch.nn.Conv2d)
    ]
    assert abs(torch.cat(scaled).std() - 1) < 0.01
    assert all(abs(part.std() - 1) < 0.25 for part in scaled)


def test_mobilenets_linear_layers_are_drawn_small():
    network = made("mobilenet_v2", (3, 16, 16), extra_linear=True)
    for layer in (network.classifier[1], network.classifier[2]):
        assert abs(layer.weight.std() / 0.01 - 1) < 0.05
        assert bool((layer.bias == 0).all())


@pytest.mark.parametrize("name", ALL)
def test_two_classes_have_one_output(name):
    network = made(name, (12,) if name == "lstm" else (32, 32), 2).eval()
    x = torch.zeros(3, 12) if name == "lstm" else torch.rand(3, 32, 32)
    assert network(x).shape == (3, 1)


@pytest.mark.parametrize(
    "name, shape, task, options, words",
    [
        ("cnn", (784,), "classification", {}, r"samples of shape \(784,\); reshape them"),
        ("cnn", (5, 9), "classification", {}, "at least 6 x 6 pixels, but 'drawn' has 5 x 9"),
        ("resnet34", (3, 8, 8), "classification", {"groups": 3}, "groups is 3; it must divide 64"),
        ("lstm", (80,), "sequence", {"weighting": "published"}, "does not count its labels"),
    ],
)
def test_data_that_do_not_fit_get_one_sentence(name, shape, task, options, words):
    with pytest.raises(InputError, match=words):
        made(name, shape, 10, task, **options)
