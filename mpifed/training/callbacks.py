"""Who is told of recorded rounds: a function of the user's program, and a tracker."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mpifed.config.configuration import to_mapping
from mpifed.errors import InputError
from mpifed.io.atomic import replace_bytes
from mpifed.io.text import damaged, read_json
from mpifed.tracking import TRACKERS, About, Sending
from mpifed.training.build import Setup
from mpifed.training.callback import RecordedRound, callback, recorded, telling
from mpifed.training.request import Request, Task

# What trackers call the run, in the run directory; a resumed run continues it.
FILE = "tracking.json"

NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class Hearers:
    """Who is told of recorded rounds; all methods are collective."""

    tell: Callable[[RecordedRound | None], None]
    sending: Sending | None
    rounds: int

    def __call__(self, scores: Mapping[str, Any]) -> None:
        """Tell all of a row of metrics.csv, which is empty on all ranks but rank 0."""
        heard = recorded(scores, self.rounds) if scores else None
        if heard is not None and self.sending is not None:
            self.sending.row(heard.round, heard.row)
        self.tell(heard)

    def close(self, status: str) -> None:
        """Wait for a tracker, for a bounded time, after the last round."""
        if self.sending is not None:
            self.sending.close(status)


def hearers_of(setup: Setup, task: Task, request: Request, round: int) -> Hearers:
    """Return who is told of a run; collective."""
    communicator, configuration = setup.federation.communicator, setup.configuration
    first = communicator.rank == 0
    tell = telling(communicator, callback(request.on_round) if first else None)
    sending = None
    if first and request.track is not None:
        about = About(
            task.output,
            task.output.resolve().name,
            to_mapping(configuration),
            round + 1 if task.point is not None else 0,
            _known(task.output / FILE).get(request.track),
            partial(_remember, task.output / FILE, request.track),
        )
        sending = Sending(request.track, partial(TRACKERS[request.track][0], about))
    return Hearers(tell, sending, configuration.rounds)


def _known(path: Path) -> dict[str, str]:
    """Return what trackers call the run; nothing, with a warning, for a damaged file."""
    if not path.exists():
        return {}
    try:
        found = read_json(path)
        if not isinstance(found, dict) or not all(
            name in TRACKERS and isinstance(value, str) and NAME.fullmatch(value)
            for name, value in found.items()
        ):
            raise damaged(path, "it does not hold names of runs by tracker")
        return found
    except InputError as error:
        logging.getLogger("mpifed").warning(f"{error}; the tracker begins a new run")
        return {}


def _remember(path: Path, tracker: str, name: str) -> None:
    import json

    with contextlib.suppress(InputError):
        found = {**_known(path), tracker: name}
        replace_bytes(path, (json.dumps(found) + "\n").encode())
