"""The sections ``evaluation``, ``checkpoint`` and ``storage``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from topologies.schema import LARGEST

# Weights of averages over clients, see ``EvaluationOptions``.
ClientWeights = Literal["scored", "train", "uniform"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The section ``evaluation``: when clients are scored, and on what.

    Parameters
    ----------
    every : int
        Rounds between evaluations. Round 0 and the last round are evaluated as well.
    unseen_fraction : float
        Share of the clients that take no part in training.
    unseen_shares : list of float, optional
        Shares of their training samples with which unseen clients are also scored, after the last
        round: ``test_accuracy_by_share`` in clients.h5.
    validation_fraction : float
        Share of each client's training samples that is held out and scored.
    validation_split : bool
        Whether the validation samples that the data have are scored.
    client_weights : {'scored', 'train', 'uniform'}
        Weights of averages over clients: the samples of the split that is scored, the training
        samples n_t, as in Marfoq et al. 2021, or one each.
    sample : float
        Share of the clients that an evaluation scores. Which ones is drawn anew for each
        evaluation, from the seed and the round alone. Averages are over these clients, and
        clients.h5 holds those of the last evaluation.
    metrics : str or list of str, optional
        Further scores of predictions, of each client and of all: names of ``--list metrics``, or
        ``module:function`` of your own.
    central : str, optional
        One test set for the shared model: a file, or ``holdout``, the samples that the source was
        published with for testing, else half of each client's test samples, which no client then
        has.
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 10
    unseen_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    unseen_shares: list[Annotated[float, Ge(0), Le(1)]] | None = None
    validation_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    validation_split: bool = False
    client_weights: ClientWeights = "scored"
    sample: Annotated[float, Gt(0), Le(1)] = 1.0
    metrics: str | list[str] | None = None
    central: str | None = None

    @property
    def metric_names(self) -> list[str]:
        """The names in ``metrics``, each once."""
        names = [self.metrics] if isinstance(self.metrics, str) else self.metrics or []
        return list(dict.fromkeys(names))

    @property
    def validates(self) -> bool:
        """Whether validation samples are scored."""
        return bool(self.validation_fraction) or self.validation_split


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The section ``checkpoint``: when the state is stored, and how many copies stay.

    Parameters
    ----------
    every : int
        Rounds between checkpoints. The last round and a stop on request are stored as well.
    minutes : float, optional
        Minutes after which the next round is stored, whichever comes first. None is never.
    keep : int
        Checkpoints that are kept. Older ones are removed when a new one is complete.
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 50
    minutes: Annotated[float, Gt(0)] | None = 10.0
    keep: Annotated[int, Ge(1), Le(LARGEST)] = 2


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """The section ``storage``: how many samples are in memory; it changes no number.

    Parameters
    ----------
    samples : float, optional
        Megabytes of samples that a rank holds, or more where those in use are more. Others are
        made again when they are needed, where the data set makes clients one by one. None is the
        samples of all clients, or 96 MB where ``evaluation.sample`` is below 1 or where partial
        participation would leave more of them idle.
    """

    samples: Annotated[float, Ge(0), Le(LARGEST)] | None = None
