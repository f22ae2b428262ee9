from __future__ import annotations

import dataclasses
import io
import itertools
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mpifed.algorithms.fedmm.transport import cosine, l2_uvp, linear_maps
from mpifed.errors import InputError
from mpifed.models.icnn import dense_icnn
from mpifed.optimal_transport.benchmarks import (
    find_benchmark,
    gaussian_benchmark,
    plane_gaussians,
    random_gaussians,
    random_icnn_benchmark,
    random_mixture,
    read_potential,
)
from mpifed.random import stream

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def published(monkeypatch) -> Path:
    home = Path(os.environ.get("MPIFED_DATA", REPOSITORY / "../shared/data"))
    if not (home / "w2-benchmark").is_dir():
        pytest.skip(f"no trained potentials: there is no '{home / 'w2-benchmark'}' (MPIFED_DATA)")
    monkeypatch.setenv("MPIFED_DATA", str(home))
    return home


def covariance_of(mixture):
    centred = mixture.centres - mixture.centres.mean(0)
    spread = (mixture.roots @ mixture.roots.transpose(1, 2)).mean(0)
    return (centred.T @ centred / len(centred) + spread).numpy()


def test_two_gaussians_have_the_closed_form():
    bench = plane_gaussians()
    eye = torch.eye(2, dtype=torch.float64)
    origin = bench.true_map(torch.zeros(1, 2, dtype=torch.float64))
    assert origin.tolist() == [[1.0, -1.0]]
    matrix = bench.true_map(eye) - origin
    expected = [[1.32804666, 0.24304941], [0.24304941, 0.69658578]]
    assert np.allclose(matrix, expected, atol=5e-9)
    assert bench.target_variance == 4

    x = bench.sample_source(stream(0, "score"), 1 << 18, torch.float64)
    constant = torch.tensor([[1.0, -1.0]], dtype=torch.float64).expand_as(x)
    assert l2_uvp(bench.true_map(x), bench, x) == 0
    assert abs(l2_uvp(x, bench, x) / 69.2805 - 1) < 0.01
    assert abs(l2_uvp(constant, bench, x) / 100 - 1) < 0.01
    # The absolute entries of the covariance [[2, 1], [1, 2]] add up to 6, its trace to 4.
    printed = dataclasses.replace(bench, variance="l1")
    assert np.isclose(l2_uvp(x, printed, x) * 6, l2_uvp(x, bench, x) * 4)
    assert np.isclose(cosine(bench.true_map(x), bench, x), 1) and cosine(x, bench, x) == 0
    assert np.isclose(cosine(2 * x - bench.true_map(x), bench, x), -1)


def test_affine_maps_are_scored_beside_the_optimal_one():
    x = plane_gaussians().sample_source(np.random.default_rng(0), 4096, torch.float64)
    assert max(linear_maps(plane_gaussians(), x).values()) < 1e-20
    curved = random_icnn_benchmark(2, 0)
    x = curved.sample_source(np.random.default_rng(0), 4096, torch.float64)
    scores = linear_maps(curved, x)
    assert 0 < scores["best affine"] <= scores["Gaussian"] < 100


@pytest.mark.parametrize("dimension", [1, 5])
def test_gaussian_maps_are_symmetric_and_carry_the_moments(dimension):
    bench = random_gaussians(dimension, 3)
    zero = torch.zeros(1, dimension, dtype=torch.float64)
    shift = bench.true_map(zero)
    matrix = (bench.true_map(torch.eye(dimension, dtype=torch.float64)) - shift).T.numpy()
    source = covariance_of(bench.source)
    assert np.allclose(matrix, matrix.T) and np.linalg.eigvalsh(matrix)[0] > 0
    assert np.allclose(matrix @ source @ matrix.T, bench.target_covariance)
    assert np.allclose(bench.true_map(bench.source.centres)[0], bench.target_mean)


def test_random_mixtures_have_their_moments():
    source = random_mixture(6, 3, np.random.default_rng(0))
    x = source.sample(np.random.default_rng(1), 1 << 16)
    assert torch.allclose(x.mean(0), torch.zeros(6, dtype=torch.float64), atol=0.02)
    assert np.allclose(np.cov(x.T.numpy()), covariance_of(source), atol=0.03)
    assert np.isclose(np.trace(covariance_of(source)), 6)
    # Along each axis the centres are an order of -1, 0, 1, up to the common scale.
    assert np.allclose(
        np.sort(source.centres.numpy(), 0) / source.centres.max().item(), [[-1], [0], [1]]
    )
    assert torch.allclose(source.roots.norm(dim=2), source.roots[0, 0].norm())


def check_standardised(bench, dimension):
    x = bench.sample_source(stream(5, "fresh"), 1 << 14, torch.float64)
    y = bench.true_map(x)
    assert y.mean(0).abs().max() < 0.06
    assert abs(float(y.var(0).mean()) - 1) < 0.03
    assert abs(bench.target_variance / dimension - 1) < 0.03
    a, b = x[::2], x[1::2]
    monotone = ((bench.true_map(a) - bench.true_map(b)) * (a - b)).sum(1)
    assert (monotone > 0).all()
    single = bench.true_map(x[:50].float())
    assert single.dtype == torch.float32 and torch.allclose(single.double(), y[:50], atol=1e-3)


@pytest.mark.parametrize("dimension", [2, 16])
def test_the_frozen_random_network_is_standardised_monotone_and_bends(dimension):
    bench = random_icnn_benchmark(dimension, 0)
    check_standardised(bench, dimension)
    x = bench.sample_source(stream(6, "fit"), 1 << 13, torch.float64)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    y, design = bench.true_map(x), torch.cat([x, ones], 1)
    affine = design @ torch.linalg.lstsq(design, y).solution
    assert l2_uvp(affine, bench, x) > 2 and l2_uvp(y, bench, x) == 0


def test_samples_are_a_function_of_their_generator():
    bench = random_icnn_benchmark(4, 1)
    again = random_icnn_benchmark(4, 1)
    other = random_icnn_benchmark(4, 2)
    for sample in ("sample_source", "sample_target"):
        first = getattr(bench, sample)(stream(0, "x", 3, 7), 65)
        assert first.shape == (65, 4) and first.dtype == torch.float32
        assert torch.equal(first, getattr(again, sample)(stream(0, "x", 3, 7), 65))
        assert not torch.equal(first, getattr(bench, sample)(stream(0, "x", 3, 8), 65))
        assert not torch.equal(first, getattr(other, sample)(stream(0, "x", 3, 7), 65))
    wide = bench.sample_source(stream(0, "x"), 65, torch.float64)
    assert torch.equal(wide.float(), bench.sample_source(stream(0, "x"), 65))
    # The map is computed in the type of the samples.
    wide = bench.sample_target(stream(0, "x"), 65, torch.float64)
    assert torch.equal(wide, bench.true_map(bench.sample_source(stream(0, "x"), 65, torch.float64)))
    narrow = bench.sample_target(stream(0, "x"), 65)
    assert torch.allclose(narrow.double(), wide, rtol=0, atol=1e-5)


# L2-UVP of the linear map that carries mean and covariance, in the published table of results
# (Korotin et al. 2021, "Do neural optimal transport solvers work?", Mix3toMix10).
LINEAR = {2: 14.1, 16: 41.6, 64: 63.9}


@pytest.mark.parametrize("dimension", [2, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_the_trained_potentials_give_the_published_pair(published, dimension):
    bench = find_benchmark(0, dimension=dimension)
    assert bench.name == "mix3tomix10"
    check_standardised(bench, dimension)
    linear = gaussian_benchmark(
        np.zeros(dimension), covariance_of(bench.source), bench.target_mean, bench.target_covariance
    )
    x = bench.sample_source(stream(1, "score"), 1 << 14, torch.float64)
    assert abs(l2_uvp(linear.true_map(x), bench, x) / LINEAR[dimension] - 1) < 0.03


def test_names_find_benchmarks(monkeypatch, tmp_path):
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    assert find_benchmark(0, dimension=3).name == "random_icnn"
    assert find_benchmark(0, benchmark="gaussian", dimension=2).target_variance == 4
    assert find_benchmark(0, benchmark="gaussian", dimension=3).dimension == 3
    with pytest.raises(InputError, match=r"data\.raw.*MPIFED_DATA"):
        find_benchmark(0, benchmark="mix3tomix10", dimension=2)
    with pytest.raises(InputError, match=r"data\.dimension.*\b3\b.*mix3tomix10.*2, 4, 8, 16, 32"):
        find_benchmark(0, benchmark="mix3tomix10", dimension=3)
    with pytest.raises(InputError, match=r"data\.raw.*/none'"):
        find_benchmark(0, dimension=2, raw=str(tmp_path / "none"))
    monkeypatch.setenv("MPIFED_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"MPIFED_DATA.*/w2-benchmark'"):
        find_benchmark(0, benchmark="mix3tomix10", dimension=2)
    (tmp_path / "w2-benchmark").mkdir()
    with pytest.raises(InputError, match=r"w2-benchmark'.*'2_v1\.pt'.*\.tar"):
        find_benchmark(0, dimension=2)


def state_of(model, generator):
    """A state dict as published, and the flat parameters that it holds."""
    state, flat = {}, {"quadratic": [], "linear": [], "bias": [], "convex": []}
    for layer, width in enumerate(model.hidden):
        a, b, c = (
            torch.from_numpy(generator.normal(size=shape)).float()
            for shape in ((model.dimension, 1, width), (width, model.dimension), (width,))
        )
        state[f"quadratic_layers.{layer}.quadratic_decomposed"] = a
        state[f"quadratic_layers.{layer}.weight"] = b
        state[f"quadratic_layers.{layer}.bias"] = c
        for name, tensor in (("quadratic", a[:, 0].T), ("linear", b), ("bias", c)):
            flat[name].append(tensor.flatten())
    sizes = [*model.hidden, 1]
    for layer, (below, above) in enumerate(itertools.pairwise(sizes)):
        name = f"convex_layers.{layer}" if above > 1 else "final_layer"
        weight = torch.from_numpy(generator.uniform(size=(above, below))).float()
        state[f"{name}.weight"] = weight
        flat["convex"].append(weight.flatten())
    return state, torch.cat([part for parts in flat.values() for part in parts])


@pytest.fixture
def stored():
    model = dense_icnn(3, hidden=[5, 4])
    return model, *state_of(model, np.random.default_rng(0))


def test_state_dicts_are_read_from_directories_and_archives(stored, tmp_path):
    model, state, flat = stored
    torch.save(state, tmp_path / "3_v1.pt")
    assert torch.equal(read_potential(tmp_path, "3_v1.pt", model), flat.double())
    inside = tmp_path / "packed"
    inside.mkdir()
    with tarfile.open(inside / "w2.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "3_v1.pt", "w2/3_v1.pt")
    for path in (inside, inside / "w2.tar.xz"):
        assert torch.equal(read_potential(path, "3_v1.pt", model), flat.double())
    with pytest.raises(InputError, match=r"w2\.tar\.xz'.*'3_v2\.pt'"):
        read_potential(inside, "3_v2.pt", model)


class Payload:
    """Writes a file when it is unpickled carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["zip", "legacy", "bare"])
def test_a_file_that_asks_for_code_is_refused_and_runs_nothing(stored, tmp_path, form):
    model, state, _ = stored
    marker = tmp_path / "was here"
    poisoned = {**state, "final_layer.weight": Payload(marker)}
    file = io.BytesIO()
    if form == "bare":
        pickle.dump(poisoned, file)
    else:
        torch.save(poisoned, file, _use_new_zipfile_serialization=form == "zip")
    (tmp_path / "3_v1.pt").write_bytes(file.getvalue())
    if form == "bare":
        pickle.loads(file.getvalue())
        assert marker.exists()
        marker.unlink()
    with pytest.raises(InputError, match=r"'3_v1\.pt'.*weights"):
        read_potential(tmp_path, "3_v1.pt", model)
    assert not marker.exists()
