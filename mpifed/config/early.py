"""What a command finds in its words before torch and MPI are imported, which takes seconds.

Every rank reads the experiment here. A file that cannot be read is left to the ranks, which read it
again on one of them and fail together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifed.config.configuration import check_names
from mpifed.config.experiment_files import DEFAULT_EXPERIMENT, apply_overrides, read_experiment
from mpifed.errors import InputError
from mpifed.supervision.heartbeat import STALL_LIMIT


def check_early(experiment: str | None, overrides: Mapping[str, Any]) -> None:
    """Refuse what needs neither torch nor data: unknown keys and names, types and bounds.

    Parameters
    ----------
    experiment : str or None
        Name or path of the experiment; None is the default one.
    overrides : mapping
        Values by dotted key.

    Raises
    ------
    InputError
        In the words of ``configuration.resolve``, which checks the rest.
    """
    written = _written(DEFAULT_EXPERIMENT if experiment is None else experiment)
    if written is not None:
        check_names(apply_overrides(written, overrides))


def written_stall_limit(experiment: str | None, overrides: Mapping[str, Any]) -> float | None:
    """Return ``stall_limit`` as written, for the time before the configuration is complete.

    Parameters
    ----------
    experiment, overrides
        As for ``check_early``, except that no experiment says nothing.

    Returns
    -------
    float or None
        Seconds; the default where what is written cannot be used.
    """
    written = (_written(experiment) if experiment is not None else None) or {}
    found = {"stall_limit": STALL_LIMIT, **written, **overrides}["stall_limit"]
    usable = found is None or (type(found) in (int, float) and 0 < found < 1e18)
    return found if usable else STALL_LIMIT


def _written(experiment: str) -> dict[str, Any] | None:
    try:
        return read_experiment(experiment)
    except InputError:
        return None
