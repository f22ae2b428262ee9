"""The names of the items that are shipped."""

from __future__ import annotations

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
