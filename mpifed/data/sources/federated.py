"""Data from a federated HDF5 file; ``federated_format`` says what is in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mpifed.data.base import Dataset, Shards
from mpifed.data.delivery import agreed, deliver
from mpifed.data.federated_file import read_contents
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator


class FederatedFile(Dataset):
    """A federated HDF5 file, as `python -m mpifed.data` writes it.

    Parameters
    ----------
    path : str
        The file.
    """

    def __init__(
        self, n_clients: int, run_seed: int, communicator: Communicator, *, path: str
    ) -> None:
        self._path = Path(path).expanduser()
        self._communicator = communicator
        self.contents = agreed(communicator, lambda: read_contents(self._path))
        self.description, self.divisor = self.contents.description, self.contents.divisor
        self.is_uint8 = self.contents.stored == "uint8"
        found = self.description.n_clients
        if found != n_clients:
            raise InputError(
                f"clients is {n_clients}, but data.path '{path}' holds {found} clients; "
                f"set clients={found} or write another file"
            )

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``; ``deliver`` says what is raised. Collective."""
        return deliver(self._path, self.contents, client_ids, dtype, self._communicator)
