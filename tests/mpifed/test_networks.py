"""The shipped networks: sizes, first parameters, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from network_cases import made, size, without_dropout
from torch.nn import Dropout, functional

from mpifed.errors import InputError

ALL = ("cnn", "mobilenet_v2", "resnet18", "resnet20", "resnet34", "vgg11", "lstm")


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
        (
            "cnn",
            (28, 28),
            10,
            {"variant": "lenet"},
            44_426 + 44,
        ),  # LeCun et al. 1998; 22 groups' scales
        ("resnet20", (3, 32, 32), 10, {}, 269_722),  # He et al. 2016: 0.27 million
        ("vgg11", (3, 32, 32), 10, {}, 9_225_610),
        ("vgg11", (3, 32, 32), 10, {"norm": "batch"}, 9_231_114),
        # Reddi et al. 2021: 820,522 with one bias a gate; torch has two, 2 x 4 x 256 more.
        ("lstm", (80,), 90, {}, 820_522 + 2048),
    ],
)
def test_parameters_are_counted_as_in_the_papers(name, shape, n_classes, options, parameters):
    assert size(made(name, shape, n_classes, **options)) == parameters


@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_images_are_cropped_and_mirrored_in_training_alone(name):
    network = made(name, (3, 32, 32), 10, augment=True)
    seen = []
    first = next(part for part in network.modules() if isinstance(part, torch.nn.Conv2d))
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.rand(40, 3, 32, 32) + 1
    network.eval()(x)
    torch.manual_seed(0)
    network.train()(x)
    assert torch.equal(seen[0], x)
    padded = functional.pad(x, (4, 4, 4, 4))
    crops = padded.unfold(2, 32, 1).unfold(3, 32, 1)  # (40, 3, 9, 9, 32, 32)
    mirrored = 0
    for image, found in zip(crops, seen[1], strict=True):
        plain = (image == found[:, None, None]).all((0, 3, 4)).sum()
        turned = (image.flip(-1) == found[:, None, None]).all((0, 3, 4)).sum()
        assert plain + turned == 1
        mirrored += int(turned)
    assert 5 < mirrored < 35


def test_the_width_of_mobilenet_is_a_factor_rounded_to_eights():
    network = made("mobilenet_v2", (3, 32, 32), width=0.75)
    widths = [network.features[i].conv[-1].num_features for i in range(1, 18)]
    # 0.75 times (16, 24, 32, 64, 96, 160, 320)
    assert sorted(set(widths)) == [16, 24, 48, 72, 120, 240]
    assert network.features[18][0].out_channels == 1280
    wide = made("mobilenet_v2", (3, 32, 32), width=1.5)
    assert wide.features[18][0].out_channels == 1920


@pytest.mark.parametrize("name", ALL)
def test_first_parameters_are_drawn_anew_and_depend_on_the_seed_alone(name):
    network = made(name, (12,) if name == "lstm" else (3, 32, 32))

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
        ("cnn", (784,), "classification", {}, r"'cnn'.*images.*'drawn'.*\(784,\)"),
        ("cnn", (5, 9), "classification", {}, "'cnn'.* 6 x 6 .*'drawn'.* 5 x 9"),
        (
            "lstm",
            (80,),
            "sequence",
            {"weighting": "published"},
            "model.weighting.*published.*'drawn'.*none",
        ),
    ],
)
def test_data_that_do_not_fit_get_one_sentence(name, shape, task, options, words):
    with pytest.raises(InputError, match=words):
        made(name, shape, 10, task, **options)


# Outputs and names of the shipped networks, against the same written function by function.


def test_reddis_network_is_written_out_again():
    network = without_dropout(made("cnn", (28, 28), 62))
    own = dict(network.named_parameters())
    assert list(own) == [
        *("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"),
        *("hidden.weight", "hidden.bias", "output.weight", "output.bias"),
    ]
    x = torch.rand(3, 28, 28)
    h = x[:, None]
    for part in ("conv1", "conv2"):
        h = functional.conv2d(h, own[f"{part}.weight"], own[f"{part}.bias"]).clamp(min=0)
    h = h.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5)).reshape(3, 9216)
    h = (h @ own["hidden.weight"].T + own["hidden.bias"]).clamp(min=0)
    expected = h @ own["output.weight"].T + own["output.bias"]
    assert torch.allclose(network(x), expected, atol=1e-5)
    assert [part.p for part in network.modules() if isinstance(part, Dropout)] == [0.25, 0.5]


def test_the_published_network_is_written_out_again():
    network = made("cnn", (1, 28, 28), 62, variant="published")
    own = dict(network.named_parameters())
    x = torch.rand(3, 1, 28, 28)
    h = x
    for part in ("conv1", "conv2"):
        h = functional.conv2d(h, own[f"{part}.weight"], own[f"{part}.bias"]).clamp(min=0)
        h = h.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
    h = (h.reshape(3, 1024) @ own["hidden.weight"].T + own["hidden.bias"]).clamp(min=0)
    expected = h @ own["output.weight"].T + own["output.bias"]
    assert torch.allclose(network(x), expected, atol=1e-5)
    assert not any(isinstance(part, Dropout) for part in network.modules())


def normalised(x, weight, bias):
    """Batch normalisation in training mode."""
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * weight[:, None, None] + bias[:, None, None]


# (expansion, stride) of the 17 blocks after table 2 of Sandler et al. 2018.
BLOCKS = [(1, 1), (6, 2), (6, 1), (6, 2), (6, 1), (6, 1), (6, 2), *[(6, 1)] * 6]
BLOCKS += [(6, 2), (6, 1), (6, 1), (6, 1)]


def names_of_mobilenet():
    norm = [".weight", ".bias", ".running_mean", ".running_var", ".num_batches_tracked"]
    pairs = [("features.0.0", "features.0.1")]
    for i, (expansion, _) in enumerate(BLOCKS, 1):
        block = f"features.{i}.conv"
        inner = 1 if expansion == 1 else 2
        pairs += [(f"{block}.{j}.0", f"{block}.{j}.1") for j in range(inner)]
        pairs.append((f"{block}.{inner}", f"{block}.{inner + 1}"))
    pairs.append(("features.18.0", "features.18.1"))
    names = [bn + end if end else f"{conv}.weight" for conv, bn in pairs for end in ["", *norm]]
    return [*names, "classifier.1.weight", "classifier.1.bias"], pairs


@pytest.mark.parametrize("cifar_stem", [False, True])
def test_mobilenet_is_written_out_again(cifar_stem):
    network = made("mobilenet_v2", (3, 32, 32), cifar_stem=cifar_stem)
    names, pairs = names_of_mobilenet()
    assert list(network.state_dict()) == names
    own = {name: p.detach().double() for name, p in network.named_parameters()}
    layers = iter(pairs)

    def layer(x, stride=1, groups=1, clipped=True):
        conv, bn = next(layers)
        kernel = own[f"{conv}.weight"]
        x = functional.conv2d(x, kernel, None, stride, kernel.shape[-1] // 2, 1, groups)
        x = normalised(x, own[f"{bn}.weight"], own[f"{bn}.bias"])
        return x.clamp(0, 6) if clipped else x

    x = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    h = layer(x, 1 if cifar_stem else 2)
    for i, (expansion, stride) in enumerate(BLOCKS):
        before = h
        if expansion > 1:
            h = layer(h)
        h = layer(h, 1 if cifar_stem and i == 1 else stride, groups=h.shape[1])
        h = layer(h, clipped=False)
        if h.shape == before.shape:
            h = h + before
    h = layer(h)
    assert next(layers, None) is None
    assert h.shape == ((4, 1280, 4, 4) if cifar_stem else (4, 1280, 1, 1))
    expected = h.mean((2, 3)) @ own["classifier.1.weight"].T + own["classifier.1.bias"]
    assert torch.allclose(without_dropout(network).double()(x), expected, atol=1e-9)


STEM = ["conv1", "bn1"]


def names_of_resnet(blocks, statistics=True):
    ends = [".running_mean", ".running_var", ".num_batches_tracked"] if statistics else []
    parts = list(STEM)
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            place = f"layer{stage}.{block}"
            parts += [f"{place}.{part}" for part in ("conv1", "bn1", "conv2", "bn2")]
            if stage > 1 and block == 0:
                parts += [f"{place}.downsample.0", f"{place}.downsample.1"]
    norms = [p for p in parts if ".bn" in p or p == "bn1" or p.endswith("downsample.1")]
    return [
        *(p + end for p in parts for end in [".weight", *([".bias", *ends] * (p in norms))]),
        *("fc.weight", "fc.bias"),
    ]


@pytest.mark.parametrize(
    ("name", "blocks", "cifar_stem"),
    [
        ("resnet18", (2, 2, 2, 2), True),
        ("resnet34", (3, 4, 6, 3), False),
        pytest.param("resnet18", (2, 2, 2, 2), False, marks=pytest.mark.slow),
        pytest.param("resnet34", (3, 4, 6, 3), True, marks=pytest.mark.slow),
    ],
)
def test_resnets_are_written_out_again(name, blocks, cifar_stem):
    network = made(name, (3, 32, 32), cifar_stem=cifar_stem).double().train()
    assert list(network.state_dict()) == names_of_resnet(blocks)
    own = {n: p.detach() for n, p in network.named_parameters()}

    def layer(x, conv, bn, stride=1):
        kernel = own[f"{conv}.weight"]
        x = functional.conv2d(x, kernel, None, stride, kernel.shape[-1] // 2)
        return normalised(x, own[f"{bn}.weight"], own[f"{bn}.bias"])

    x = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    h = layer(x, "conv1", "bn1", 1 if cifar_stem else 2).clamp(min=0)
    if not cifar_stem:
        h = functional.max_pool2d(h, 3, 2, 1)
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            place, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            skip = h
            if stride == 2:
                skip = layer(h, f"{place}.downsample.0", f"{place}.downsample.1", 2)
            h = layer(h, f"{place}.conv1", f"{place}.bn1", stride).clamp(min=0)
            h = (layer(h, f"{place}.conv2", f"{place}.bn2") + skip).clamp(min=0)
    assert h.shape == ((4, 512, 4, 4) if cifar_stem else (4, 512, 1, 1))
    expected = h.mean((2, 3)) @ own["fc.weight"].T + own["fc.bias"]
    assert torch.allclose(network(x), expected, atol=1e-9)


def test_group_normalisation_has_no_running_statistics():
    network = made("resnet18", (3, 16, 16), norm="group", groups=4)
    assert list(network.state_dict()) == names_of_resnet((2, 2, 2, 2), statistics=False)
    assert list(network.buffers()) == []
    network = network.double()
    x = torch.rand(4, 64, 5, 5, dtype=torch.float64)
    grouped = x.view(4, 4, 16, 5, 5)
    mean, variance = grouped.mean((2, 3, 4), True), grouped.var((2, 3, 4), False, keepdim=True)
    expected = ((grouped - mean) / (variance + 1e-5).sqrt()).view_as(x)
    assert torch.allclose(network.bn1(x), expected)
    alone = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    assert network.train()(alone).shape == (1, 10)


def lstm_layer(x, w_x, w_h, b_x, b_h):
    """Hochreiter and Schmidhuber 1997 with forget gates; torch's order i, f, g, o."""
    h = c = x.new_zeros(len(x), w_h.shape[1])
    states = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w_x.T + b_x + h @ w_h.T + b_h).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states, 1)


@pytest.mark.parametrize("task", ["sequence", "classification"])
def test_the_lstm_is_written_out_again(task):
    network = made("lstm", (9,), 11, task, hidden=5, embedding=3).double()
    own = {n: p.detach() for n, p in network.named_parameters()}
    codes = torch.randint(0, 11, (4, 9))
    h = own["embedding.weight"][codes]
    for k in range(2):
        parts = [f"weight_ih_l{k}", f"weight_hh_l{k}", f"bias_ih_l{k}", f"bias_hh_l{k}"]
        h = lstm_layer(h, *(own[f"lstm.{part}"] for part in parts))
    expected = h @ own["output.weight"].T + own["output.bias"]
    if task == "classification":
        expected = expected[:, -1]
    assert torch.allclose(network(codes.double()), expected, atol=1e-12)
    assert network(codes.float()).shape == ((4, 9, 11) if task == "sequence" else (4, 11))
