"""Omniglot (Lake et al. 2015): handwritten characters of many alphabets, by drawer."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.dataset import Pool, PooledDataset, Source, archives, decoded, partitions
from mpifed.errors import InputError

SIDE = 105
BRIGHTEST = 255

# As `images_background/Greek/character01/0394_07.png`, drawn by drawer 7.
NAME = re.compile(
    r"(?:(?:.*/)?(?P<set>[^/]+)/)?"
    r"(?P<alphabet>[^/]+)/(?P<character>character\d+)/(?P<number>\d+)_(?P<drawer>\d+)\.png"
)

DrawerOf = Literal["set", "alphabet"]


class Omniglot(PooledDataset):
    """Omniglot (Lake et al. 2015): characters (105, 105) in [0, 1], ink 0, every drawer a client.

    Parameters
    ----------
    partition : str
        How samples are dealt to the clients: each gets all samples of one drawer (``natural``), or
        they are dealt whoever they come from.
    choose : {'random', 'first', 'largest'}
        Which drawers are taken in the partition ``natural`` where there are more than clients.
    raw : str, optional
        Directory or zip archive with ``images_background`` or ``images_evaluation``, or a directory
        with such archives. None is ``$MPIFED_DATA/omniglot``.
    drawer_of : {'set', 'alphabet'}
        Whether a drawer's number means the same one throughout ``images_background`` (and
        ``images_evaluation``), or another one in each alphabet.
    size : int
        Rows and columns of a picture; fewer than 105 are means over areas.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName = "natural",
        choose: partitions.Choose = "random",
        raw: str | None = None,
        drawer_of: DrawerOf = "set",
        size: Annotated[int, Ge(1), Le(SIDE)] = SIDE,
        **options: Any,
    ) -> None:
        options["partition"] = partition
        super().__init__(lambda: read(raw, drawer_of, size), {"choose": choose}, *run, **options)


def read(raw: str | None, drawer_of: DrawerOf = "set", size: int = SIDE) -> Source:
    """Return all drawings that ``raw`` names, by drawer."""
    among = archives.homes(raw, "omniglot")
    # Set and picture of each drawing, by its alphabet, character, number and drawer.
    drawings: dict[tuple[str | Any, ...], tuple[str, np.ndarray]] = {}
    for root in among:
        for name, content in archives.contents(root, lambda name: NAME.fullmatch(name) is not None):
            match = NAME.fullmatch(name)
            assert match is not None
            drawn = match.group("alphabet", "character", "number", "drawer")
            if drawn in drawings:
                continue  # of another set, or of an archive that is unpacked beside itself
            with archives.reading(root / name):
                picture = decoded(content, "L")
                if picture.shape != (SIDE, SIDE):
                    raise ValueError(f"it has {picture.shape} pixels, not {SIDE} x {SIDE}")
            picture = picture if size == SIDE else smaller(picture[None], size)[0]
            drawings[drawn] = match["set"] or "", picture
    if not drawings:
        raise InputError(
            f"data.raw is '{among[0]}', which has no pictures as "
            "images_background/Greek/character01/0394_07.png, unpacked or in a zip archive"
        )
    order = sorted(drawings, key=lambda each: (drawings[each][0], *each[:3], int(each[3])))
    words = [f"{alphabet}/{character}" for alphabet, character, *_ in order]
    class_names, labels = np.unique(words, return_inverse=True)
    within = drawer_of == "alphabet"
    whose = [(drawings[each][0], within and each[0], int(each[3])) for each in order]
    number_of = {drawer: number for number, drawer in enumerate(sorted(set(whose)))}
    pool = Pool(
        *("omniglot", labels.reshape(-1).astype(np.int64), max(len(class_names), 2)),
        *((size, size), "uint8", BRIGHTEST),
        class_names=tuple(class_names.tolist()),
    )
    owner = np.array([number_of[drawer] for drawer in whose], np.int64)
    return Source(pool, lambda: [np.stack([drawings[each][1] for each in order])], owner)


def smaller(pictures: np.ndarray, side: int) -> np.ndarray:
    """Return pictures whose pixels are means over areas of the given ones."""
    rows, columns = (_areas(count, side) for count in pictures.shape[1:])
    means = rows @ pictures.astype(np.float64) @ columns.T
    return np.floor(means + 0.5).astype(np.uint8)


def _areas(count: int, side: int) -> np.ndarray:
    """Share of each of ``count`` pixels in each of ``side`` equal intervals, (side, count)."""
    edges = np.arange(side + 1) * (count / side)
    pixels = np.arange(count)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(overlap, 0) * (side / count)
