"""Modules whose parameters and buffers are views of a flat row of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpifed.models.layout import Layout, Place, layout_of


@dataclass(frozen=True)
class Binding:
    """A module and its tensors that have places in a row.

    The tensors are looked up once: a module is bound for every client and component, and for every
    part of the samples that are scored.

    Attributes
    ----------
    module : torch.nn.Module
    layout : Layout
        Where its tensors are in a row.
    leaves : tuple of Parameter
        Trained parameters, in the order of the layout.
    owners : tuple of (Module, str)
        The submodule that has a buffer, and the buffer's name in it, in the order of the layout.
    constants : tuple of Parameter
        Parameters that are not trained.
    parts : tuple of Module
        The module and all its submodules.
    """

    module: nn.Module
    layout: Layout
    leaves: tuple[nn.Parameter, ...]
    owners: tuple[tuple[nn.Module, str], ...]
    constants: tuple[nn.Parameter, ...]
    parts: tuple[nn.Module, ...]

    def train(self, training: bool) -> None:
        """Set the mode of all submodules, unless they are in it."""
        if any(part.training != training for part in self.parts):
            self.module.train(training)

    def converted(self, row: Tensor) -> Binding:
        """Give what is not in rows the type and device of ``row``.

        Returns
        -------
        Binding
            This one; another one of the same module where something was converted, since torch may
            make new parameters for it.
        """
        tensors = (*self.leaves, *self.constants)
        if all(each.dtype == row.dtype and each.device == row.device for each in tensors):
            return self
        return binding_of(self.layout, self.module.to(row.device, row.dtype))

    def bind(self, row: Tensor, gradient: Tensor | None) -> None:
        """Make the module's tensors views of ``row``.

        Parameters
        ----------
        row : Tensor
            (size,), of the module's type and on its device.
        gradient : Tensor or None
            (trained,), of which the gradients become views, and training changes buffers in
            ``row``. None for evaluation, in which buffers are copies: a module may change them.
        """
        parameters, trained = self.layout.parameters, self.layout.trained
        for leaf, view in zip(self.leaves, _views(parameters, row[:trained]), strict=True):
            leaf.data, leaf.grad = view, None
        buffers = row[trained:].clone()
        if gradient is not None:
            buffers = row[trained:]
            for leaf, view in zip(self.leaves, _views(parameters, gradient), strict=True):
                leaf.grad = view
        views = _views(self.layout.buffers, buffers)
        for (owner, name), view in zip(self.owners, views, strict=True):
            # Views share a count of changes, by which a second layer's would seem to spoil the
            # first one's gradient; ``data`` does not.
            owner._buffers[name] = view.data

    def trained_by(
        self, mask: Tensor | None, gradient: Tensor
    ) -> tuple[list[nn.Parameter] | None, list[Tensor]]:
        """Return what a mask leaves to be trained.

        Parameters
        ----------
        mask : Tensor or None
            Which numbers are trained, bool (trained,); None for all.
        gradient : Tensor
            The gradient that the module is bound to, (trained,).

        Returns
        -------
        tuple of list of Parameter, or None, and list of Tensor
            The parameters of which some number is trained, None for all, and the parts of
            ``gradient`` that are theirs.
        """
        if mask is None:
            return None, [gradient]
        parts = mask.split([place.size for place in self.layout.parameters])
        which = [place for place, part in enumerate(parts) if part.any()]
        views = _views(self.layout.parameters, gradient)
        return [self.leaves[place] for place in which], [views[place] for place in which]

    def collect(self, row: Tensor) -> None:
        """Copy buffers into ``row`` that the module has replaced, and not changed in place."""
        for (owner, name), place in zip(self.owners, self.layout.buffers, strict=True):
            found, view = getattr(owner, name), place.view(row)
            if found.data_ptr() != view.data_ptr():
                view.copy_(found.detach())

    def release(self) -> None:
        """Let go of the row that ``bind`` gave to the module."""
        empty = self.leaves[0].data.new_empty(0)
        for leaf in self.leaves:
            leaf.grad, leaf.data = None, empty
        for owner, name in self.owners:
            owner._buffers[name] = empty

    def fill(self, row: Tensor) -> None:
        """Give the module copies of the numbers of ``row``; counters become integers again."""
        self.bind(row, None)
        for parameter in (*self.leaves, *self.constants):
            parameter.data = parameter.data.clone()
        for (owner, name), place in zip(self.owners, self.layout.buffers, strict=True):
            kind = row.dtype if place.dtype.is_floating_point else place.dtype
            owner._buffers[name] = place.view(row).clone().to(kind)


def binding_of(layout: Layout, module: nn.Module) -> Binding:
    """Look up the tensors of a module.

    Parameters
    ----------
    layout : Layout
        Its layout.
    module : torch.nn.Module
        The module.

    Returns
    -------
    Binding

    Examples
    --------
    >>> module = nn.Linear(2, 1)
    >>> binding = binding_of(layout_of(module), module)
    >>> row = torch.tensor([1.0, 2.0, 3.0])
    >>> binding.bind(row, None)
    >>> row[2] = 5
    >>> module(torch.ones(1, 2)).item()
    8.0
    """
    own = dict(module.named_parameters())
    leaves = tuple(own.pop(place.name) for place in layout.parameters)
    paths = (place.name.rpartition(".") for place in layout.buffers)
    owners = tuple((module.get_submodule(path), name) for path, _, name in paths)
    return Binding(module, layout, leaves, owners, tuple(own.values()), tuple(module.modules()))


def _views(places: tuple[Place, ...], numbers: Tensor) -> list[Tensor]:
    """Views of ``numbers``, which are those of ``places`` one after the other."""
    parts = numbers.split([place.size for place in places])
    return [place.shaped(part) for place, part in zip(places, parts, strict=True)]


def filled(build: Callable[[], nn.Module], row: Tensor) -> nn.Module:
    """Return a module in evaluation mode with the numbers of a row.

    Parameters
    ----------
    build : callable
        Builds the module; no random number is drawn for it.
    row : Tensor
        All its parameters, in order, (P,).

    Examples
    --------
    >>> filled(lambda: nn.Linear(2, 1), torch.tensor([1.0, 2.0, 3.0]))(torch.ones(1, 2))
    tensor([[6.]], grad_fn=<AddmmBackward0>)
    """
    with torch.device("meta"):
        module = build()
    module = module.to_empty(device=row.device).to(row.dtype)
    binding_of(layout_of(module), module).fill(row.detach())
    return module.eval()
