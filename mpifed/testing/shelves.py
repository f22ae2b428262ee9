"""The items that are shipped: their names, and what an own one derives from."""

from __future__ import annotations

from typing import Any

from mpifed.components.registry import find
from mpifed.config.listing import listed_records


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


def find_item(kind: str, name: str) -> Any:
    """Return the class or function of an item, to derive an own one from it or to compare with.

    Parameters
    ----------
    kind : str
        Where a configuration names it: ``algorithm``, ``data``, ``model``, ``exchange``,
        ``compression``, ``correction``, ``aggregator``, ``attack`` or ``server_optimizer``.
    name : str
        The name, or ``module:object``.

    Returns
    -------
    type or callable
        What makes the item.

    Raises
    ------
    InputError
        If there is no item of this name.

    Examples
    --------
    >>> class Half(find_item("compression", "identity")):
    ...     def __call__(self, rows, draws, ids, purpose="compression"):
    ...         return rows / 2
    """
    return find(kind, name)
