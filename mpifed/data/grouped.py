"""Base class of data sets whose samples come from sources: writers, roles, users, clinics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from mpifed.data.dealt import DealtDataset, Source
from mpifed.data.natural import Choose
from mpifed.mpi.communicator import Communicator

GroupedName = Literal["natural", "contiguous", "dirichlet", "iid", "pathological", "quantity_skew"]


class GroupedDataset(DealtDataset):
    """Samples that each come from a source, which by default is a client.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients: each gets all samples of one source (``natural``), or
        they are dealt whoever they come from.
    choose : {'random', 'first', 'largest'}
        Which sources are taken in the partition ``natural`` where there are more than clients.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        read: Callable[[], Source],
        *,
        partition: GroupedName = "natural",
        choose: Choose = "random",
        **options: Any,
    ) -> None:
        options["partition"] = partition
        super().__init__(n_clients, run_seed, communicator, read, {"choose": choose}, **options)
