"""Files of ``torch.save`` with the tensors of a module."""

from __future__ import annotations

import errno
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.errors import InputError, in_words
from mpifed.io.text import damaged

if TYPE_CHECKING:
    import torch


WRAPPERS = ("module.", "_orig_mod.")
"""What wrappers of modules put before the names of all tensors."""

MOST_TENSORS = 100_000
"""Largest number of tensors in a file."""


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
        If the file is missing, not regular, too large for the memory, or is not a state dict.
    """
    import torch

    from topologies.inputs import check_archive

    try:
        check_archive(path)
    except zipfile.BadZipFile:
        raise damaged(path, "it is not a file of torch.save (torch 1.6 or later)") from None
    except OSError as error:
        reason = "it is missing" if error.errno == errno.ENOENT else error.strerror
        raise InputError(f"weights '{path}' cannot be read: {reason}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about files that are refused here
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # What a damaged or foreign archive makes torch raise is not documented.
        said = str(error)
        if "TorchScript" in said or "Unsupported" in said:
            raise InputError(
                f"weights '{path}' holds a whole module or other objects, which are not unpickled; "
                "save its tensors alone: torch.save(module.state_dict(), PATH)"
            ) from None
        raise damaged(path, f"torch cannot load it: {in_words(error)}") from None
    return _checked(path, found)


def _checked(path: Path, found: Any) -> dict[str, torch.Tensor]:
    """``found`` where it maps names to dense tensors."""
    import torch

    if not isinstance(found, dict) or not found or len(found) > MOST_TENSORS:
        raise InputError(
            f"weights '{path}' is not a state dict, a mapping of names to tensors; "
            "torch.save(module.state_dict(), PATH) writes one"
        )
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"weights '{path}' is not a state dict: its entry {str(name)[:80]!r} is not a "
                "tensor; torch.save(module.state_dict(), PATH) writes one"
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
            raise InputError(f"weights '{path}': {name} is not a dense tensor of real numbers")
    return dict(found)


def load_weights(
    module: torch.nn.Module, path: str | Path, classifier: str, new_classifier: bool = False
) -> None:
    """Copy the tensors of a file into a module.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters and buffers are overwritten.
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

    path = Path(path).expanduser()
    own = module.state_dict()
    found = _without_wrapper(path, read_tensors(path), own)
    head = f"{classifier}."
    if new_classifier:
        own = {name: tensor for name, tensor in own.items() if not name.startswith(head)}
        found = {name: tensor for name, tensor in found.items() if not name.startswith(head)}
    for name, tensor in own.items():
        if name not in found:
            _refuse_missing(path, name, found, head)
        if found[name].shape != tensor.shape:
            _refuse_shape(path, name, tuple(found[name].shape), tuple(tensor.shape), head)
        if found[name].is_floating_point() != tensor.is_floating_point():
            raise InputError(
                f"weights '{path}': {name} has the type {found[name].dtype}, the model needs "
                f"{tensor.dtype}"
            )
        if not torch.isfinite(found[name]).all():
            raise InputError(f"weights '{path}': {name} holds infinite numbers or NaN")
    foreign = next((name for name in found if name not in own), None)
    if foreign is not None:
        raise InputError(
            f"weights '{path}': the model has no tensor {foreign[:80]!r}; the file must be a state "
            "dict of the same model with the same options"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])


def _without_wrapper(
    path: Path, found: dict[str, torch.Tensor], own: Iterable[str]
) -> dict[str, torch.Tensor]:
    """``found`` by the names that its tensors had before a module was wrapped."""
    for prefix in WRAPPERS:
        if all(n.startswith(prefix) for n in found) and not any(n.startswith(prefix) for n in own):
            warnings.warn(
                f"weights '{path}': all names begin with '{prefix}', which was taken off",
                stacklevel=2,
            )
            found = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    return found


def _refuse_missing(path: Path, name: str, found: dict[str, torch.Tensor], head: str) -> None:
    if name.startswith(head):
        raise InputError(
            f"weights '{path}' has no classifier {name}; model.new_classifier=true draws it"
        )
    some = next(iter(found), "nothing")[:80]
    raise InputError(
        f"weights '{path}' lacks {name} (its first tensor is {some!r}); the file must be a state "
        "dict of the same model with the same options"
    )


def _refuse_shape(
    path: Path, name: str, theirs: tuple[int, ...], ours: tuple[int, ...], head: str
) -> None:
    if name.startswith(head) and theirs[1:] == ours[1:]:
        raise InputError(
            f"weights '{path}' has a classifier of {theirs[0]} outputs ({name} is {theirs}), but "
            f"the data need {ours[0]}; model.new_classifier=true draws the classifier anew"
        )
    raise InputError(f"weights '{path}': {name} has the shape {theirs}, the model needs {ours}")
