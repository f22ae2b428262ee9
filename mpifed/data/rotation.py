"""Feature shift: every client's pictures turned by the client's own angle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from mpifed.data.pictures import channel_axis
from mpifed.random import stream


def angles(
    n_clients: int, seed: int, rotations: Sequence[float] | None, spread: float
) -> np.ndarray | None:
    """Return the angle of each client in degrees, float64 (n_clients,), or None for no rotation.

    Each of ``rotations`` goes to equally many clients, or one more, drawn by the seed: clusters of
    clients, as in Ghosh et al. 2020, sec. 6. ``spread`` adds an angle to every client, uniform in
    [-spread, spread].

    Parameters
    ----------
    n_clients : int
        Number of clients.
    seed : int
        Seed of the draw.
    rotations : sequence of float, optional
        Angles of the clusters, in degrees.
    spread : float
        Largest further angle, in degrees.

    Examples
    --------
    >>> sorted(angles(4, 0, [0, 90], 0).tolist())
    [0.0, 0.0, 90.0, 90.0]
    """
    if not rotations and spread == 0:
        return None
    of_clusters = np.array(rotations or [0.0], np.float64)
    cluster = stream(seed, "rotation").permutation(n_clients) % len(of_clusters)
    further = stream(seed, "rotation/spread").uniform(-spread, spread, n_clients)
    return of_clusters[cluster] + further


def rotated(pictures: np.ndarray, angle: float) -> np.ndarray:
    """Return pictures turned counterclockwise about their centres.

    Quarter turns of square pictures move pixels. Other angles interpolate bilinearly, and what
    comes in from outside is 0.

    Parameters
    ----------
    pictures : ndarray
        (pictures, ..., rows, columns) or (pictures, rows, columns, channels), of any type.
    angle : float
        In degrees.

    Returns
    -------
    ndarray
        Of the same shape and type; whole numbers are rounded.

    Examples
    --------
    >>> rotated(np.array([[[1, 2], [3, 4]]]), 90)
    array([[[2, 4],
            [1, 3]]])
    """
    if channel_axis(pictures.shape[1:]) == 2:
        upright = np.ascontiguousarray(np.moveaxis(pictures, -1, 1))
        return np.ascontiguousarray(np.moveaxis(rotated(upright, angle), 1, -1))
    quarters = angle / 90
    square = pictures.shape[-1] == pictures.shape[-2]
    if quarters == round(quarters) and (square or round(quarters) % 2 == 0):
        return np.ascontiguousarray(np.rot90(pictures, round(quarters), axes=(-2, -1)))
    turned = ndimage.rotate(
        pictures.astype(np.float64), angle, axes=(-1, -2), reshape=False, order=1
    )
    if pictures.dtype.kind in "iu":
        turned = np.floor(turned + 0.5)
    return turned.astype(pictures.dtype)
