"""EMNIST (Cohen et al. 2017) as NIST publishes it: IDX files in a zip archive."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from mpifed.data.archives import places
from mpifed.data.dealt import DealtDataset, Source
from mpifed.data.idx import BRIGHTEST, Part, in_second, inspect, pieces
from mpifed.data.pooled import Pool
from mpifed.errors import InputError
from mpifed.mpi.communicator import Communicator

Variant = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]

MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
"""Lower-case letters that look like the capital are one label with it."""

CHARACTERS: dict[str, str] = {
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "bymerge": MERGED,
    "balanced": MERGED,
    "letters": string.ascii_uppercase,
    "digits": string.digits,
    "mnist": string.digits,
}
"""What the labels of each variant mean, from label 0 on."""


class Emnist(DealtDataset):
    """EMNIST: handwritten characters (28, 28), pixels in [0, 1]; 62 labels as ``byclass``.

    Training and test part are put together and dealt to the clients, who each split theirs
    60/20/20. The files hold each image transposed; here it is upright. Labels of ``letters``, which
    are 1 .. 26 in the files, are 0 .. 25. Marfoq et al. 2021 take a tenth of the images
    (``fraction: 0.1``).

    Parameters
    ----------
    raw : str, optional
        The archive ``gzip.zip``, or a directory with it or its files, as
        ``emnist-byclass-train-images-idx3-ubyte.gz``. None is ``$MPIFED_DATA/emnist``.
    variant : {'byclass', 'bymerge', 'balanced', 'letters', 'digits', 'mnist'}
        Which of the published sets.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        variant: Variant = "byclass",
        **options: Any,
    ) -> None:
        super().__init__(n_clients, run_seed, communicator, lambda: _read(raw, variant), **options)


def _read(raw: str | None, variant: Variant) -> Source:
    among, characters = places(raw, "emnist"), CHARACTERS[variant]
    parts, labels = inspect(among, f"emnist-{variant}-")
    labels = labels - (variant == "letters")
    wrong = labels[(labels < 0) | (labels >= len(characters))]
    if len(wrong):
        raise InputError(
            f"data.raw is '{among[0]}', where a label of emnist-{variant} is "
            f"{wrong[0] + (variant == 'letters')}, beyond its {len(characters)} labels"
        )
    pool = Pool(
        f"emnist-{variant}",
        labels,
        len(characters),
        parts[0].shape[::-1],
        "uint8",
        BRIGHTEST,
        class_names=tuple(characters),
    )
    return Source(pool, lambda: _upright(parts), is_test=in_second(parts))


def _upright(parts: list[Part]) -> Iterator[np.ndarray]:
    for piece in pieces(parts):
        yield np.ascontiguousarray(piece.transpose(0, 2, 1))
