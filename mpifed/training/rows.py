"""The state of a run with the rows of all hosted clients, in memory or on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mpifed import state as states
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint.row_file import RowFile
from mpifed.state import RunState
from mpifed.training.build import Setup


class Rows:
    """The state between rounds."""

    state: RunState

    def __init__(self, setup: Setup, file: RowFile | None) -> None:
        self._is_rows, self._hosted = setup.exchange.shared_is_rows, setup.federation.hosted
        self._keeps_values = setup.exchange.values_kept > 0
        self._file = file
        self._own: list[torch.Tensor] = []
        """Tensors of the state that have no other owner."""
        self._changed: tuple[RunState, np.ndarray] | None = None
        """The rows that the last round changed, and their clients; None for all."""

    @property
    def on_disk(self) -> bool:
        """Whether the rows are in a file."""
        return self._file is not None

    def release(self) -> None:
        """Give back memory of rows on disk that were read."""
        if self._file is not None:
            self._file.release()

    def take(self, state: RunState) -> None:
        """Replace the whole state."""
        self._changed, self._own = None, []
        if self._file is not None:
            state = self._file.hold(state, self._is_rows)
            self._claim(state)
        self.state = state

    def read(self, path: Path) -> None:
        """Replace the whole state by that of a checkpoint."""
        release = self.release if self.on_disk else None
        self.state = checkpoint.read_state(path, self.state, self._is_rows, self._hosted, release)
        self._changed = None
        self._claim(self.state)

    def of(self, here: np.ndarray) -> RunState:
        """Return the state of some hosted clients, or the state itself where these are all."""
        if len(here) == len(self._hosted):
            return self.state
        if self._keeps_values:
            rows = torch.from_numpy(here)
            part = states.select(self.state.algorithm, rows, self._is_rows)
            return RunState(part, self.state.memory)
        return states.select(self.state, torch.from_numpy(here), self._is_rows)

    def merge(self, moved: RunState, here: np.ndarray) -> None:
        """Replace the rows of some hosted clients, and all that has no client axis."""
        if len(here) == len(self._hosted):
            self.take(moved)
        elif self._keeps_values:
            rows, before = torch.from_numpy(here), self.state
            after = states.merge(before.algorithm, moved.algorithm, rows, self._is_rows, self._own)
            self.state = RunState(after, before.memory)
            self._claim(self.state)
        else:
            rows = torch.from_numpy(here)
            self.state = states.merge(self.state, moved, rows, self._is_rows, self._own)
            self._claim(self.state)
        # What is kept of rows has been checked before it was.
        checked = RunState(moved.algorithm) if self._keeps_values else moved
        self._changed = checked, self._hosted[here]
        self.release()

    def unchecked(self) -> tuple[RunState, np.ndarray]:
        """Return what may hold numbers that are not finite since the last call, and its clients."""
        found, self._changed = self._changed, (self.state, self._hosted[:0])
        if found is None:
            return self.state, self._hosted
        return found

    def _claim(self, state: RunState) -> None:
        found = states.tensors(state, self._is_rows)
        self._own = [tensor for _, tensor, is_rows in found if is_rows]


def rows_of(setup: Setup, directory: Path | None) -> Rows:
    """Return the place for the rows of the clients hosted here."""
    options = setup.configuration.storage
    if options.state == "memory":
        return Rows(setup, None)
    return Rows(setup, RowFile(Path(options.directory or directory or ".")))
