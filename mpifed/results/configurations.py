"""Stored configurations of runs, checked before other code relies on their form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpifed.errors import InputError
from mpifed.io.text import is_count
from mpifed.io.yaml_files import read_yaml

COMPONENTS = ("data", "model", "algorithm", "exchange", "compression")
# Those that may be a list, applied in order.
LISTED = ("compression",)
# Sections of a stored configuration that are mappings; ``COMPONENTS`` have a name.
SECTIONS = (*COMPONENTS, "local", "evaluation", "checkpoint")


def read_stored(path: Path) -> dict[str, Any]:
    """Read the configuration that a run has stored in its config.yaml."""
    configuration = read_yaml(path)
    try:
        check_stored(configuration)
    except ValueError as error:
        raise InputError(f"{path} is not the configuration of a run: {error}") from None
    return dict(configuration)


def check_stored(configuration: Any) -> None:
    """Check the form of a stored configuration."""
    if not isinstance(configuration, dict) or not all(isinstance(k, str) for k in configuration):
        raise ValueError("it does not hold a mapping of keys to values")
    for name, least in (("clients", 1), ("rounds", 1), ("seed", 0)):
        if not is_count(configuration.get(name)) or configuration[name] < least:
            raise ValueError(f"{name} is not a whole number, at least {least}")
    # Runs of earlier versions have no section storage.
    for name, section in [(name, configuration.get(name)) for name in SECTIONS] + [
        ("storage", configuration.get("storage", {}))
    ]:
        parts: list[Any] = section if isinstance(section, list) and name in LISTED else [section]
        if not all(isinstance(part, dict) for part in parts):
            raise ValueError(f"{name} is not a mapping")
        if name in COMPONENTS and not all(isinstance(part.get("name"), str) for part in parts):
            raise ValueError(f"{name}.name is not a text")
    every = configuration["evaluation"].get("every")
    if not is_count(every) or every < 1:
        raise ValueError("evaluation.every is not a whole number, at least 1")
