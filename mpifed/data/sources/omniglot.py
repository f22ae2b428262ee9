"""Omniglot (Lake et al. 2015): handwritten characters of many alphabets, by drawer."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.data.archives import contents, places
from mpifed.data.images import decoded, smaller
from mpifed.data.partitioned import PIECE, GroupedDataset, Pool, Source
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator

SIDE = 105
BRIGHTEST = 255

# As `images_background/Greek/character01/0394_07.png`, drawn by drawer 7.
NAME = re.compile(
    r"(?:(?:.*/)?(?P<set>[^/]+)/)?"
    r"(?P<alphabet>[^/]+)/(?P<character>character\d+)/(?P<number>\d+)_(?P<drawer>\d+)\.png"
)

log = logging.getLogger(__name__)

DrawerOf = Literal["set", "alphabet"]


class Omniglot(GroupedDataset):
    """Omniglot: characters (105, 105) in [0, 1], ink 0, every drawer a client.

    Parameters
    ----------
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
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        raw: str | None = None,
        drawer_of: DrawerOf = "set",
        size: Annotated[int, Ge(1), Le(SIDE)] = SIDE,
        **options: Any,
    ) -> None:
        super().__init__(
            n_clients, run_seed, communicator, lambda: read(raw, drawer_of, size), **options
        )


@dataclass(frozen=True, order=True)
class Drawing:
    """One picture, ordered by its set, character and number."""

    set: str
    alphabet: str
    character: str
    number: str
    drawer: int
    place: int

    @property
    def label(self) -> str:
        """Name of the character."""
        return f"{self.alphabet}/{self.character}"


def read(raw: str | None, drawer_of: DrawerOf = "set", size: int = SIDE) -> Source:
    """Return all drawings that ``raw`` names, by drawer."""
    among = places(raw, "omniglot")
    drawings: list[Drawing] = []
    pictures: list[np.ndarray] = []
    first_in: dict[tuple[str, ...], str] = {}
    repeated = 0
    for place in among:
        for name, content in contents(place, lambda name: NAME.fullmatch(name) is not None):
            found = NAME.fullmatch(name)
            assert found is not None
            words = found["set"] or "", found["alphabet"], found["character"], found["number"]
            drawn = (*words[1:], found["drawer"])
            if drawn in first_in:
                # Of another set, or of an archive that is unpacked beside itself.
                repeated += first_in[drawn] != words[0]
                continue
            first_in[drawn] = words[0]
            if len(pictures) % PIECE == 0:
                check_memory(
                    float(PIECE * SIDE * SIDE), f"'{place}' cannot be read: the rest of it"
                )
            picture = decoded(content, f"'{place / name}'", "L")
            if picture.shape != (SIDE, SIDE):
                raise InputError(
                    f"'{place / name}' has {picture.shape[0]} x {picture.shape[1]} pixels, not "
                    f"{SIDE} x {SIDE}"
                )
            drawings.append(Drawing(*words, int(found["drawer"]), len(pictures)))
            pictures.append(picture if size == SIDE else smaller(picture[None], size)[0])
    if not drawings:
        raise InputError(
            f"data.raw is '{among[0]}', which has no pictures as "
            "images_background/Greek/character01/0394_07.png, unpacked or in a zip archive"
        )
    if repeated:
        log.warning("%d drawings that two sets hold are taken once, in the first set", repeated)
    drawings.sort()
    names, labels = np.unique([each.label for each in drawings], return_inverse=True)
    whose = [
        (each.set, each.alphabet if drawer_of == "alphabet" else "", each.drawer)
        for each in drawings
    ]
    numbers = {drawer: number for number, drawer in enumerate(sorted(set(whose)))}
    pool = Pool(
        "omniglot",
        labels.reshape(-1).astype(np.int64),
        max(len(names), 2),
        (size, size),
        "uint8",
        BRIGHTEST,
        class_names=tuple(names.tolist()),
    )
    order = [each.place for each in drawings]
    owner = np.array([numbers[drawer] for drawer in whose], np.int64)
    return Source(pool, lambda: _pieces(pictures, order), owner)


def _pieces(pictures: list[np.ndarray], order: list[int]) -> Iterator[np.ndarray]:
    for start in range(0, len(order), PIECE):
        yield np.stack([pictures[place] for place in order[start : start + PIECE]])
