"""Compressed pictures as arrays of bytes.

Feature shift: every client's pictures turned by the client's own angle.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, UnidentifiedImageError
from scipy import ndimage

from mpifed.errors import InputError, one_line
from mpifed.random import stream

LARGEST = 1 << 24
"""Pixels of a picture."""


def decoded(content: bytes, said: str, mode: str | None = None) -> np.ndarray:
    """Return a PNG or JPEG picture as bytes.

    Parameters
    ----------
    content : bytes
        The file.
    said : str
        Its name, for messages.
    mode : {'L', 'RGB'}, optional
        Shades of grey or colours. None is what the file has.

    Returns
    -------
    ndarray
        uint8 (rows, columns), or (3, rows, columns) for colours.

    Raises
    ------
    InputError
        If it is damaged, of another format, or larger than ``LARGEST``.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as picture:
            if picture.width * picture.height > LARGEST:
                raise InputError(
                    f"{said} has {picture.width} x {picture.height} pixels; at most {LARGEST}"
                )
            grey = picture.mode in ("1", "L", "I", "I;16", "LA")
            values = np.asarray(picture.convert(mode or ("L" if grey else "RGB")), np.uint8)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(f"{said} is not a PNG or JPEG picture") from None
    except Exception as error:
        # Decoders raise almost anything for damaged files.
        reason = one_line(str(error) or type(error).__name__, 120)
        raise InputError(f"{said} is a damaged picture: {reason}") from None
    return values if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1))


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of a sample that has the channels, None where there is none.

    Two axes are (rows, columns). Of three the first or the last has the channels, whichever is
    shorter; the first where both are alike.

    Examples
    --------
    >>> channel_axis((28, 28)), channel_axis((3, 32, 32)), channel_axis((32, 32, 3))
    (None, 0, 2)
    """
    if len(shape) != 3:
        return None
    return 0 if shape[0] <= shape[2] else 2


def smaller(pictures: np.ndarray, side: int) -> np.ndarray:
    """Return pictures whose pixels are means over areas of the given ones.

    Parameters
    ----------
    pictures : ndarray
        uint8 (pictures, rows, columns).
    side : int
        Rows and columns afterwards, at most those before.

    Returns
    -------
    ndarray
        uint8 (pictures, side, side), rounded.

    Examples
    --------
    >>> smaller(np.array([[[0, 100, 200], [0, 100, 200], [0, 100, 200]]], np.uint8), 2)
    array([[[ 33, 167],
            [ 33, 167]]], dtype=uint8)
    """
    rows, columns = (_areas(count, side) for count in pictures.shape[1:])
    means = rows @ pictures.astype(np.float64) @ columns.T
    return np.floor(means + 0.5).astype(np.uint8)


def _areas(count: int, side: int) -> np.ndarray:
    """Share of each of ``count`` pixels in each of ``side`` equal intervals, (side, count)."""
    edges = np.arange(side + 1) * (count / side)
    pixels = np.arange(count)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(overlap, 0) * (side / count)


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
