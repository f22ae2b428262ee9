"""Graphs on regular grids: the torus and the hypercube, with their sizes."""

from __future__ import annotations

import math

import networkx as nx

from topologies.files import plain
from topologies.parameters import TopologyError


def torus(n: int | None = None, rows: int | None = None, cols: int | None = None) -> nx.Graph:
    """Return the periodic grid of rows x cols nodes, with node r * cols + c at (r, c).

    Given n alone, rows and cols are its divisors nearest to each other. Where a side is 2 the
    two neighbours along it coincide, and the degree is 3.

    Parameters
    ----------
    n : int, optional
        The number of nodes.
    rows : int, optional
        The number of rows.
    cols : int, optional
        The number of columns.

    Returns
    -------
    networkx.Graph
        The torus.

    Raises
    ------
    TopologyError
        If the sizes do not fit together.

    Examples
    --------
    >>> torus(12).degree(0), torus(rows=2, cols=6).degree(0)
    (4, 3)
    """
    shape = torus_shape(n, rows, cols)
    return plain(nx.grid_2d_graph(*shape, periodic=True))


def torus_shape(n: int | None, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Return (rows, cols), completed from whichever of the three are given.

    Parameters
    ----------
    n : int | None
        The number of nodes.
    rows : int | None
        The number of rows.
    cols : int | None
        The number of columns.

    Returns
    -------
    tuple of int
        (rows, cols).

    Raises
    ------
    TopologyError
        If they do not fit together, or if n is a prime above 3, which would make a ring.

    Examples
    --------
    >>> torus_shape(12, None, None)
    (3, 4)
    """
    known = rows or cols
    if rows and cols:
        if n not in (None, rows * cols):
            raise TopologyError(
                f"torus: rows = {rows} times cols = {cols} is {rows * cols}, but n is {n}"
            )
        return rows, cols
    if n is None:
        raise TopologyError("torus needs n, or rows and cols")
    if known:
        if n % known:
            raise TopologyError(
                f"torus: n is {n}, but must be a multiple of {'rows' if rows else 'cols'} = {known}"
            )
        return (rows, n // rows) if rows else (n // known, known)
    side = next(k for k in range(math.isqrt(n), 0, -1) if n % k == 0)
    if side == 1 and n > 3:
        raise TopologyError(
            f"torus: n is {n}, a prime, but must be rows x cols, such as {n - 1} or {n + 1}"
        )
    return side, n // side


def hypercube(n: int | None = None, dimension: int | None = None) -> nx.Graph:
    """Return the hypercube: nodes are joined where their numbers differ in one binary digit.

    Parameters
    ----------
    n : int, optional
        The number of nodes, a power of two.
    dimension : int, optional
        Log2 of the number of nodes.

    Returns
    -------
    networkx.Graph
        The hypercube.

    Raises
    ------
    TopologyError
        If the number of nodes is not a power of two, or not 2^dimension.

    Examples
    --------
    >>> sorted(hypercube(8).neighbors(0))
    [1, 2, 4]
    """
    dimension = hypercube_dimension(n, dimension)
    # networkx has no node at all in dimension 0, where the cube is a point.
    return plain(nx.hypercube_graph(dimension)) if dimension else nx.empty_graph(1)


def hypercube_dimension(n: int | None, dimension: int | None) -> int:
    """Return log2(n).

    Parameters
    ----------
    n : int | None
        The number of nodes.
    dimension : int | None
        The dimension, if it is given besides or instead.

    Returns
    -------
    int
        The dimension.

    Raises
    ------
    TopologyError
        If n is not a power of two, or not 2^dimension.
    """
    if n is None:
        if dimension is None:
            raise TopologyError("hypercube needs n or dimension")
        return dimension
    below = n.bit_length() - 1
    if n != 1 << below:
        raise TopologyError(
            f"hypercube: n is {n}, but must be a power of two; "
            f"the nearest are {1 << below} and {2 << below}"
        )
    if dimension not in (None, below):
        raise TopologyError(
            f"hypercube: dimension = {dimension} makes {1 << dimension} nodes, but n is {n}"
        )
    return below
