"""The synthetic benchmark of Marfoq et al. 2021, App. I.1.5: a mixture of linear classifiers.

Every client t has weights pi_t ~ Dir(alpha) over M components theta_m ~ U[-1, 1]^d and
n_t = min(50 + m_t, 1000) training samples, m_t lognormal (4, 2) and rounded down. A sample is
x ~ U[-1, 1]^d with a component z ~ pi_t and a label that depends on <x, theta_z> + eps.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge

from mpifed.data import published
from mpifed.data.base import Dataset, Description, Shards, Split, SplitName, same_for_all
from mpifed.data.delivery import agreed, allocated, deliver
from mpifed.data.drawn_rows import DrawnRows
from mpifed.data.federated_format import SPLITS, Contents
from mpifed.data.partition import Alpha
from mpifed.data.published import LARGEST, SMALLEST, Setting, Truth, rounded_sigmoid, sigmoid
from mpifed.data.released import cached_release
from mpifed.errors import InputError
from mpifed.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream
from mpifed.supervision import heartbeat

Variant = Literal["paper", "released", "corrected"]
Mixtures = Literal["dirichlet", "one_hot"]

PUBLISHED_SEED = 12345
"""The seed that the published generator takes by default."""

BLOCK = 1024
"""Rows of x that are made at once, so that they are still in the cache when labelled."""


class Synthetic(Dataset):
    """The synthetic mixture of linear classifiers (Marfoq et al. 2021, App. I.1.5).

    ``variant``:

    * ``paper``, the text: y ~ Bernoulli(sigmoid(<x, theta_z> + eps)), eps ~ N(0, noise^2) with
      noise 1. (The text writes eps ~ N(0, I_d), but adds it to a number: it is one here.)
    * ``released``: the published generator bit for bit, its defect included (``published.py``).
      Its float64 numbers are rounded for a float32 run. They come from one stream: rank 0 makes
      them once, as a file in the cache, from which every rank reads its own rows.
    * ``corrected``: as released was meant: y = round(sigmoid(<x, theta_z> + eps)), noise 0.1, each
      sample with a component of its own client's mixture.

    For ``paper`` and ``corrected`` a client's samples depend on the seed and the client alone, not
    on who asks or on the number of clients, and a rank makes only those of its own clients. x has
    24 bits, which float32 holds exactly: runs in float32 and float64 see the same data.

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
        Seed of the data set. None is the run's, and 12345 for ``released``.
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
        dirichlet_alpha: Alpha = 0.4,
        noise: Annotated[float, Ge(0)] | None = None,
        n_test: Annotated[int, Ge(1)] = 5000,
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
        check_memory(
            8.0 * dimension * n_components + 4.0 * dimension * n_clients * SMALLEST,
            f"data.dimension is {dimension}, which with {n_components} components and {n_clients} "
            "clients",
        )
        check_memory(
            4.0 * dimension * n_test,
            f"data.n_test is {n_test}, which for one client in {dimension} dimensions",
        )
        self.variant = variant
        self.seed: int = seed
        self.setting = Setting(
            n_clients, n_components, dimension, dirichlet_alpha, noise, n_test, seed
        )
        self.truth: Truth = (
            published.begin(self.setting)[1]
            if variant == "released"
            else truth(self.setting, mixtures)
        )
        self.description = Description(
            f"synthetic-{variant}",
            (dimension,),
            2,
            self.truth.n_train,
            same_for_all(0, n_clients),
            same_for_all(n_test, n_clients),
        )
        self._communicator = communicator
        if variant != "released":
            self.make_split = self._made

    def _made(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        return split_of(self.setting, self.truth, self.variant, name, client_ids, dtype)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective for ``released``; see ``cached``."""
        if self.variant != "released":
            return make_shards(self.setting, self.truth, self.variant, client_ids, dtype)
        name = str(dtype).removeprefix("torch.")
        contents = Contents(self.description, "natural", self.seed, name)
        path = agreed(self._communicator, lambda: cached_release(self.setting, contents))
        return deliver(path, contents, client_ids, dtype, self._communicator)

    def latent(self, client: int, split: Literal["train", "test"]) -> np.ndarray:
        """Return the component z of each of a client's samples, int64 (n,); -1 for constant labels.

        For ``released`` the stream is followed up to this client, which takes time.
        """
        if self.variant != "released":
            n = self.truth.n_train[client] if split == "train" else self.setting.n_test
            return _labelling(self.setting, self.truth, client, split, int(n))[1]
        for position, (train, test) in enumerate(published.samples(self.setting)):
            if position == client:
                return train.latent if split == "train" else test.latent
        raise IndexError(f"client {client} of {self.setting.n_clients}")


def truth(setting: Setting, mixtures: Mixtures = "dirichlet") -> Truth:
    """Return pi, theta and the n_t of ``paper`` and ``corrected``.

    Row t of pi and n_t are the same for any number of clients above t.
    """
    n_clients, n_components = setting.n_clients, setting.n_components
    sizes = stream(setting.seed, "synthetic/sizes").lognormal(4, 2, n_clients)
    alpha = np.full(n_components, setting.dirichlet_alpha)

    def weights(draw: np.random.Generator, count: int) -> np.ndarray:
        if mixtures == "one_hot":
            return np.eye(n_components)[draw.integers(n_components, size=count)]
        return draw.dirichlet(alpha, count)

    drawn = DrawnRows(stream(setting.seed, "synthetic/mixture"), weights, n_clients)
    components = stream(setting.seed, "synthetic/components").uniform(
        -1, 1, (n_components, setting.dimension)
    )
    n_train = np.minimum(sizes.astype(np.int64) + SMALLEST, LARGEST)
    return Truth(drawn.row, components, n_train)


def make_shards(
    setting: Setting,
    truth: Truth,
    variant: Variant,
    client_ids: np.ndarray,
    dtype: torch.dtype,
) -> Shards:
    """Return the shards of ``paper`` or ``corrected``, written in place: nothing is held twice.

    Parameters
    ----------
    setting : Setting
        Arguments of the benchmark.
    truth : Truth
        What ``truth`` gave for them.
    variant : {'paper', 'corrected'}
        The rule for the labels.
    client_ids : ndarray
        Clients hosted here, int64.
    dtype : torch.dtype
        Type of x.
    """
    train, val, test = (
        split_of(setting, truth, variant, name, client_ids, dtype) for name in SPLITS
    )
    return Shards(client_ids, train, val, test)


def split_of(
    setting: Setting,
    truth: Truth,
    variant: Variant,
    name: SplitName,
    client_ids: np.ndarray,
    dtype: torch.dtype,
) -> Split:
    """Return one split of ``make_shards``.

    Parameters
    ----------
    setting, truth, variant, dtype
        As for ``make_shards``.
    name : {'train', 'val', 'test'}
        The split; that for validation has no sample.
    client_ids : ndarray
        Clients, int64, in any order.
    """
    counts = {
        "train": truth.n_train[client_ids],
        "val": np.zeros(len(client_ids), np.int64),
        "test": np.full(len(client_ids), setting.n_test),
    }[name]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    x = allocated((int(offsets[-1]), setting.dimension), dtype)
    y = torch.empty(int(offsets[-1]), dtype=torch.int64)
    if name != "val":
        for client, start, stop in zip(client_ids, offsets[:-1], offsets[1:], strict=True):
            heartbeat.step()
            rows = slice(start, stop)
            fill(setting, truth, variant, int(client), name, x[rows].numpy(), y[rows].numpy())
    return Split(x, y, offsets)


def fill(
    setting: Setting,
    truth: Truth,
    variant: Variant,
    client: int,
    split: str,
    x: np.ndarray,
    y: np.ndarray,
) -> None:
    """Write a client's split of ``paper`` or ``corrected`` to ``x`` (n, dimension) and ``y`` (n,).

    x comes from one stream of the client and everything else from another, so that the components
    can be had without x.
    """
    generator, latent = _labelling(setting, truth, client, split, len(y))
    logits = generator.normal(scale=setting.noise, size=len(y))
    bits = stream(setting.seed, f"synthetic/{split}/x", client=client).bit_generator
    for start in range(0, len(y), BLOCK):
        rows = slice(start, start + BLOCK)
        _draw_box(bits, x[rows])
        # In float64 whatever x is: labels then do not depend on the run's type.
        products = x[rows].astype(np.float64) @ truth.components.T
        logits[rows] += products[np.arange(len(products)), latent[rows]]
    if variant == "paper":
        y[:] = generator.random(len(y)) < sigmoid(logits)
    else:
        y[:] = rounded_sigmoid(logits)


def _labelling(
    setting: Setting, truth: Truth, client: int, split: str, n: int
) -> tuple[np.random.Generator, np.ndarray]:
    """The client's stream for labels, after the components of its ``n`` samples were drawn."""
    generator = stream(setting.seed, f"synthetic/{split}/labels", client=client)
    return generator, generator.choice(setting.n_components, n, p=truth.mixture_of(client))


def _draw_box(bits: np.random.BitGenerator, x: np.ndarray) -> None:
    """Fills ``x`` with uniform numbers of [-1, 1): multiples of 2^-23, exact in float32.

    Half as long as ``Generator.random``: 64 bits of the stream give two numbers at once.
    """
    words = bits.random_raw((x.size + 1) // 2).view(np.int32)[: x.size].reshape(x.shape)
    words >>= 8
    x[...] = words
    x *= 2.0**-23
