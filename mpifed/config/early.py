"""What a command finds in its words before torch and MPI are imported, which takes seconds.

Every rank reads the experiment here. A file that cannot be read is left to the ranks, which read it
again on one of them and fail together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifed.components.elsewhere import words_of
from mpifed.components.registry import checked_options, find, named
from mpifed.components.tables import TABLES
from mpifed.components.without_torch import without_torch
from mpifed.config.configuration import check_names
from mpifed.config.experiment_files import (
    DEFAULT_EXPERIMENT,
    DEFAULTS,
    YAML_FILES,
    apply_overrides,
    read_experiment,
)
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
    if experiment is not None and not experiment.endswith(YAML_FILES):
        read_experiment(experiment)  # refuses an unknown name, for which no file is read
    mapping = written(experiment)
    if mapping is not None:
        mapping = apply_overrides(mapping, overrides)
        check_names(mapping)
        _check_options(mapping)


def _check_options(mapping: Mapping[str, Any]) -> None:
    """Refuse options of components that these do not have.

    An option is looked for in the text of the module. Where it is not there, which it need not be
    if it is inherited, the component's declaration is read, without torch.
    """
    for section, default in DEFAULTS.items():
        name, given = named(mapping.get(section, default), section, default)
        path = TABLES[section].get(name)
        if path is not None and not set(map(str, given)) <= words_of(path.partition(":")[0]):
            with without_torch():
                checked_options(section, find(section, name), given, section)


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
    mapping = (written(experiment) if experiment is not None else None) or {}
    found = {"stall_limit": STALL_LIMIT, **mapping, **overrides}["stall_limit"]
    usable = found is None or (type(found) in (int, float) and 0 < found < 1e18)
    return found if usable else STALL_LIMIT


def written(experiment: str | None) -> dict[str, Any] | None:
    """Return an experiment as written; None where its file cannot be read.

    Parameters
    ----------
    experiment : str or None
        Name or path of the experiment; None is the default one.
    """
    try:
        return read_experiment(DEFAULT_EXPERIMENT if experiment is None else experiment)
    except InputError:
        return None
