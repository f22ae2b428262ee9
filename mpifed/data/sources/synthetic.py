"""The synthetic benchmark of Marfoq et al. 2021, App. I.1.5: a mixture of linear classifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge

from mpifed.data.base import SPLITS, Description, Shards, SplitName, empty_split, same_for_all
from mpifed.data.generated import GeneratedDataset
from mpifed.data.partitions import Alpha
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream
from mpifed.watchdog import heartbeat

# Rows that are drawn together; the state of the generator is kept for each block.
ROWS_BLOCK = 4096


class DrawnRows:
    """Rows 0 ... count - 1 of a stream, drawn again from the beginning of their block."""

    def __init__(
        self,
        generator: np.random.Generator,
        draw: Callable[[np.random.Generator, int], np.ndarray],
        count: int,
    ) -> None:
        self._generator, self._draw, self._count = generator, draw, count
        self._states: list[Any] = []
        self._rows = np.empty(0)
        self._drawn = -1
        for number in range(-(-count // ROWS_BLOCK)):
            self._states.append(generator.bit_generator.state)
            self._rows, self._drawn = self._next(number), number

    def row(self, number: int) -> np.ndarray:
        """Return a row, (...)."""
        block, place = divmod(number, ROWS_BLOCK)
        if block != self._drawn:
            self._generator.bit_generator.state = self._states[block]
            self._rows, self._drawn = self._next(block), block
        return np.asarray(self._rows[place])

    def _next(self, block: int) -> np.ndarray:
        return self._draw(self._generator, min(ROWS_BLOCK, self._count - block * ROWS_BLOCK))


# Training samples of a client: at least the one, at most the other.
SMALLEST, LARGEST = 50, 1000


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

    mixture_of: Callable[[int], np.ndarray]
    components: np.ndarray
    n_train: np.ndarray

    @property
    def mixture(self) -> np.ndarray:
        """pi of all clients, float64 (n_clients, n_components)."""
        return np.stack([self.mixture_of(client) for client in range(len(self.n_train))])


@dataclass(frozen=True)
class Sample:
    """A split of one client."""

    x: np.ndarray
    y: np.ndarray
    latent: np.ndarray


def begin(setting: Setting) -> tuple[np.random.RandomState, Truth]:
    """Return the stream at the point where the samples are to be drawn, and the truth."""
    if setting.seed >= 2**32:
        raise InputError(
            f"data.seed is {setting.seed}; the published generator takes less than {2**32}"
        )
    random = np.random.RandomState(setting.seed)
    drawn = random.lognormal(4, 2, setting.n_clients).astype(np.int64)
    n_train = np.minimum(drawn + SMALLEST, LARGEST)
    alpha = np.full(setting.n_components, setting.dirichlet_alpha)
    mixture = np.stack([random.dirichlet(alpha) for _ in range(setting.n_clients)])
    if not np.isfinite(mixture).all():
        raise InputError(
            f"data.dirichlet_alpha is {setting.dirichlet_alpha:g}, for which the published "
            "generator draws weights that are not finite; use a more moderate one"
        )
    components = random.uniform(-1, 1, (setting.n_components, setting.dimension))
    return random, Truth(mixture.__getitem__, components, n_train)


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
        # From row 0 for every component: the defect, see above.
        y[:count] = rounded_sigmoid(x[:count] @ components[component] + noise)
        latent[:count] = component
    # sklearn.utils.shuffle orders rows so, and takes nothing else from the stream.
    order = np.arange(n)
    random.shuffle(order)
    return Sample(x[order], y[order], latent[order])


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-logits)), elementwise."""
    # exp overflows to infinity, and the quotient is 0 as it should.
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))


def rounded_sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the label that the released code gives: the sigmoid, rounded half to even; int64."""
    return np.round(sigmoid(logits)).astype(np.int64)


Variant = Literal["paper", "released", "corrected"]
Mixtures = Literal["dirichlet", "one_hot"]

# The seed that the published generator takes by default.
PUBLISHED_SEED = 12345

# The splits that the published generator draws, and what comes of one: client, split, x and y.
DRAWN: tuple[SplitName, ...] = ("train", "test")
Arriving = tuple[int, SplitName, np.ndarray, np.ndarray]

# Rows of x that are made at once, so that they are still in the cache when labelled.
BLOCK = 1024


class Synthetic(GeneratedDataset):
    """The synthetic mixture of linear classifiers (Marfoq et al. 2021, App. I.1.5).

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
            begin(self.setting)[1] if variant == "released" else truth(self.setting, mixtures)
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
        if variant == "released":
            self.make_split = None  # type: ignore[method-assign,assignment]

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective for ``released``, which rank 0 draws."""
        if self.variant != "released":
            return super().load(client_ids, dtype)
        splits = {name: empty_split(self.description, name, client_ids, dtype) for name in SPLITS}
        wishes = self._communicator.gather_object(client_ids)
        arriving = self._received(client_ids) if wishes is None else self._drawn(wishes)
        for client, name, x, y in arriving:
            split = splits[name]
            rows = split.rows_of(int(np.searchsorted(client_ids, client)))
            split.x[rows].copy_(torch.from_numpy(x))
            split.y[rows].copy_(torch.from_numpy(y))
        return Shards(client_ids, splits["train"], splits["val"], splits["test"])

    def _drawn(self, wishes: list[np.ndarray]) -> Iterator[Arriving]:
        """Send every rank its clients' samples as they are drawn; yield those of this rank."""
        for client, parts in enumerate(samples(self.setting)):
            heartbeat.step()
            for rank, client_ids in enumerate(wishes):
                if client not in client_ids:
                    continue
                for name, part in zip(DRAWN, parts, strict=True):
                    if rank == self._communicator.rank:
                        yield client, name, part.x, part.y
                    else:
                        self._communicator.send(part.x, rank)
                        self._communicator.send(part.y, rank)

    def _received(self, client_ids: np.ndarray) -> Iterator[Arriving]:
        receive = self._communicator.receive
        for client in client_ids:
            for name in DRAWN:
                n = int(getattr(self.description, f"n_{name}")[client])
                x = receive((n, self.setting.dimension), np.float64, 0)
                yield client, name, x, receive((n,), np.int64, 0)

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError  # ``_fill`` needs no copy

    def _fill(self, client: int, split: SplitName, x: torch.Tensor, y: torch.Tensor) -> None:
        """Draw a client's split of ``paper`` or ``corrected``."""
        setting, rows_x, rows_y = self.setting, x.numpy(), y.numpy()
        generator, latent = self._labelling(client, split, len(rows_y))
        logits = generator.normal(scale=setting.noise, size=len(rows_y))
        bits = stream(setting.seed, f"synthetic/{split}/x", client=client).bit_generator
        for start in range(0, len(rows_y), BLOCK):
            rows = slice(start, start + BLOCK)
            _draw_box(bits, rows_x[rows])
            # In float64 whatever x is: labels then do not depend on the run's type.
            products = rows_x[rows].astype(np.float64) @ self.truth.components.T
            logits[rows] += products[np.arange(len(products)), latent[rows]]
        if self.variant == "paper":
            rows_y[:] = generator.random(len(rows_y)) < sigmoid(logits)
        else:
            rows_y[:] = rounded_sigmoid(logits)

    def _labelling(self, client: int, split: str, n: int) -> tuple[np.random.Generator, np.ndarray]:
        """The client's stream for labels, after the components of its ``n`` samples were drawn."""
        setting = self.setting
        generator = stream(setting.seed, f"synthetic/{split}/labels", client=client)
        mixture = self.truth.mixture_of(client)
        return generator, generator.choice(setting.n_components, n, p=mixture)

    def latent(self, client: int, split: Literal["train", "test"]) -> np.ndarray:
        """Return the component z of each of a client's samples, int64 (n,); -1 for constant
        labels.
        """
        if self.variant != "released":
            n = self.truth.n_train[client] if split == "train" else self.setting.n_test
            return self._labelling(client, split, int(n))[1]
        for position, (train, test) in enumerate(samples(self.setting)):
            if position == client:
                return train.latent if split == "train" else test.latent
        raise IndexError(f"client {client} of {self.setting.n_clients}")


def truth(setting: Setting, mixtures: Mixtures = "dirichlet") -> Truth:
    """Return pi, theta and the n_t of ``paper`` and ``corrected``."""
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


def _draw_box(bits: np.random.BitGenerator, x: np.ndarray) -> None:
    """Fills ``x`` with uniform numbers of [-1, 1): multiples of 2^-23, exact in float32."""
    words = bits.random_raw((x.size + 1) // 2).view(np.int32)[: x.size].reshape(x.shape)
    words >>= 8
    x[...] = words
    x *= 2.0**-23
