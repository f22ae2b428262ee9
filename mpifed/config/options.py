"""The sections ``evaluation``, ``checkpoint`` and ``storage``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt

from mpifed.errors import InputError
from topologies.errors import excerpt
from topologies.parameters import FileName
from topologies.schema import LARGEST

# Weights of averages over clients, see ``EvaluationOptions``.
ClientWeights = Literal["scored", "train", "uniform"]

# A column, a sign and a number.
CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


class Condition(NamedTuple):
    """What ``evaluation.stop_at`` says of a column of metrics.csv."""

    column: str
    sign: str
    bound: float


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
        One test set for the shared model: a file or directory of features and labels as the data
        have, of CSV, parquet, .npz or pictures, a federated HDF5 file, or ``holdout``, the samples
        that the source was published with for testing, else half of each client's test samples,
        which no client then has.
    stop_at : str, optional
        The run stops, with a checkpoint and status ``stopped_at``, at the first evaluated round
        where this holds of a column of metrics.csv: ``test_accuracy>=0.8``, or with <=, > or <.
    patience : int, optional
        The run stops so after as many evaluations without a better value of ``checkpoint.best``,
        or of ``validation_accuracy`` where that is not set (``validation_loss`` where the task has
        no accuracy).
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 10
    unseen_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    unseen_shares: list[Annotated[float, Ge(0), Le(1)]] | None = None
    validation_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    validation_split: bool = False
    client_weights: ClientWeights = "scored"
    sample: Annotated[float, Gt(0), Le(1)] = 1.0
    metrics: str | list[str] | None = None
    central: Literal["holdout"] | FileName | None = None
    stop_at: str | None = None
    patience: Annotated[int, Ge(1), Le(LARGEST)] | None = None

    def __post_init__(self) -> None:
        """Refuse a condition of another form."""
        if self.stop_at is not None and not CONDITION.fullmatch(self.stop_at):
            raise InputError(
                f"evaluation.stop_at is {excerpt(self.stop_at)}; it must be a column of "
                "metrics.csv, one of >=, <=, >, < and a number, such as 'test_accuracy>=0.8'"
            )

    @property
    def condition(self) -> Condition | None:
        """What ``stop_at`` says."""
        parts = CONDITION.fullmatch(self.stop_at) if self.stop_at is not None else None
        return Condition(parts[1], parts[2], float(parts[3])) if parts is not None else None

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
    best : str, optional
        Column of metrics.csv. The evaluated round with its best value, the earliest of several, is
        stored as well and kept, for ``mpifed.load(RUN, "best")``. Accuracies and other scores of
        which more is better go up; losses and other columns go down.
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 50
    minutes: Annotated[float, Gt(0)] | None = 10.0
    keep: Annotated[int, Ge(1), Le(LARGEST)] = 2
    best: str | None = None


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
