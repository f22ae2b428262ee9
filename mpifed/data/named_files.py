"""Files that a data set is given by name, refused where there are none before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpifed.data.archives import located, places
from mpifed.data.csv_header import check_columns
from mpifed.errors import InputError
from topologies.inputs import check_regular

# Data sets that read one file, by name: its directory in ``$MPIFED_DATA``.
FILES = {
    "csv": "csv",
    "npz": "npz",
    "libsvm": "libsvm",
    "ratings": "movielens",
    "shakespeare": "shakespeare",
    "tags_file": "tags",
}

# Those of them that are always given a path.
REQUIRING = ("csv", "npz", "tags_file")

# Data sets that read a directory or archives.
FOLDERS = ("mnist", "emnist", "cifar10", "cifar100", "leaf", "femnist", "omniglot")


def check_there(path: Path) -> None:
    """Refuse a federated file that is not there."""
    try:
        check_regular(path)
    except FileNotFoundError:
        raise InputError(f"data.path is '{path}', but there is no such file") from None
    except OSError as error:
        raise InputError(f"data.path is '{path}', which cannot be read: {error.strerror}") from None


def check_named_files(name: str, options: Mapping[str, Any]) -> None:
    """Refuse files and directories that the options of a data set name and that are not there."""
    path, raw = options.get("path"), options.get("raw")
    if {type(value) for value in (path, raw) if value is not None} - {str}:
        return
    if name in FILES and (path is not None or name not in REQUIRING):
        found = located(path, FILES[name], raw)
        if name == "csv":
            check_columns(found, options)
    elif name in FOLDERS and (raw is not None or not os.environ.get("MPIFED_DATA")):
        places(raw, name)
    elif name == "federated" and path is not None:
        check_there(Path(path).expanduser())
