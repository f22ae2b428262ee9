"""The synthetic benchmark of Marfoq et al. 2021, App. I.1.5: a mixture of linear classifiers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge

from mpifed.data.base import Dataset, Description, Shards, Split, SplitName, same_for_all
from mpifed.data.delivery import agreed, allocated, deliver
from mpifed.data.federated_file import SPLITS, VERSION, Contents, read_contents, write
from mpifed.data.partitions import Alpha
from mpifed.errors import InputError, RunError
from mpifed.io.atomic import PARTIAL
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
    with np.errstate(
        over="ignore"
    ):  # exp overflows to infinity, and the quotient is 0 as it should
        return 1 / (1 + np.exp(-logits))


def rounded_sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the label that the released code gives: the sigmoid, rounded half to even; int64."""
    return np.round(sigmoid(logits)).astype(np.int64)


# Seconds after which an unfinished file is taken for one whose job was killed.
ABANDONED = 24 * 3600.0

log = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Return the directory of the cache, which need not exist yet."""
    own, shared = os.environ.get("MPIFED_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    if shared and Path(shared).is_absolute():
        return Path(shared) / "mpifed"
    try:
        return Path.home() / ".cache" / "mpifed"
    except RuntimeError:
        raise InputError("MPIFED_CACHE is empty and there is no home directory; set it") from None


def cached(
    label: str, arguments: Mapping[str, Any], contents: Contents, make: Callable[[Path], None]
) -> Path:
    """Return the path of the cached federated file for ``arguments``, made if it is missing."""
    directory = cache_directory()
    text = json.dumps({"format": VERSION, **arguments}, sort_keys=True)
    path = directory / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.h5"
    if path.exists():
        try:
            if read_contents(path).same_rows(contents):
                return path
            log.warning("'%s' does not hold what its name says; it is made again", path)
        except InputError as error:
            log.warning("%s; it is made again", error)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(directory)
    except OSError as error:
        raise InputError(
            f"the cache directory is '{directory}', which cannot be made ({error.strerror}); "
            "set MPIFED_CACHE to a directory that may be written"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(
            f"the cache directory is '{directory}', which may not be written; "
            "set MPIFED_CACHE to one that may"
        )
    try:
        make(path)
    except RunError as error:
        raise RunError(f"{error}; MPIFED_CACHE may name another directory") from error
    return path


def _remove_abandoned(directory: Path) -> None:
    for partial in directory.glob(f".*{PARTIAL}"):
        try:
            if time.time() - partial.stat().st_mtime > ABANDONED:
                partial.unlink()
        except FileNotFoundError:
            continue


def cached_release(setting: Setting, contents: Contents) -> Path:
    """Return the cached file with everything the published generator makes for ``setting``."""

    def make(path: Path) -> None:
        write(path, contents, _released_blocks(setting, contents), dataclasses.asdict(setting))

    arguments = {**dataclasses.asdict(setting), "stored": contents.stored}
    return cached("synthetic-released", arguments, contents, make)


def _released_blocks(setting: Setting, contents: Contents) -> Iterator[Shards]:
    dtype = getattr(torch, contents.stored)
    empty = _split(np.empty((0, setting.dimension)), np.empty(0, np.int64), dtype)
    for client, (train, test) in enumerate(samples(setting)):
        shards = (_split(train.x, train.y, dtype), empty, _split(test.x, test.y, dtype))
        yield Shards(np.array([client]), *shards)


def _split(x: np.ndarray, y: np.ndarray, dtype: torch.dtype) -> Split:
    return Split(torch.from_numpy(x).to(dtype), torch.from_numpy(y), np.array([0, len(y)]))


Variant = Literal["paper", "released", "corrected"]
Mixtures = Literal["dirichlet", "one_hot"]

# The seed that the published generator takes by default.
PUBLISHED_SEED = 12345

# Rows of x that are made at once, so that they are still in the cache when labelled.
BLOCK = 1024


class Synthetic(Dataset):
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
        """Return the component z of each of a client's samples, int64 (n,); -1 for constant
        labels.
        """
        if self.variant != "released":
            n = self.truth.n_train[client] if split == "train" else self.setting.n_test
            return _labelling(self.setting, self.truth, client, split, int(n))[1]
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


def make_shards(
    setting: Setting,
    truth: Truth,
    variant: Variant,
    client_ids: np.ndarray,
    dtype: torch.dtype,
) -> Shards:
    """Return the shards of ``paper`` or ``corrected``, written in place: nothing is held twice."""
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
    """Return one split of ``make_shards``."""
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
    """Write a client's split of ``paper`` or ``corrected`` to ``x`` (n, dimension) and
    ``y`` (n,).
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
    """Fills ``x`` with uniform numbers of [-1, 1): multiples of 2^-23, exact in float32."""
    words = bits.random_raw((x.size + 1) // 2).view(np.int32)[: x.size].reshape(x.shape)
    words >>= 8
    x[...] = words
    x *= 2.0**-23
