"""Low-rank adapters of linear layers (LoRA, Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, TypeVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import linear

from mpifed.errors import InputError, closest

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Lora:
    """What is adapted, and by how much.

    Parameters
    ----------
    rank : int
        The r of the matrices B (outputs, r) and A (r, inputs).
    alpha : float, optional
        Their product counts alpha / r. None is r.
    layers : list of str
        Names of the linear layers, or the last parts of their names; ``*`` stands for any
        characters. Those of attention by default.
    """

    rank: Annotated[int, Ge(1)] = 4
    alpha: Annotated[float, Gt(0)] | None = None
    layers: tuple[str, ...] = ("query", "value")


class LoraLinear(nn.Linear):
    """W x + (alpha / r) B A x with W as it is (Hu et al. 2021, eq. 3); B is 0 at first.

    Parameters
    ----------
    layer : torch.nn.Linear
        The layer whose weight W and bias stay.
    rank : int
        r.
    scale : float
        alpha / r.
    """

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(layer.in_features, layer.out_features, False, device="meta")
        self.weight, self.bias, self.scale = layer.weight, layer.bias, scale
        # Of the default type, as all that is drawn: W may have been loaded in another one.
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch."""
        return super().forward(x) + self.scale * linear(linear(x, self.lora_a), self.lora_b)

    def merged(self) -> nn.Linear:
        """Return one linear layer with the same outputs, of weight W + (alpha / r) B A."""
        layer = nn.utils.skip_init(nn.Linear, self.in_features, self.out_features, bias=False)
        with torch.no_grad():
            weight = self.weight + self.scale * self.lora_b @ self.lora_a
        layer.weight, layer.bias = nn.Parameter(weight), self.bias
        return layer


def adapt(network: Module, adapter: Lora | None) -> Module:
    """Give linear layers of a network adapters, and freeze all else.

    Parameters
    ----------
    network : torch.nn.Module
        The network, which is changed.
    adapter : Lora or None
        Which layers, and their rank; None changes nothing.

    Returns
    -------
    torch.nn.Module
        The network. Adapters alone are its trained parameters, so that only they are sent.

    Raises
    ------
    InputError
        If a name is no linear layer's.
    """
    if adapter is None:
        return network
    network.requires_grad_(False)
    linears = {n: part for n, part in network.named_modules() if isinstance(part, nn.Linear)}
    chosen = dict.fromkeys(linears, False)
    for pattern in adapter.layers:
        matching = [n for n in linears if any(fnmatchcase(each, pattern) for each in _names(n))]
        if not matching:
            raise InputError(
                f"model.adapter.layers has '{pattern}', which is no linear layer of the model; "
                f"{closest(pattern, sorted({each for n in linears for each in _names(n)}))}"
            )
        chosen |= dict.fromkeys(matching, True)
    scale = (adapter.alpha or adapter.rank) / adapter.rank
    for name in (name for name, is_chosen in chosen.items() if is_chosen):
        network.set_submodule(name, LoraLinear(linears[name], adapter.rank, scale))
        # The last layer that is trained.
        network.last_layer = name
    return network


def merge(network: Module) -> Module:
    """Put one linear layer in place of each that has an adapter.

    Parameters
    ----------
    network : torch.nn.Module
        The network, which is changed.

    Returns
    -------
    torch.nn.Module
        The network, with the state dict of one that was never adapted.
    """
    adapted = [(n, part) for n, part in network.named_modules() if isinstance(part, LoraLinear)]
    for name, part in adapted:
        network.set_submodule(name, part.merged())
    return network


def _names(name: str) -> tuple[str, str]:
    return name, name.rpartition(".")[2]
