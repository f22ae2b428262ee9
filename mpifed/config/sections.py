"""Sections of a configuration that name no component; ``mpifed.local.options`` has ``local``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from mpifed.components.schema import LARGEST
from mpifed.errors import InputError

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
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 10
    unseen_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    unseen_shares: list[Annotated[float, Ge(0), Le(1)]] | None = None
    validation_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    validation_split: bool = False
    client_weights: ClientWeights = "scored"
    sample: Annotated[float, Gt(0), Le(1)] = 1.0

    def __post_init__(self) -> None:
        if self.unseen_shares and not self.unseen_fraction:
            raise InputError(
                "evaluation.unseen_shares is given, but evaluation.unseen_fraction is 0, so that "
                "no client is unseen; allowed: a fraction above 0"
            )
        if self.validation_fraction and self.validation_split:
            raise InputError(
                "evaluation.validation_split is true, but evaluation.validation_fraction is "
                f"{self.validation_fraction:g}; at most one of them may be set"
            )

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
    keep : int
        Checkpoints that are kept. Older ones are removed when a new one is complete.
    """

    every: Annotated[int, Ge(1), Le(LARGEST)] = 50
    keep: Annotated[int, Ge(1), Le(LARGEST)] = 2


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """The section ``storage``: where samples and states of clients are; it changes no number.

    Parameters
    ----------
    samples : float, optional
        Megabytes of samples that a rank holds, or more where those in use are more. Others are
        made again when they are needed, where the data set makes clients one by one. None is the
        samples of all clients, or 192 MB where ``evaluation.sample`` is below 1.
    state : {'memory', 'disk'}
        Where the rows of the clients' state are between rounds. Rows on disk are read for the
        participants of a round, and written back.
    directory : str, optional
        Where the rows on disk are, for instance a local disk of the node. None is the file system
        of the run directory. The file has no name, so that it ends with the process.
    """

    samples: Annotated[float, Ge(0), Le(LARGEST)] | None = None
    state: Literal["memory", "disk"] = "memory"
    directory: str | None = None
