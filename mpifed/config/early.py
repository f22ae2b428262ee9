"""What a command finds in its words before torch and MPI are imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from mpifed.components.absent import OWN, refuse_absent
from mpifed.components.registry import checked_options, complete, find, named
from mpifed.components.tables import TABLES
from mpifed.components.without_torch import LARGE, stand_ins
from mpifed.config.configuration import check_names, resolve, with_name
from mpifed.config.experiments import (
    DEFAULT_EXPERIMENT,
    DEFAULTS,
    YAML_FILES,
    apply_overrides,
    read_experiment,
)
from mpifed.errors import InputError
from mpifed.watchdog.heartbeat import STALL_LIMIT
from mpifed.watchdog.launcher import launched_rank

# Options that may name a user's function of the package ``topologies``.
TOPOLOGIES = ("topology", "weights", "schedule")


def check_early(experiment: str | None, overrides: Mapping[str, Any]) -> None:
    """Refuse what needs neither torch nor data."""
    own = experiment is not None and experiment.endswith(YAML_FILES)
    if own and launched_rank() is not None:
        mapping = written(experiment)
    else:
        mapping = read_experiment(DEFAULT_EXPERIMENT if experiment is None else experiment)
    if mapping is not None:
        # What mpifed comes with is right.
        _check(mapping, overrides, bool(own or overrides))


def check_changes(stored: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Refuse what ``check_early`` does, of a configuration that a run has stored."""
    _check(stored, overrides, True)


def refuse_absent_in(overrides: Mapping[str, Any]) -> None:
    """Refuse a user's objects that overrides name and their modules do not have."""
    for key, value in overrides.items():
        place = key.removesuffix(".name")
        kind = place.rpartition(".")[2]
        for each in value if isinstance(value, list) else [value]:
            if kind in (*TABLES, *TOPOLOGIES) and isinstance(each, str) and OWN.fullmatch(each):
                in_table = kind in TABLES
                refuse_absent(each, place + ".name" * in_table)


def _check(mapping: Mapping[str, Any], overrides: Mapping[str, Any], completely: bool) -> None:
    with stand_ins(*LARGE):
        mapping = apply_overrides(mapping, overrides)
    n_training = check_names(mapping).n_training
    sections = {
        section: named(with_name(section, mapping.get(section, default)), section, default)
        for section, default in DEFAULTS.items()
    }
    for section, (name, options) in sections.items():
        _refuse_absent_objects(section, name, options)
    if completely:
        with stand_ins(*LARGE):
            _check_components(mapping, sections, n_training)


def _refuse_absent_objects(section: str, name: str, options: Mapping[str, Any]) -> None:
    """Refuse objects of a user, in place of a component or of one of its options."""
    if ":" in name:
        refuse_absent(name, f"{section}.name")
    for option, value in options.items():
        inner = value.get("name") if isinstance(value, Mapping) else value
        if option in (*TABLES, *TOPOLOGIES) and isinstance(inner, str) and OWN.fullmatch(inner):
            refuse_absent(inner, f"{section}.{option}" + ".name" * (option in TABLES))


def _check_components(
    mapping: Mapping[str, Any], sections: Mapping[str, tuple[str, Any]], n_training: int
) -> None:
    """Refuse what ``configuration.resolve`` does, as far as stand-ins for libraries let it
    tell.
    """
    is_counted = mapping.get("clients") != "ranks"
    own = {key for key, given in sections.items() if any(map(OWN.fullmatch, _texts(given)))}
    if is_counted and not own:
        _try(lambda: resolve(mapping))
        return
    for key, (name, options) in sections.items():
        if ":" not in name:
            _try(partial(_check_options, key, name, options))
        if is_counted and key not in own:
            given = {"name": name, **options}
            _try(partial(complete, key, given, key, DEFAULTS[key], n_training))


def _check_options(section: str, name: str, options: Mapping[str, Any]) -> None:
    checked_options(section, find(section, name), options, section)


def _try(check: Callable[[], object]) -> None:
    """Call a check; of its failures, raise what stand-ins cannot have caused."""
    with stand_ins(*LARGE) as were_called:
        try:
            check()
        except InputError as error:
            # One with a cause is about a failure, for which a stand-in may be the reason.
            if error.__cause__ is None and not were_called():
                raise
        except Exception:
            return


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value: keys of mappings, items of lists, and texts."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def written_stall_limit(experiment: str | None, overrides: Mapping[str, Any]) -> float | None:
    """Return ``stall_limit`` as written, for the time before the configuration is complete."""
    mapping = (written(experiment) if experiment is not None else None) or {}
    found = {"stall_limit": STALL_LIMIT, **mapping, **overrides}["stall_limit"]
    usable = found is None or (type(found) in (int, float) and 0 < found < 1e18)
    return found if usable else STALL_LIMIT


def written(experiment: str | None) -> dict[str, Any] | None:
    """Return an experiment as written; None where its file cannot be read."""
    try:
        return read_experiment(DEFAULT_EXPERIMENT if experiment is None else experiment)
    except InputError:
        return None
