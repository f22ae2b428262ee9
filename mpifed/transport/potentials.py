"""The published trained potentials of the Wasserstein-2 benchmark, read from their files.

The files are state dicts of DenseICNN as torch stores them, ``<d>_v1.pt`` and ``<d>_v2.pt`` for
dimension d, in a directory or in a tar archive (plain or compressed with gz or xz). They are read
with torch's restricted reader, which builds tensors and executes nothing that a file asks for;
names, shapes and values are checked afterwards.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpifed.data.compressed import opened
from mpifed.errors import InputError, one_line
from mpifed.models.icnn import DenseICNN
from topologies.inputs import read_bytes

FOLDER = "w2-benchmark"
LARGEST = 1 << 26
"""Bytes beyond which a file of potentials is refused."""


def potentials_path(raw: str | None) -> Path:
    """Return where the potentials are: ``raw``, or the directory w2-benchmark in MPIFED_DATA.

    Parameters
    ----------
    raw : str | None
        The directory or archive, if it is given.

    Returns
    -------
    Path
        An existing path.

    Raises
    ------
    InputError
        If neither is given or the path does not exist.
    """
    if raw is not None:
        path = Path(raw).expanduser()
        if not path.exists():
            raise InputError(f"data.raw is '{path}', but there is no such file or directory")
        return path
    home = os.environ.get("MPIFED_DATA")
    if not home:
        raise InputError(
            "data.raw is empty and MPIFED_DATA is not set; one of them must say where the trained "
            "potentials are"
        )
    path = Path(home) / FOLDER
    if not path.is_dir():
        raise InputError(f"MPIFED_DATA is '{home}', but there is no directory '{path}'")
    return path


def read_potential(path: Path, name: str, model: DenseICNN) -> Tensor:
    """Return the parameters in a file of potentials.

    Parameters
    ----------
    path : Path
        A directory with the file or with one archive, or an archive.
    name : str
        The name of the file.
    model : DenseICNN
        The network of the potential.

    Returns
    -------
    Tensor of float64, shape (n_parameters,)
        The flat parameters.

    Raises
    ------
    InputError
        If the file is missing or damaged, has more than tensors, or is not of ``model``'s shape.
    """
    where = f"'{name}' in '{path}'"
    try:
        content = _content(path, name)
        _check_unpacked(content, name)
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (OSError, EOFError, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where} cannot be read: {reason}") from error
    except pickle.UnpicklingError as error:
        raise InputError(f"{where} is not a file of weights alone, and is not read") from error
    except InputError:
        raise
    except Exception as error:
        # What torch's reader meets in a damaged file it raises as it comes.
        raise InputError(f"{where} is damaged: {one_line(str(error), 200)}") from error
    return _flat(state, model, where)


def _content(path: Path, name: str) -> bytes:
    if path.is_dir():
        if (path / name).is_file():
            return read_bytes(path / name, LARGEST)
        archives = sorted(p for p in path.iterdir() if ".tar" in p.suffixes)
        if len(archives) != 1:
            raise InputError(f"'{path}' has neither a file '{name}' nor one .tar archive")
        path = archives[0]
    ending = {".tgz": ".gz", ".txz": ".xz"}.get(path.suffix)
    # As a stream, so that what it decompresses on the way to the member is bounded.
    with opened(path, ending=ending) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.isfile() and Path(member.name).name == name:
                _check_size(member.size, name)
                found = archive.extractfile(member)
                assert found is not None  # a regular file has a content
                return found.read()
    raise InputError(f"'{path}' has no file '{name}'")


def _check_size(size: int, name: str) -> None:
    if size > LARGEST:
        raise InputError(f"'{name}' has {size} bytes; a file of potentials has at most {LARGEST}")


def _check_unpacked(content: bytes, name: str) -> None:
    """Refuse weights that are larger than their file says."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_size(sum(member.file_size for member in archive.infolist()), name)


def _flat(state: Any, model: DenseICNN, where: str) -> Tensor:
    """Return the flat parameters of a state dict, in the order of ``DenseICNN``."""
    layers = range(len(model.hidden))
    quadratic = [f"quadratic_layers.{layer}.quadratic_decomposed" for layer in layers]
    linear = [f"quadratic_layers.{layer}.weight" for layer in layers]
    bias = [f"quadratic_layers.{layer}.bias" for layer in layers]
    convex = [f"convex_layers.{layer}.weight" for layer in layers[:-1]]
    pairs = zip(model.hidden[1:], model.hidden, strict=False)
    shapes: dict[str, tuple[int, ...]] = {
        **{n: (model.dimension, 1, h) for n, h in zip(quadratic, model.hidden, strict=True)},
        **{n: (h, model.dimension) for n, h in zip(linear, model.hidden, strict=True)},
        **{n: (h,) for n, h in zip(bias, model.hidden, strict=True)},
        **dict(zip(convex, pairs, strict=True)),
        "final_layer.weight": (1, model.hidden[-1]),
    }
    if not isinstance(state, Mapping) or set(state) != set(shapes):
        raise InputError(f"{where} has not the tensors of a DenseICNN of {len(layers)} layers")
    parts = []
    for name, shape in shapes.items():
        tensor = state[name]
        if not isinstance(tensor, Tensor) or tensor.shape != shape:
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(f"{where} has {found} for {name}, not {shape}")
        values = tensor.double()
        if not values.isfinite().all():
            raise InputError(f"{where} has values that are not finite in {name}")
        parts.append((values[:, 0].T if name in quadratic else values).flatten())
    flat = torch.cat(parts)
    if (flat[model.n_skip :] < 0).any():
        raise InputError(f"{where} has negative weights between layers: its f is not convex")
    return flat
