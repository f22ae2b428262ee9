"""Files of ``torch.save`` with the tensors of a module."""

from __future__ import annotations

import hashlib
import os
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.errors import InputError, in_words, one_line
from mpifed.io.text import damaged

if TYPE_CHECKING:
    import torch


# What wrappers of modules put before the names of all tensors.
WRAPPERS = ("module.", "_orig_mod.")

SAVE = "save its tensors alone: torch.save(module.state_dict(), PATH)"

# What the comment of a sealed archive begins with, before the digest in hexadecimal.
SEAL = b"mpifed sha256 "

# Bytes before the comment of an archive that has none: its length.
LENGTH = 2


def sealed(content: bytes) -> bytes:
    """Return a file of ``torch.save`` with a comment, which has the digest of all before it."""
    comment = SEAL + hashlib.sha256(content[:-LENGTH]).hexdigest().encode()
    return content[:-LENGTH] + len(comment).to_bytes(LENGTH, "little") + comment


def is_intact(path: Path) -> bool:
    """Return whether a file has the digest in its seal, or without one the CRC of each record.

    ``torch.load`` compares neither.
    """
    from topologies.regular_files import open_regular

    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        if not archive.comment.startswith(SEAL):
            return archive.testzip() is None
        left = file.seek(0, 2) - len(archive.comment) - LENGTH
        file.seek(0)
        digest = hashlib.sha256()
        while piece := file.read(min(left, 1 << 22)):
            digest.update(piece)
            left -= len(piece)
        return digest.hexdigest().encode() == archive.comment.removeprefix(SEAL)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a state dict that ``torch.save(module.state_dict(), path)`` wrote.

    Parameters
    ----------
    path : Path
        The file. It is unpickled by ``torch.load(..., weights_only=True)``, which makes tensors and
        plain containers and calls nothing of the file's choice.

    Returns
    -------
    dict of str to Tensor
        Dense tensors of real numbers on the CPU.

    Raises
    ------
    InputError
        If the file is missing, not regular, too large for the memory, is not as it was written (by
        the digest of ``sealed``, or by the CRC of each record), or is not a state dict of such
        tensors.
    """
    import torch

    from topologies.regular_files import check_archive

    try:
        check_archive(path)
        intact = is_intact(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about files that are refused here
            loaded: Any = torch.load(path, map_location="cpu", weights_only=True) if intact else {}
    except OSError as error:
        raise InputError(f"weights '{path}' cannot be read: {error.strerror}") from None
    except Exception as error:  # what a damaged or foreign archive makes torch raise
        reason = one_line(in_words(error), 200)
        raise damaged(path, f"torch cannot load it: {reason}; {SAVE}") from None
    if not intact:
        raise damaged(path, "its content does not match its checksums")
    tensors = loaded.values() if isinstance(loaded, dict) else [None]
    if not all(isinstance(each, torch.Tensor) and each.layout == torch.strided for each in tensors):
        raise InputError(f"weights '{path}' is no mapping of names to dense tensors; {SAVE}")
    for name, tensor in loaded.items():
        if tensor.is_meta or tensor.is_complex() or tensor.is_quantized:
            why = "no numbers" if tensor.is_meta else f"numbers of type {tensor.dtype}"
            raise InputError(
                f"weights '{path}': {name} holds {why}; allowed: real numbers (torch.float32, say)"
            )
    return dict(loaded)


def load_weights(
    module: torch.nn.Module, path: str | Path, classifier: str, new_classifier: bool = False
) -> None:
    """Copy the tensors of a file into a module.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters and buffers are overwritten. It becomes float64 if the file has tensors of
        float64, so that none is rounded before the run's ``dtype`` is known.
    path : str or Path
        The file, a state dict with the module's names and shapes. What wrappers put before all
        names is taken off, with a warning: ``module.`` of ``DistributedDataParallel``,
        ``_orig_mod.`` of ``torch.compile``.
    classifier : str
        Name of the module's last layer.
    new_classifier : bool
        Leave the last layer as it is, whatever the file has for it.

    Raises
    ------
    InputError
        As by ``read_tensors``, where names or shapes differ, and for infinite numbers or NaN.
    """
    import torch

    path = Path(os.path.expanduser(path))
    expected, stored = module.state_dict(), read_tensors(path)
    for prefix in WRAPPERS:
        if all(n.startswith(prefix) for n in stored) and not next(iter(expected)).startswith(
            prefix
        ):
            warnings.warn(
                f"weights '{path}': all names begin with '{prefix}', which was taken off",
                stacklevel=2,
            )
            stored = {name.removeprefix(prefix): tensor for name, tensor in stored.items()}
    for name, tensor in stored.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"weights '{path}': {name} holds infinite numbers or NaN")
    if any(tensor.dtype == torch.float64 for tensor in stored.values()):
        module.double()
    if new_classifier:
        head = {
            name: tensor for name, tensor in expected.items() if name.startswith(f"{classifier}.")
        }
        stored = {n: t for n, t in stored.items() if not n.startswith(f"{classifier}.")} | head
    try:
        module.load_state_dict(stored)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"weights '{path}' do not fit the model; model.new_classifier=true draws its last "
            f"layer, {classifier}, anew. {reason[:300]}"
        ) from None
