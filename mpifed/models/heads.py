"""Parts of a model by what they do: its last layer, what that layer is given, its normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.models.mlp import Mlp
from mpifed.models.modules import ModuleModel

BATCH = (nn.modules.batchnorm._NormBase,)
"""Layers with running statistics: batch normalisation and its relatives."""

EVERY = (*BATCH, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)
"""All layers that normalise."""


def last_layer(model: Model) -> str:
    """Return the name of a model's last layer; ``*`` where the model has one layer.

    It is the layer of the last parameter, in the order of the state dict, unless a torch module
    names another one in its attribute ``last_layer``.

    Parameters
    ----------
    model : Model
        What is trained.

    Returns
    -------
    str
        A name for ``model.mask``.

    Raises
    ------
    InputError
        For a model whose parameters have no names.

    Examples
    --------
    >>> last_layer(Mlp((3, 4, 2))), last_layer(Linear(3, 2))
    ('layers.1', '*')
    """
    named = getattr(model.network, "last_layer", None) if isinstance(model, ModuleModel) else None
    if isinstance(named, str):
        return named
    trained = [p for p in model.places() if p.begin < model.n_parameters - model.n_buffers]
    if not trained:
        raise InputError(
            f"the model is a {type(model).__name__}, whose parameters have no names (places), so "
            "that it has no last layer; allowed: linear, mlp, or a torch module"
        )
    return trained[-1].name.rpartition(".")[0] or "*"


def head_of(model: Model, names: list[str] | None, field: str = "algorithm.head") -> Tensor:
    """Return which numbers of a row are the head.

    Parameters
    ----------
    model : Model
        What is trained.
    names : list of str or None
        Names of its layers or parameters, as for ``Model.mask``; None is the last layer.
    field : str
        Where the names come from; the beginning of messages.

    Returns
    -------
    Tensor
        bool (n_parameters,).

    Raises
    ------
    InputError
        For a name that nothing has, or if the last layer is the whole model.
    """
    if names is not None:
        return model.mask(names, field)
    head = model.mask([last_layer(model)], field)
    if head.all():
        raise InputError(
            f"{field} is null, the last layer, but the model has no other one, so that clients "
            "would share nothing; use a model with several layers, such as mlp, or name a part of "
            f"this one ({field}=[bias])"
        )
    return head


def check_representation(model: Model) -> None:
    """Refuse a model of which the inputs of the last layer are not known.

    Raises
    ------
    InputError
        Unless it is ``linear``, ``mlp`` or a torch module.
    """
    if not isinstance(model, (Linear, Mlp, ModuleModel)):
        raise InputError(
            f"the model is a {type(model).__name__}, of which the inputs of the last layer are not "
            "known; allowed: linear, mlp, or a torch module"
        )


def representation(model: Model, parameters: Tensor, x: Tensor) -> Tensor:
    """Return the inputs of the last layer, of M copies on the same samples.

    For ``linear`` they are the samples themselves.

    Parameters
    ----------
    model : Model
        ``linear``, ``mlp`` or a torch module.
    parameters : Tensor
        (M, n_parameters).
    x : Tensor
        (B, *input_shape).

    Returns
    -------
    Tensor
        (M, B, numbers), or (M, B, L, numbers) where the last layer is called at L positions.

    Raises
    ------
    InputError
        For other models, and for a torch module that does not call its last layer once with one
        tensor.

    Examples
    --------
    >>> representation(Mlp((2, 1, 1)), torch.tensor([[1.0, 1, 0, 2, 0]]), torch.ones(1, 2))
    tensor([[[2.]]])
    """
    if isinstance(model, Linear):
        return x.flatten(1).expand(len(parameters), -1, -1)
    if isinstance(model, Mlp):
        if len(model.sizes) == 2:
            return x.flatten(1).expand(len(parameters), -1, -1)
        below = Mlp(model.sizes[:-1], model.activation)
        hidden = below.shared_logits(parameters[:, : below.n_parameters], x)
        return torch.relu(hidden) if model.activation == "relu" else torch.tanh(hidden)
    check_representation(model)
    assert isinstance(model, ModuleModel)
    name, seen = last_layer(model), []
    layer = model.network if name == "*" else model.network.get_submodule(name)
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        model.shared_logits(parameters, x)
    finally:
        hook.remove()
    if len(seen) != len(parameters) or any(len(found) != len(x) for found in seen):
        raise InputError(
            f"the model calls its last layer, '{name}', {len(seen) / len(parameters):g} times for "
            "a batch, or not on samples; name another one in the module's attribute last_layer"
        )
    return torch.stack(seen)


def normalisation_layers(model: Model, every: bool = False) -> list[str]:
    """Return the names of the normalisation layers that have numbers in a row.

    Parameters
    ----------
    model : Model
        What is trained.
    every : bool
        Whether layers without running statistics count too, such as ``GroupNorm``.

    Returns
    -------
    list of str
        Empty where there are none.
    """
    if not isinstance(model, ModuleModel):
        return []
    kinds, owners = EVERY if every else BATCH, {p.name.rpartition(".")[0] for p in model.places()}
    return [
        name
        for name, part in model.network.named_modules()
        if isinstance(part, kinds) and name in owners
    ]
