"""Compressed pictures as arrays of bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from mpifed.random import stream


def decoded(content: bytes, mode: str | None = None) -> np.ndarray:
    """Return a PNG or JPEG picture as bytes; what PIL raises where it is none."""
    with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as picture:
        grey = picture.mode in ("1", "L", "I", "I;16", "LA")
        values = np.asarray(picture.convert(mode or ("L" if grey else "RGB")), np.uint8)
    return values if values.ndim == 2 else np.ascontiguousarray(values.transpose(2, 0, 1))


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of a sample that has the channels, None where there is none."""
    if len(shape) != 3:
        return None
    return 0 if shape[0] <= shape[2] else 2


def angles(
    n_clients: int, seed: int, rotations: Sequence[float] | None, spread: float
) -> np.ndarray | None:
    """Return the angle of each client in degrees, float64 (n_clients,), or None for no rotation.
    Each of ``rotations`` goes to equally many clients, or one more, drawn by the seed: clusters of
    clients, as in Ghosh et al. 2020, sec. 6.
    """
    if not rotations and spread == 0:
        return None
    of_clusters = np.array(rotations or [0.0], np.float64)
    cluster = stream(seed, "rotation").permutation(n_clients) % len(of_clusters)
    further = stream(seed, "rotation/spread").uniform(-spread, spread, n_clients)
    return of_clusters[cluster] + further


def rotated(pictures: np.ndarray, angle: float) -> np.ndarray:
    """Return pictures turned counterclockwise about their centres."""
    if channel_axis(pictures.shape[1:]) == 2:
        upright = np.ascontiguousarray(np.moveaxis(pictures, -1, 1))
        return np.ascontiguousarray(np.moveaxis(rotated(upright, angle), 1, -1))
    quarters = angle / 90
    square = pictures.shape[-1] == pictures.shape[-2]
    if quarters == round(quarters) and (square or round(quarters) % 2 == 0):
        return np.ascontiguousarray(np.rot90(pictures, round(quarters), axes=(-2, -1)))
    from scipy import ndimage  # here, since it takes a quarter of a second

    turned = ndimage.rotate(
        pictures.astype(np.float64), angle, axes=(-1, -2), reshape=False, order=1
    )
    if pictures.dtype.kind in "iu":
        turned = np.floor(turned + 0.5)
    return turned.astype(pictures.dtype)
