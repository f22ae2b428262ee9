"""Models of texts of unequal length: a closed form, and what padding does to them: nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from network_cases import data

from mpifed.dataset import Preprocessing, tokens
from mpifed.errors import InputError
from mpifed.testing import make_model

V, L = 257, 9
DRAWS = np.random.default_rng(3)
TEXTS = [DRAWS.integers(1, V, length) for length in (9, 4, 1, 6)]
X = torch.from_numpy(tokens.padded([text - 1 for text in TEXTS], L)).float()
BYTES = Preprocessing(("text",), tokeniser=tokens.Tokeniser("bytes"))
SMALL = {
    "bag_of_words": {"embedding": 5},
    "gru": {"embedding": 5, "hidden": 6, "layers": 2},
    "lstm": {"embedding": 5, "hidden": 6, "layers": 2},
    "gpt": {"width": 8, "heads": 2, "layers": 1, "tied": False},
}


def network_of(name: str, n_classes: int = 3, of_texts: bool = True) -> torch.nn.Module:
    about = data((L,), n_classes)
    if of_texts:
        about = replace(about, preprocessing=BYTES)
    return make_model({"name": name, **SMALL[name]}, about).network.double().eval()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_bag_of_words_is_linear_in_the_shares_of_the_tokens(n_classes):
    network = network_of("bag_of_words", n_classes)
    shares = np.stack([np.bincount(text, minlength=V) / len(text) for text in TEXTS])
    named = {name: tensor.detach().numpy() for name, tensor in network.named_parameters()}
    by_hand = shares @ named["embedding.weight"] @ named["output.weight"].T + named["output.bias"]
    assert np.allclose(network(X).detach().numpy(), by_hand, rtol=1e-12)
    assert torch.allclose(network(X.flip(1)), network(X))  # in any order
    # The gradient of the cross-entropy by E is f (p - y)' W.
    y = torch.tensor([0, 1, 1, 0])
    outputs = network(X)
    if n_classes == 2:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    torch.nn.functional.cross_entropy(outputs, y, reduction="sum").backward()
    slopes = (torch.softmax(outputs, 1) - torch.eye(n_classes)[y]).detach().numpy()
    slopes = slopes[:, 1:] if n_classes == 2 else slopes
    gradient = network.embedding.weight.grad.numpy()
    assert np.allclose(gradient, shares.T @ slopes @ named["output.weight"], atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_padded_texts_have_the_outputs_and_gradients_of_unpadded_ones(name):
    network = network_of(name)
    padded = network(X)
    padded.square().sum().backward()
    gradients = {n: p.grad.clone() for n, p in network.named_parameters()}
    network.zero_grad()
    alone = torch.cat([network(torch.from_numpy(text)[None]) for text in TEXTS])
    alone.square().sum().backward()
    assert torch.allclose(padded, alone, rtol=1e-9)
    for part, parameter in network.named_parameters():
        assert torch.allclose(parameter.grad, gradients[part], rtol=1e-7, atol=1e-12)
    assert torch.allclose(network(torch.nn.functional.pad(X, (0, 20))), padded, rtol=1e-9)


@pytest.mark.parametrize(("name", "count"), [("gru", "14,593"), ("bag_of_words", "8,257")])
def test_parameters_are_those_of_the_page(name, count):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    about = replace(data((L,), 2), preprocessing=BYTES)
    assert f"{make_model(name, about).n_parameters:,}" == count
    assert f"| `{name}` | {count} (256 bytes, two classes)" in page


@pytest.mark.parametrize("name", SMALL)
def test_an_empty_text_has_finite_outputs(name):
    assert torch.isfinite(network_of(name)(torch.zeros(2, L))).all()


@pytest.mark.parametrize("name", ["gru", "bag_of_words"])
def test_token_0_of_other_data_is_a_token(name):
    network = network_of(name, 10, of_texts=False)
    x = torch.tensor([[3, 1, 2], [3, 1, 2]])
    longer = torch.nn.functional.pad(x, (0, 2))
    assert not torch.allclose(network(x), network(longer))


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_models_of_numbers_refuse_tokens(name):
    about = replace(data((L,)), preprocessing=BYTES)
    with pytest.raises(InputError, match=rf"'{name}'.*bag_of_words, gru"):
        make_model(name, about)


@pytest.mark.parametrize("name", ["gru", "bag_of_words"])
def test_models_of_texts_refuse_pictures_and_sequences(name):
    for about in (data((8, 8)), data((L,), task="sequence")):
        with pytest.raises(InputError, match=rf"'{name}'.*\(L,\)"):
            make_model(name, about)
