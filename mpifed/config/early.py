"""What a command finds in its words before torch and MPI are imported, which takes seconds.

Every rank reads the experiment here. A file that cannot be read is left to the ranks, if there are
several, which read it again on one of them and fail together.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from mpifed.components.elsewhere import words_of
from mpifed.components.registry import checked_options, complete, find, load, named
from mpifed.components.tables import TABLES
from mpifed.components.without_torch import LARGE, stand_ins
from mpifed.config.configuration import check_names, with_name
from mpifed.config.experiment_files import (
    DEFAULT_EXPERIMENT,
    DEFAULTS,
    YAML_FILES,
    apply_overrides,
    read_experiment,
)
from mpifed.data.named_files import check_named_files
from mpifed.errors import InputError
from mpifed.supervision.heartbeat import STALL_LIMIT
from mpifed.supervision.launcher import launched_rank

TOPOLOGIES = {
    "topology": "topologies.families",
    "weights": "topologies.weights",
    "schedule": "topologies.schedule_table",
}
"""Modules that have the names of graphs, weights and schedules in a table, by option."""


def check_early(
    experiment: str | None, overrides: Mapping[str, Any], with_files: bool | None = None
) -> None:
    """Refuse what needs neither torch nor data: unknown keys and names, types and bounds.

    Parameters
    ----------
    experiment : str or None
        Name or path of the experiment; None is the default one.
    overrides : mapping
        Values by dotted key.
    with_files : bool, optional
        Whether files of data that are not there are refused too; by default where no launcher has
        started this process, since ranks may see other files and look together.

    Raises
    ------
    InputError
        In the words of ``configuration.resolve``, which checks the rest.
    """
    own = experiment is not None and experiment.endswith(YAML_FILES)
    if own and launched_rank() is not None:
        mapping = written(experiment)
    else:
        mapping = read_experiment(DEFAULT_EXPERIMENT if experiment is None else experiment)
    if mapping is not None:
        shipped = {} if own else mapping
        with stand_ins(*LARGE):
            mapping = apply_overrides(mapping, overrides)
        n_training = check_names(mapping).n_training
        look = launched_rank() is None if with_files is None else with_files
        _check_components(mapping, shipped, n_training, look)


def _check_components(
    mapping: Mapping[str, Any], shipped: Mapping[str, Any], n_training: int, with_files: bool
) -> None:
    """Refuse options of components that these do not have, and values that are no word of theirs.

    A word is looked for in the text of the component's module. Where it is not there, which it
    need not be if it is inherited or is a user's, the section is completed, with stand-ins for
    large libraries. What that cannot tell is left to ``configuration.resolve``, and values that an
    experiment was shipped with are right.
    """
    for section, default in DEFAULTS.items():
        given = with_name(section, mapping.get(section, default))
        name, options = named(given, section, default)
        if ":" in name:
            refuse_missing_module(name, f"{section}.name")
        elif _is_doubtful(section, name, options, shipped.get(section)):
            with stand_ins(*LARGE) as were_called:
                try:
                    checked_options(section, find(section, name), options, section)
                    if _is_settled(mapping, options):
                        complete(section, given, section, default, n_training)
                except InputError as error:
                    # One with a cause is about a failure, for which a stand-in may be the reason.
                    if error.__cause__ is None and not were_called():
                        raise
                except Exception:
                    continue
        if section == "data" and with_files:
            check_named_files(name, options)


def _is_settled(mapping: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether a section can be completed: clients are counted, and no module is a user's."""
    return mapping.get("clients") != "ranks" and not any(":" in text for text in _texts(options))


def _is_doubtful(section: str, name: str, options: Mapping[str, Any], shipped: Any) -> bool:
    """Return whether a word of the options is none of the component's module."""
    known = words_of(TABLES[section][name].partition(":")[0])
    before, right = named(shipped, section, DEFAULTS[section])
    if not set(map(str, options)) <= known | (set(right) if before == name else set()):
        return True
    for option, value in options.items():
        inner = value.get("name") if isinstance(value, Mapping) else value
        if not isinstance(inner, str):
            continue
        if option in TOPOLOGIES:
            entry = words_of(TOPOLOGIES[option], inner)
            if not set(map(str, value if isinstance(value, Mapping) else ())) <= entry | {"name"}:
                return True
            known |= entry
        elif inner in TABLES.get(option, ()):
            known |= words_of(TABLES[option][inner].partition(":")[0]) | {inner}
    return not set(_texts(list(options.values()))) <= known | {"name", *_texts(right)}


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value: keys of mappings, items of lists, and texts."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def refuse_missing_module(name: str, field: str) -> None:
    """Refuse a user's object whose module is nowhere; it is not imported where it is there.

    Parameters
    ----------
    name : str
        ``package.module:object``.
    field : str
        The name's place in the configuration, for messages.

    Raises
    ------
    InputError
        If there is no such module.
    """
    module = name.partition(":")[0]
    package = module.partition(".")[0]
    is_sought = package.isidentifier() and package not in sys.modules
    if "/" in module or (is_sought and importlib.util.find_spec(package) is None):
        load(name, field)


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
