"""The command list: the graph families, weight rules and schedules with their parameters."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from topologies.catalogue import Entry
from topologies.families import FAMILIES
from topologies.output import print_json
from topologies.schedule_table import SCHEDULES
from topologies.weights import WEIGHTS


def list_names(options: argparse.Namespace) -> None:
    """Print the graph families, weight rules and schedules, with their parameters.

    Parameters
    ----------
    options : argparse.Namespace
        ``what`` (one table, or None for all) and ``json``.
    """
    tables: dict[str, Mapping[str, Entry]] = {
        "families": FAMILIES,
        "weights": WEIGHTS,
        "schedules": SCHEDULES,
    }
    if options.what:
        tables = {options.what: tables[options.what]}
    if options.json:
        print_json({title: {k: _entry(e) for k, e in t.items()} for title, t in tables.items()})
        return
    for title, table in tables.items():
        print(title)
        for name, entry in table.items():
            print(f"  {name:22s} {entry.summary}")
            for key, parameter in (entry.parameters or {}).items():
                default = "" if parameter.default is None else f" (default {parameter.default})"
                print(f"  {'':24s} {key}: {parameter.summary}, {parameter.allowed}{default}")


def _entry(entry: Entry) -> dict[str, Any]:
    parameters = {
        key: {
            "summary": parameter.summary,
            "allowed": parameter.allowed,
            "default": parameter.default,
            "required": parameter.required,
        }
        for key, parameter in (entry.parameters or {}).items()
    }
    return {"summary": entry.summary, "parameters": parameters}
