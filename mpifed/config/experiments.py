"""Experiments as written: YAML files, and overrides on the command line."""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpifed.components.registry import find, named, without_module
from mpifed.components.tables import (
    DATASETS,
    FILE_OPTIONS,
    IN_DIRECTORIES,
    MODELS_OF_DATA,
    OWN_DATA,
)
from mpifed.errors import InputError, closest
from mpifed.io.text import refuse_spreadsheet
from mpifed.io.yaml_files import line_of, parse_value, read_yaml
from topologies.errors import excerpt
from topologies.parameters import options_of

EXPERIMENTS = Path(__file__).parents[1] / "experiments"

DEFAULT_EXPERIMENT = "synthetic-fedem"
# The data set that reads a file, by the ending of its name.
READERS = {ending: name for name, endings in OWN_DATA.items() for ending in endings}

YAML_FILES = (".yaml", ".yml")

# The component of each section that names none.
DEFAULTS = {
    "data": "synthetic",
    "model": "linear",
    "algorithm": "fedem",
    "exchange": "server",
    "compression": "none",
    "server_optimizer": "sgd",
    "attack": "none",
}

LONGEST = 120

# The key with which a message begins.
KEY = re.compile(r"(?:Unknown (?:option|configuration key) )?'?([\w.]+)")


def experiment_names() -> list[str]:
    """Return the names of the shipped experiments, sorted."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def is_experiment(word: str) -> bool:
    """Return whether a word of the command line is an experiment and not an override."""
    return "=" not in word or (word.endswith(YAML_FILES) and Path(word).is_file())


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Divide the words of a command into the experiment and the overrides."""
    for k, (before, word) in enumerate(pairwise(words)):
        stray = before.endswith("=") and is_experiment(word) and word not in experiment_names()
        if word.startswith("=") or (stray and not word.endswith(YAML_FILES)):
            spaced = words[k : k + 2 + (word == "=")]
            raise InputError(
                f"{excerpt(' '.join(spaced))} is {len(spaced)} words; leave out the spaces around "
                f"the sign: {''.join(spaced)}"
            )
    experiments = [word for word in words if is_experiment(word)]
    if len(experiments) > 1:
        raise InputError(
            f"Two experiments are named, {excerpt(experiments[0])} and {excerpt(experiments[1])}; "
            "name one, and write overrides as key=value"
        )
    overrides = [word for word in words if word not in experiments]
    return (experiments[0] if experiments else None), overrides


def read_experiment(name: str | None, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a shipped experiment or a YAML file.

    Without a name it is that of the user's own data or model in ``overrides``, or else
    ``DEFAULT_EXPERIMENT``.
    """
    if name is None:
        name = DEFAULT_EXPERIMENT
        experiment = experiment_for_own(overrides or {})
        if experiment is not None:
            return experiment
    if name in experiment_names():
        return _mapping_in(EXPERIMENTS / f"{name}.yaml")
    path = Path(name)
    if path.suffix not in YAML_FILES:
        if path.is_file():
            raise InputError(f"{excerpt(name)} is no experiment; did you mean data={name}?")
        raise InputError(
            f"Unknown experiment {excerpt(name)}; {closest(name, experiment_names())}, "
            "or the path of a .yaml file"
        )
    return _mapping_in(path)


@contextmanager
def naming_line(experiment: str | None, overrides: Iterable[str]) -> Iterator[None]:
    """Name the line of a YAML file in the message about a key that it has, but for overrides."""
    try:
        yield
    except InputError as error:
        first, path = KEY.match(str(error)), Path(experiment or "")
        if first is not None and path.suffix in YAML_FILES and path.is_file():
            key, section = first[1], first[1].rpartition(".")[0]
            is_overridden = any(f".{each}." in f".{key}." for each in overrides)
            has_section = key.endswith(".name") or f"{key} is missing" in str(error)
            line = line_of(path, key) or (line_of(path, section) if has_section else None)
            if line is not None and not is_overridden:
                error.args = (f"{path}, line {line}: {error}",)
        raise


def experiment_for_own(overrides: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the experiment for a user's own data or model, with FedAvg; None without such."""
    sections = {
        key: value[0] if isinstance(value, list) and value else value  # of a sweep the first
        for key, value in overrides.items()
        if key.partition(".")[0] in ("data", "model")
    }
    mapping = with_overrides({}, sections)
    data, options = named(mapping.get("data"), "data", DEFAULTS["data"])
    model, _ = named(mapping.get("model"), "model", DEFAULTS["model"])
    experiment: dict[str, Any] = {
        "experiment": f"{data}-{without_module(model)}",
        "algorithm": "fedavg",
    }
    if data not in OWN_DATA and ":" not in data:
        return experiment if ":" in model else None
    file_name = Path(str(options.get("path") or options.get("raw") or without_module(data))).name
    ending = next(filter(file_name.lower().endswith, READERS), "")
    experiment["experiment"] = file_name[: len(file_name) - len(ending)]
    if data in OWN_DATA:
        experiment["clients"] = "data"
    if data in MODELS_OF_DATA and "model" not in mapping:
        experiment["model"] = MODELS_OF_DATA[data]
    return experiment


def _mapping_in(path: Path) -> dict[str, Any]:
    mapping = read_yaml(path)
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise InputError(f"{path} does not hold a mapping of keys to values")
    mapping.setdefault("experiment", path.stem)
    return mapping


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return words ``key=value`` as a mapping of dotted keys to YAML values."""
    overrides = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise InputError(
                f"{excerpt(word)} is neither an experiment nor an override of the form key=value"
            )
        overrides[key] = parse_value(text, key)
    return overrides


def with_overrides(mapping: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping in which dotted keys are set."""
    result = copy.deepcopy(dict(mapping))
    overrides = dict(_option_by_option(dict(_with_readers(overrides)), result))
    data = overrides.get("data.name", overrides.get("data"))
    selects = data is None and not _takes_path(result.get("data"))
    settings = [_setting(selects, key, value) for key, value in overrides.items()]
    for parts, value, key in sorted(settings, key=lambda setting: len(setting[0])):
        _set(result, parts, value, key)
    return result


def _with_readers(overrides: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield overrides, with a file for ``data`` as the data set that reads it and its path."""
    for key, value in overrides.items():
        short = as_data_file(value) if key in ("data", "data.name") else value
        if short is value:
            yield key, value
        else:
            yield from (("data", short["name"]), (f"data.{list(short)[1]}", value))


def _option_by_option(
    overrides: Mapping[str, Any], mapping: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield overrides, and those that hold options alone option by option, dotted keys last."""
    for key, value in sorted(overrides.items(), key=lambda override: override[0].count(".")):
        there: Any = mapping
        for part in key.split("."):
            there = there.get(part) if isinstance(there, Mapping) else None
        within = isinstance(there, Mapping) and ("name" in there or "." not in key)
        only_options = isinstance(value, Mapping) and value and "name" not in value
        if only_options and (within or (isinstance(there, str) and key in DEFAULTS)):
            inner = {f"{key}.{option}": new for option, new in value.items()}
            yield from _option_by_option(inner, mapping)
        else:
            yield key, value


def _setting(selects: bool, key: str, value: Any) -> tuple[list[str], Any, str]:
    """Return an override as (place, value, key) without shorthands.

    Where ``selects``, ``data.path`` names the data set by its file, whatever the experiment does.
    """
    parts = key.split(".")
    if parts[-1] == "name" and isinstance(value, str) and parts[0] in (*DEFAULTS, "participation"):
        parts = parts[:-1]
    if parts == ["data", "path"] and selects:
        file = as_data_file(value)
        first = next(iter(OWN_DATA))
        parts, value = ["data"], {"name": first, "path": value} if file is value else file
    return parts, value, key


def reader_of(path: str) -> str | None:
    """Return the data set that reads a file of this name, or a directory of such; or None."""
    refuse_spreadsheet(path)
    for ending, name in READERS.items():
        if path.lower().endswith(ending):
            return name
    is_directory = path not in DATASETS and Path(os.path.expanduser(path)).is_dir()
    return reader_of_directory(path) if is_directory else None


def reader_of_directory(path: str) -> str:
    """Return the data set that reads the files of a directory, by their endings."""
    for folder, folders, files in os.walk(Path(os.path.expanduser(path))):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        endings = {
            ending: READERS[ending]
            for file in files
            for ending in READERS
            if file.lower().endswith(ending) and not file.startswith(".")
        }
        if set(endings.values()) - set(IN_DIRECTORIES):
            raise InputError(f"data is '{path}', a directory with {min(endings)} files: name one")
        if len(set(endings.values())) > 1:
            raise InputError(
                f"data is '{path}', but '{folder}' has files of several kinds: "
                f"{', '.join(sorted(endings))}; allowed: one kind"
            )
        if endings:
            return next(iter(endings.values()))
    allowed = ", ".join(ending for ending, name in READERS.items() if name in IN_DIRECTORIES)
    raise InputError(f"data is '{path}', a directory without files that end in {allowed}")


def as_data_file(data: Any) -> Any:
    """Return a file named as the section ``data`` as the data set that reads it, others as is."""
    reader = reader_of(data) if isinstance(data, str) else None
    return data if reader is None else {"name": reader, FILE_OPTIONS.get(reader, "path"): data}


def _takes_path(data: Any) -> bool:
    """Return whether the data set named so far has an option ``path``; a user's own may."""
    name = data.get("name", DEFAULTS["data"]) if isinstance(data, Mapping) else data
    return (
        isinstance(name, str)
        and reader_of(name) is None
        and (":" in name or (name in DATASETS and "path" in options_of(find("data", name))))
    )


def _set(mapping: dict[str, Any], parts: list[str], value: Any, key: str) -> None:
    section = mapping
    for depth, part in enumerate(parts[:-1]):
        inner = section.get(part)
        if inner is None:
            inner = {"name": DEFAULTS[part]} if depth == 0 and part in DEFAULTS else {}
        elif isinstance(inner, str):
            inner = {"name": inner}
        elif part == "participation" and isinstance(inner, int | float):
            inner = {"name": "uniform", "fraction": inner}
        if not isinstance(inner, dict):
            raise InputError(f"{key} cannot be set: {'.'.join(parts[: depth + 1])} has no options")
        section[part] = inner
        section = inner
    last, current = parts[-1], section.get(parts[-1])
    if isinstance(current, dict) and isinstance(value, str):
        # The same component named again keeps the options that were given for it.
        default = DEFAULTS.get(last) if len(parts) == 1 else None
        if current.get("name", default) != value:
            section[last] = {"name": value}
    else:
        section[last] = copy.deepcopy(value)


def safe(text: str) -> str:
    """Return a text as the name of one file."""
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", text).lstrip(".-")
    if name == text and len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9]}-{digest}".lstrip("-")
