"""Shards that their owner makes: every sample a function of the seed and its client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from mpifed.data.base import (
    SPLITS,
    Dataset,
    Description,
    Shards,
    Split,
    SplitName,
    Task,
    empty_split,
    same_for_all,
)
from mpifed.errors import InputError
from mpifed.watchdog import heartbeat


def parts_up_to(most: float, sizes: np.ndarray) -> Iterator[slice]:
    """Yield consecutive parts of ``sizes`` whose sum is at most ``most``, or that are one alone."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(start, stop)
        start = stop


class GeneratedDataset(Dataset):
    """Samples made client by client, on any rank and in any order."""

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x (n, *input_shape) and y (n, *target_shape) of a client's split.

        A subclass writes this, or ``_fill`` where many clients are drawn together.
        """
        raise NotImplementedError

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``."""
        train, val, test = self._splits(SPLITS, client_ids, dtype)
        return Shards(client_ids, train, val, test)

    def make_split(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """Return one split of ``client_ids``; see ``Dataset``."""
        return self._splits([name], client_ids, dtype)[0]

    def _splits(
        self, names: Sequence[SplitName], client_ids: np.ndarray, dtype: torch.dtype
    ) -> list[Split]:
        splits = [empty_split(self.description, name, client_ids, dtype) for name in names]
        for name, split in zip(names, splits, strict=True):
            self._fill(client_ids, name, split)
        return splits

    def _fill(self, client_ids: np.ndarray, name: SplitName, split: Split) -> None:
        """Write the samples of a split."""
        for position, client in enumerate(client_ids.tolist()):
            heartbeat.step()
            samples = split.of_client(position)
            if not len(samples.x):
                continue
            arrays = self._make(client, name, len(samples.x))
            for values, drawn in zip((samples.x, samples.y), arrays, strict=True):
                values.copy_(torch.from_numpy(drawn))
                if values.is_floating_point() and not np.isfinite(values.numpy()).all():
                    raise InputError(
                        f"the data set {self.description.source} with such options has a value "
                        f"that is not finite in {values.dtype} among the samples of client {client}"
                    )


def alike(
    source: str,
    input_shape: tuple[int, ...],
    n_classes: int,
    n_clients: int,
    counts: tuple[int, int, int],
    task: Task,
) -> Description:
    """Return the description of clients that all have the same number of samples."""
    n_train, n_val, n_test = (same_for_all(count, n_clients) for count in counts)
    return Description(source, input_shape, n_classes, n_train, n_val, n_test, task)
