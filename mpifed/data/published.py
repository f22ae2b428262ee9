"""The synthetic benchmark as the published generator makes it, number for number.

That generator (Marfoq et al. 2021, the released code) draws everything from one sequential stream,
numpy's legacy MT19937, and its labels have a defect: the position where a component's labels go is
never advanced, so that every component writes from the first row. With counts c_1 .. c_M of a
client, the first c_M rows are labelled by component M, rows c_M to c_{M-1} (if there are any) by
component M-1 and so on, and rows from max(c) on keep the label 0 whatever their x. The data are
therefore not a mixture with the weights drawn; about a quarter of the labels are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mpifed.errors import InputError

SMALLEST, LARGEST = 50, 1000
"""Training samples of a client: at least the one, at most the other."""


@dataclass(frozen=True)
class Setting:
    """Arguments of a synthetic benchmark.

    Attributes
    ----------
    n_clients : int
        Number of clients.
    n_components : int
        Number of linear classifiers, M.
    dimension : int
        Number of inputs, d.
    dirichlet_alpha : float
        Concentration of the mixture weights.
    noise : float
        Standard deviation of eps in the sigmoid.
    n_test : int
        Test samples of each client.
    seed : int
        Seed of everything.
    """

    n_clients: int
    n_components: int
    dimension: int
    dirichlet_alpha: float
    noise: float
    n_test: int
    seed: int


@dataclass(frozen=True)
class Truth:
    """What a benchmark was made from.

    Attributes
    ----------
    mixture_of : callable
        pi of a client, float64 (n_components,), which sums to one.
    components : ndarray
        theta, float64 (n_components, dimension).
    n_train : ndarray
        Training samples of each client, int64 (n_clients,).
    """

    mixture_of: Callable[[int], np.ndarray]
    components: np.ndarray
    n_train: np.ndarray

    @property
    def mixture(self) -> np.ndarray:
        """pi of all clients, float64 (n_clients, n_components)."""
        return np.stack([self.mixture_of(client) for client in range(len(self.n_train))])


@dataclass(frozen=True)
class Sample:
    """A split of one client.

    Attributes
    ----------
    x : ndarray
        Inputs, float64 (n, dimension).
    y : ndarray
        Labels 0 or 1, int64 (n,).
    latent : ndarray
        The component that made the label, int64 (n,); -1 where none did and the label stayed 0.
    """

    x: np.ndarray
    y: np.ndarray
    latent: np.ndarray


def begin(setting: Setting) -> tuple[np.random.RandomState, Truth]:
    """Return the stream at the point where the samples are to be drawn, and the truth.

    Raises
    ------
    InputError
        For a seed or a ``dirichlet_alpha`` that the published generator cannot use.
    """
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
    """Return the label that the released code gives: the sigmoid, rounded half to even; int64.

    Examples
    --------
    >>> rounded_sigmoid(np.array([-1.0, 0.0, 1.0]))
    array([0, 0, 1])
    """
    return np.round(sigmoid(logits)).astype(np.int64)
