"""The synthetic benchmark of Marfoq et al. 2021, appendix I.1.5: mixed linear classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from mpifed.dataset import (
    SPLITS,
    Communicator,
    Description,
    GeneratedDataset,
    Shards,
    Split,
    SplitName,
    empty_split,
    partitions,
    parts_up_to,
    step,
    stream,
)
from mpifed.errors import InputError

# Training samples of a client: at least the one, at most the other.
SMALLEST, LARGEST = 50, 1000

# Test samples of a client.
MOST = 10**9

# The seed that the published generator takes by default; the published commands have 1234.
PUBLISHED_SEED = 12345

# Rows of x that are made at once, so that they are still in the cache when multiplied, and rows
# that are labelled at once: what numpy's calls cost is then divided among several clients.
BLOCK, LABELLED = 1024, 8192

Variant = Literal["paper", "released", "corrected"]
Mixtures = Literal["dirichlet", "one_hot"]


# x, y and the component of each sample of a split.
Sample = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """Arguments of a synthetic benchmark."""

    n_clients: int
    n_components: int
    dimension: int
    dirichlet_alpha: float
    noise: float
    n_test: int
    seed: int


@dataclass(frozen=True)
class Truth:
    """What a benchmark was made from."""

    mixture: np.ndarray
    components: np.ndarray
    n_train: np.ndarray


def begin(setting: Setting) -> tuple[np.random.RandomState, Truth]:
    """Return the stream at the point where the samples are to be drawn, and the truth."""
    random = np.random.RandomState(setting.seed)
    drawn = random.lognormal(4, 2, setting.n_clients).astype(np.int64)
    n_train = np.minimum(drawn + SMALLEST, LARGEST)
    alpha = np.full(setting.n_components, setting.dirichlet_alpha)
    mixture = np.stack([random.dirichlet(alpha) for _ in range(setting.n_clients)])
    components = random.uniform(-1, 1, (setting.n_components, setting.dimension))
    return random, Truth(mixture, components, n_train)


def samples(setting: Setting) -> Iterator[tuple[Sample, Sample]]:
    """Yield each client's training and test sample, in client order, one client at a time."""
    random, truth = begin(setting)
    for mixture, n_train in zip(truth.mixture, truth.n_train, strict=True):
        train = _sample(random, setting, truth.components, mixture, int(n_train))
        yield train, _sample(random, setting, truth.components, mixture, setting.n_test)


def _sample(
    random: np.random.RandomState,
    setting: Setting,
    components: np.ndarray,
    mixture: np.ndarray,
    n: int,
) -> Sample:
    counts = random.multinomial(n, mixture)
    x = random.uniform(-1, 1, (n, setting.dimension))
    y, latent = np.zeros(n, np.int64), np.full(n, -1)
    for component, count in enumerate(counts):
        noise = random.normal(scale=setting.noise, size=count)
        # From row 0 for every component: the defect of the published code.
        y[:count] = rounded_sigmoid(x[:count] @ components[component] + noise)
        latent[:count] = component
    # sklearn.utils.shuffle orders rows so, and takes nothing else from the stream.
    order = np.arange(n)
    random.shuffle(order)
    return x[order], y[order], latent[order]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-logits)), elementwise."""
    # exp overflows to infinity, and the quotient is 0 as it should.
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))


def rounded_sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the label that the released code gives: the sigmoid, rounded half to even; int64."""
    return np.round(sigmoid(logits)).astype(np.int64)


class Synthetic(GeneratedDataset):
    """The synthetic mixture of linear classifiers (Marfoq et al. 2021, appendix I.1.5).

    Parameters
    ----------
    variant : {'paper', 'released', 'corrected'}
        The generator of the paper's text, of its published code, or what that was meant to be.
    n_components : int
        Number of linear classifiers in the mixture.
    dimension : int
        Number of inputs.
    mixtures : {'dirichlet', 'one_hot'}
        How mixture weights are drawn: Dir(dirichlet_alpha), or a single component for each client,
        uniformly at random (App. J.4, where FedEM recovers these clusters).
    dirichlet_alpha : float
        Concentration of the clients' mixture weights.
    noise : float, optional
        Standard deviation of eps. None is 1 for ``paper``, else 0.1.
    n_test : int
        Test samples of each client. There are no validation samples.
    seed : int, optional
        Seed of the data set. None is the run's, and for ``released`` the published generator's,
        12345. With 1234 and 300 clients ``released`` is the paper's data set, as in the experiment
        ``synthetic-released``.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        variant: Variant = "paper",
        n_components: Annotated[int, Ge(1)] = 3,
        dimension: Annotated[int, Ge(1)] = 150,
        mixtures: Mixtures = "dirichlet",
        dirichlet_alpha: partitions.Alpha = 0.4,
        noise: Annotated[float, Ge(0)] | None = None,
        n_test: Annotated[int, Ge(1), Le(MOST)] = 5000,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        if seed is None:
            seed = PUBLISHED_SEED if variant == "released" else run_seed
        if variant == "released" and mixtures != "dirichlet":
            raise InputError(
                f"data.mixtures is '{mixtures}', but the published generator (data.variant is "
                "'released') has Dirichlet mixtures; allowed: variant 'paper' or 'corrected'"
            )
        if noise is None:
            noise = 1.0 if variant == "paper" else 0.1
        self.variant = variant
        self.seed: int = seed
        self.setting = Setting(
            n_clients, n_components, dimension, dirichlet_alpha, noise, n_test, seed
        )
        self.truth: Truth = (
            begin(self.setting)[1] if variant == "released" else truth(self.setting, mixtures)
        )
        self.description = Description(
            f"synthetic-{variant}",
            (dimension,),
            2,
            self.truth.n_train,
            np.zeros(n_clients, np.int64),
            np.full(n_clients, n_test),
        )
        if variant == "released":
            self.make_split = None  # type: ignore[method-assign,assignment]

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``; of ``released``, those of all clients are drawn."""
        if self.variant != "released":
            return super().load(client_ids, dtype)
        train, val, test = (empty_split(self.description, n, client_ids, dtype) for n in SPLITS)
        for client, drawn in enumerate(samples(self.setting)):
            step()
            for position in np.flatnonzero(client_ids == client).tolist():
                for split, (x, y, _) in zip((train, test), drawn, strict=True):
                    split.x[split.rows_of(position)].copy_(torch.from_numpy(x))
                    split.y[split.rows_of(position)].copy_(torch.from_numpy(y))
        return Shards(client_ids, train, val, test)

    def _fill(self, client_ids: np.ndarray, name: SplitName, split: Split) -> None:
        """Draw the samples of ``paper`` or ``corrected``."""
        for part in parts_up_to(LABELLED, np.diff(split.offsets)):
            offsets = split.offsets[part.start : part.stop + 1]
            rows = slice(int(offsets[0]), int(offsets[-1]))
            x, y = split.x[rows].numpy(), split.y[rows].numpy()
            self._draw(client_ids[part], name, x, y, offsets - offsets[0])

    def _draw(
        self,
        clients: np.ndarray,
        name: SplitName,
        x: np.ndarray,
        y: np.ndarray,
        offsets: np.ndarray,
    ) -> None:
        """Draw the samples of some clients, at most ``LABELLED``, or those of a single client."""
        setting = self.setting
        components = np.ascontiguousarray(self.truth.components.T)
        uniform, logits, chances = np.empty((3, len(x)))
        products = np.empty((len(x), setting.n_components))
        begins, ends = offsets[:-1].tolist(), offsets[1:].tolist()
        for client, begin, end in zip(clients.tolist(), begins, ends, strict=True):
            step()
            draws = stream(setting.seed, f"synthetic/{name}/labels", client=client)
            draws.random(out=uniform[begin:end])
            draws.standard_normal(out=logits[begin:end])
            draws.random(out=chances[begin:end])
            bits = stream(setting.seed, f"synthetic/{name}/x", client=client).bit_generator
            for start in range(begin, end, BLOCK):
                rows = slice(start, min(start + BLOCK, end))
                _draw_box(bits, x[rows])
                # In float64 whatever x is: labels then do not depend on the run's type.
                np.matmul(x[rows].astype(np.float64), components, out=products[rows])
        upto = np.cumsum(self.truth.mixture[clients], axis=1)
        latent = (np.repeat(upto / upto[:, -1:], np.diff(offsets), axis=0) <= uniform[:, None]).sum(
            1
        )
        logits = setting.noise * logits + products[np.arange(len(x)), latent]
        y[:] = chances < sigmoid(logits) if self.variant == "paper" else rounded_sigmoid(logits)


def truth(setting: Setting, mixtures: Mixtures = "dirichlet") -> Truth:
    """Return pi, theta and the n_t of ``paper`` and ``corrected``."""
    n_clients, n_components = setting.n_clients, setting.n_components
    sizes = stream(setting.seed, "synthetic/sizes").lognormal(4, 2, n_clients)
    draw = stream(setting.seed, "synthetic/mixture")
    if mixtures == "one_hot":
        mixture = np.eye(n_components)[draw.integers(n_components, size=n_clients)]
    else:
        alpha = np.full(n_components, setting.dirichlet_alpha)
        mixture = draw.dirichlet(alpha, n_clients)
    components = stream(setting.seed, "synthetic/components").uniform(
        -1, 1, (n_components, setting.dimension)
    )
    n_train = np.minimum(sizes.astype(np.int64) + SMALLEST, LARGEST)
    return Truth(mixture, components, n_train)


def _draw_box(bits: np.random.BitGenerator, x: np.ndarray) -> None:
    """Fills ``x`` with uniform numbers of [-1, 1): multiples of 2^-23, exact in float32."""
    words = bits.random_raw((x.size + 1) // 2).view(np.int32)[: x.size].reshape(x.shape)
    words >>= 8
    x[...] = words
    x *= 2.0**-23
