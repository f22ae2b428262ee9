"""The language model against numpy, its adapters, perplexities, and the memory that it takes."""

from __future__ import annotations

import math

import h5py
import numpy as np
import pytest
import torch
from commands import call, rows
from network_cases import made
from on_ranks import same_after_a_resume, unlike_one_rank
from scipy.special import erf, softmax

import mpifed
from mpifed.errors import InputError
from mpifed.model import merge

V, L, D, HEADS = 5, 6, 8, 2
SMALL = {"width": D, "heads": HEADS, "layers": 2}
RUN = {
    **{"rounds": 2, "checkpoint.every": 1, "evaluation.every": 1, "clients": 4, "seed": 3},
    **{"data": "sequence_data:Words", "model": {"name": "gpt", **SMALL}},
    "local": {"optimizer": "adamw", "lr": 0.01, "batch_size": 5},
}


def written_out(own, x):
    """The network in numpy, for one sample; pairs are turned as complex numbers."""

    def norm(h, weight):
        return (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5) * weight

    def turned(h):
        angles = np.arange(L)[:, None] * 10_000.0 ** (-np.arange(0, h.shape[1], 2) / h.shape[1])
        pairs = (h[:, ::2] + 1j * h[:, 1::2]) * np.exp(1j * angles)
        return np.stack([pairs.real, pairs.imag], 2).reshape(h.shape)

    h = own["embedding.weight"][x]
    for k in range(2):
        w = {name.removeprefix(f"blocks.{k}."): tensor for name, tensor in own.items()}
        seen, parts = norm(h, w["norm1.weight"]), []
        q, key, v = (seen @ w[f"{name}.weight"].T for name in ("query", "key", "value"))
        for part in np.split(np.arange(D), HEADS):
            scores = turned(q[:, part]) @ turned(key[:, part]).T / (D / HEADS) ** 0.5
            scores[np.triu_indices(L, 1)] = -np.inf
            parts.append(softmax(scores, 1) @ v[:, part])
        h = h + np.concatenate(parts, 1) @ w["mix.weight"].T
        inner = norm(h, w["norm2.weight"]) @ w["up.weight"].T
        h = h + inner * (1 + erf(inner / 2**0.5)) / 2 @ w["down.weight"].T
    return norm(h, own["norm.weight"]) @ own["output.weight"].T


def drawn(task="sequence", **options):
    torch.manual_seed(0)
    network = made("gpt", (L,), V, task, **SMALL, **options).double()
    for parameter in network.parameters():  # first weights are too small to tell much
        parameter.data.mul_(20 if parameter.dim() > 1 else 1).add_(0.1)
    return network


@pytest.mark.parametrize("task, tied", [("sequence", True), ("classification", False)])
def test_outputs_are_those_of_the_formulas(task, tied):
    network, x = drawn(task, tied=tied), torch.randint(V, (3, L))
    own = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    assert np.array_equal(own["output.weight"], own["embedding.weight"]) == tied
    assert sum(p.numel() for p in network.parameters()) == (2 - tied) * V * D + 24 * D**2 + 5 * D
    expected = np.stack([written_out(own, tokens) for tokens in x.numpy()])
    expected = expected if task == "sequence" else expected[:, -1]
    assert np.allclose(network(x.double()).detach().numpy(), expected, rtol=1e-10)


def test_options_that_do_not_fit_are_refused():
    for options, words in (
        ({"width": 12, "heads": 4}, "model.width.* 12.*model.heads.* 8"),
        ({"vocabulary": 12}, "model.tied.* true.* 12 .* 5 .*false"),
        ({"adapter": {"layers": ["qury"]}}, "model.adapter.layers.*'qury'.*'query'"),
    ):
        with pytest.raises(InputError, match=words):
            made("gpt", (L,), V, "sequence", **{**SMALL, **options})


def test_merged_adapters_give_the_same_outputs():
    network = drawn(adapter={"rank": 3, "alpha": 6.0, "layers": ["blocks.0.*", "down"]})
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * (6 + 1) and all(".lora_" in name for name in trained)
    own, x = dict(network.state_dict()), torch.randint(V, (3, L))
    outputs, plain, name = network(x), merge(network), "blocks.1.down"
    assert torch.allclose(plain(x), outputs, rtol=1e-10)
    assert list(plain.state_dict()) == list(drawn().state_dict())
    expected = own[f"{name}.weight"] + 2 * own[f"{name}.lora_b"] @ own[f"{name}.lora_a"]
    assert torch.allclose(plain.state_dict()[f"{name}.weight"], expected)


@pytest.mark.parametrize(
    "algorithm, numbers",  # of rank 3 on query and value of two blocks; B alone stays with FedPer
    [("fedavg", 4 * 3 * 2 * D), ({"name": "fedper", "head": ["*.lora_b"]}, 4 * 3 * D)],
)
def test_adapters_alone_are_sent(algorithm, numbers, tmp_path):
    base = made("gpt", (L,), V, "sequence", **SMALL).state_dict()
    torch.save(base, tmp_path / "base.pt")
    model = {**RUN["model"], "adapter": {"rank": 3}, "weights": str(tmp_path / "base.pt")}
    given = {**RUN, "algorithm": algorithm, "model": model}
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **given)
    assert result.metrics["up_bits"][-1] == 2 * 4 * 32 * numbers  # rounds, clients
    trained = mpifed.load(tmp_path / "run")
    network, split = trained.client(1), trained.samples(1).test
    assert all(torch.equal(network.state_dict()[name], base[name]) for name in base)
    loss = torch.nn.functional.cross_entropy(network(split.x).transpose(1, 2), split.y)
    with h5py.File(tmp_path / "run" / "clients.h5") as file:
        assert np.isclose(file["test_loss"][1], float(loss.detach()), rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedem"])
def test_perplexity_is_exp_of_the_mean_of_negative_log_likelihoods(algorithm, tmp_path):
    given = {**RUN, "algorithm": algorithm, "evaluation.validation_fraction": 0.25}
    mpifed.run("digits-fedem", output=tmp_path / "run", **given)
    for row in rows(tmp_path / "run"):
        for split in ("train", "test", "validation"):
            found, expected = (float(row[f"{split}_{name}"]) for name in ("perplexity", "loss"))
            assert math.isclose(found, math.exp(expected)) and 1 < found < 5.5  # of five tokens


ON_RANKS = {
    "server": {"server_optimizer": {"name": "nesterov", "lr": 0.7}},
    "gossip": {"exchange": {"name": "gossip", "correction": "gasloc", "topology": "ring"}},
    "adapters": {"model": {**RUN["model"], "adapter": {"rank": 2}}},
    "bfloat16": {"local": {**RUN["local"], "autocast": "bfloat16"}},
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", ON_RANKS)
def test_the_same_bits_on_any_number_of_ranks(case, tmp_path):
    given = {**RUN, "algorithm": "fedavg", "rounds": 4, **ON_RANKS[case]}
    assert unlike_one_rank(given, tmp_path, "digits-fedem") == []
    assert same_after_a_resume(given, tmp_path / "resumed", "digits-fedem")


@pytest.mark.parametrize(
    "words, copies",
    [
        # One shared model; of each client a trained model, its moments and those kept; a gradient.
        ([], 1 + 4 * (1 + 2 + 2) + 1),
        (["local.optimizer=sgd"], 1 + 4 + 1),
        (["exchange=gossip", "exchange.topology=ring"], 4 + 4 * (1 + 2 + 2) + 1),
        (["algorithm=fedem"], 3 + 3 * 4 * (1 + 2 + 2) + 1),
    ],
)
def test_memory_of_models_is_said_and_refused_before(words, copies, tmp_path, capfd, monkeypatch):
    line = ["digits-fedem", "data=sequence_data:Words", "clients=4", "local.optimizer=adamw"]
    line += ["model={name: gpt, width: 8, heads: 2, layers: 2}", "algorithm=fedavg", *words]
    line, numbers = [*line, "--output", tmp_path / "run", "--dry-run"], V * D + 24 * D**2 + 5 * D
    outcome = call(line, capfd)
    said = f" {copies * numbers * 4 / 1e3:.3g} kB per rank"
    assert outcome.code == 0 and said in outcome.out
    monkeypatch.setattr(
        "topologies.memory_limits.available_memory", lambda: copies * numbers * 4 - 1
    )
    monkeypatch.setattr("topologies.memory_limits.NEGLIGIBLE", 0)
    refused = call(line, capfd)
    assert refused.code == 2 and f" {numbers} parameters" in refused.err


@pytest.mark.parametrize("model", ["lstm", {"name": "gpt", **SMALL, "tied": False}])
@pytest.mark.parametrize("split", ["train", "test"])
def test_tokens_beyond_the_vocabulary_are_named_by_file_and_client(model, split, tmp_path):
    path = tmp_path / "tokens.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update(n_classes=V, source="test", partition="natural", seed=7, task="sequence")
        for name in ("train", "val", "test"):
            x = np.arange(6 * L, dtype=np.uint16).reshape(6, L) % V
            x[4, 2] = 9 if name == split else 0
            file[f"{name}/x"], file[f"{name}/y"] = x, x % V
            file[f"{name}/offsets"] = [0, 2, 4, 6]
    options = {"data": str(path), "rounds": 1, "model": model, "algorithm": "fedavg"}
    words = rf"tokens\.h5'.*/{split} .*client 2 .*\b9\b.* 0 to 4.*model\.vocabulary"
    with pytest.raises(InputError, match=words):
        mpifed.run(**options, output=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    mpifed.run(**options, **{"model.vocabulary": 10}, output=tmp_path / "run")
