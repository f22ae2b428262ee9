"""Data that a run described in its checkpoint, made only where samples are needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from mpifed.data.base import Dataset, Description, Fresh, Shards
from mpifed.errors import InputError


class Recorded(Dataset):
    """A data set of which the description is known."""

    def __init__(self, description: Description, make: Callable[[], Dataset]) -> None:
        self.description = description
        self._make = make

    @cached_property
    def _made(self) -> Dataset:
        """The data set itself; raises ``InputError`` where it is not at hand, or is another one."""
        made = self._make()
        for name in ("input_shape", "n_classes", "task", "n_train", "n_val", "n_test"):
            here, then = getattr(made.description, name), getattr(self.description, name)
            if not np.array_equal(here, then):
                raise InputError(
                    f"the data '{made.description.source}' are not those of the run: they differ "
                    f"in {name}"
                )
        return made

    @property
    def fresh(self) -> Fresh | None:  # type: ignore[override]
        """Draws new samples where the source can."""
        return self._made.fresh

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        return self._made.load(client_ids, dtype)
