"""The items that are shipped: their names, and themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpifed.components import registry
from mpifed.config.listing import listed_records


def find(section: str, name: str) -> Callable[..., Any]:
    """Return an item, to look at what it declares or to derive a changed one.

    Parameters
    ----------
    section : str
        The section of a configuration that names it: ``algorithm``, ``data``, ``model``,
        ``compression``, ``correction``, ``aggregator``, ``attack``, ``surrogate`` and others.
    name : str
        Its name, or ``module:object`` of one of your own.

    Returns
    -------
    type or callable
        The class, or the function that makes the item.

    Raises
    ------
    InputError
        If there is no such item.

    Examples
    --------
    >>> find("compression", "top_k")(k=2).contraction(8)
    0.25
    """
    return registry.find(section, name)


def names(kind: str) -> list[str]:
    """Return the names of a kind of items, to test an own item with each of them.

    Parameters
    ----------
    kind : str
        A word of ``mpifed run --list``: ``algorithms``, ``datasets``, ``models``, ``compressors``,
        ``corrections``, ``aggregators``, ``attacks``, ``topologies`` and others.

    Returns
    -------
    list of str
        The names, in the order of the list.

    Raises
    ------
    InputError
        If there are no items of this kind.

    Examples
    --------
    >>> names("exchanges")
    ['server', 'gossip']
    """
    return [record["name"] for record in listed_records(kind)]
