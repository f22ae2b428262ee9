"""A user's own pictures, in a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from PIL import Image

from mpifed.dataset import PooledDataset, archives, check_memory, decoded, partitions, tables
from mpifed.errors import InputError, one_line

ENDINGS = (".png", ".jpg", ".jpeg")
BRIGHTEST = 255

# Folders of splits: of training, of tests, and of validation, which are tests where no others are.
TRAIN, TEST, VALIDATION = "train", "test", ("val", "valid", "validation")

Mode = Literal["auto", "grey", "colour"]


@dataclass(frozen=True)
class Picture:
    """Where a picture is: its file, its class, and its client and split where folders say so."""

    name: str
    class_name: str
    client: str | None = None
    split: str | None = None


class ImageFolder(tables.OwnSamples, PooledDataset):
    """Your own pictures (PNG, JPEG) in a folder for each class: ``DIR/cat/1.png``.

    Above the classes there may be folders of clients, ``DIR/oslo/cat/1.png``, and above these
    ``train`` and ``test``. A ``val`` beside them is for tests where there is no ``test``, else for
    training.

    Parameters
    ----------
    path : str
        The directory, or a zip or tar archive.
    size : int, optional
        Rows and columns to which pictures are resized. None keeps them, which must then be alike.
    mode : {'auto', 'grey', 'colour'}
        Whether pictures are (rows, columns) or (3, rows, columns). ``auto`` is colour where one of
        them has colours.
    """

    def __init__(
        self,
        *run: Any,
        partition: partitions.GroupedName | None = None,
        split: partitions.Parts | None = None,
        choose: partitions.Choose = "random",
        task: tables.OwnTask = "auto",
        divisor: tables.Divisor | None = None,
        standardise: bool = False,
        path: str,
        size: Annotated[int, Ge(1), Le(4096)] | None = None,
        mode: Mode = "auto",
        **options: Any,
    ) -> None:
        reading = {"path": path, "size": size, "mode": mode}
        source = self.source(reading, task, divisor, standardise)
        options["partition"], options["split"] = partition or "iid", split
        super().__init__(source, {"choose": choose}, *run, **options)

    @staticmethod
    def read(options: Mapping[str, Any]) -> tuple[str, str, tables.Columns]:
        """Return the pictures in the folder."""
        root = located(options["path"])
        columns = read_pictures(root, pictures_in(root), options["size"], options["mode"])
        return f"data.path is '{root}', where", root.name, columns

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in partition and split, by the folders, where they are here."""
        if not Path(os.path.expanduser(options["path"])).exists():
            return tables.with_partition(options, n_training)
        first, *_ = files = pictures_in(located(options["path"]))
        partition = "iid" if first.client is None else "natural"
        split = "published" if any(file.split == TEST for file in files) else "60_20_20"
        automatic = {"partition": partition, "split": split}
        return {**options, **{name: options[name] or automatic[name] for name in automatic}}


def located(path: str) -> Path:
    """Return the directory or archive; ``InputError`` where there is none."""
    root = Path(os.path.expanduser(path))
    if os.path.isdir(root) or (os.path.isfile(root) and archives.is_archive(root)):
        return root
    raise InputError(f"data.path is '{root}', but there is no such directory or archive")


def pictures_in(root: Path) -> list[Picture]:
    """Return where all pictures are, in the order of their names."""
    names = [name for name in archives.names(root) if is_picture(name)]
    folders = [name.split("/")[:-1] for name in names]
    while len(folders) > 1 and all(len(each) > 1 and each[0] == folders[0][0] for each in folders):
        folders = [each[1:] for each in folders]
    first = {each[0].lower() for each in folders if each}
    are_splits = TRAIN in first and first <= {TRAIN, TEST, *VALIDATION} and len(first) > 1
    splits = [each[0].lower() if are_splits else None for each in folders]
    if are_splits:
        splits = [TEST if s in VALIDATION and TEST not in first else s for s in splits]
        folders = [each[1:] for each in folders]
    depths = {len(each) for each in folders}
    if depths not in ({1}, {2}):
        raise InputError(
            f"data.path is '{root}', which must hold pictures ({', '.join(ENDINGS)}) as "
            "CLASS/1.png, or all as CLIENT/CLASS/1.png, perhaps in train and test"
        )
    return [
        Picture(name, each[-1], each[0] if len(each) == 2 else None, split)
        for name, each, split in zip(names, folders, splits, strict=True)
    ]


def is_picture(name: str) -> bool:
    """Return whether a file is read."""
    return name.lower().endswith(ENDINGS) and not name.split("/")[-1].startswith(".")


def read_pictures(
    root: Path, files: Sequence[Picture], size: int | None, mode: Mode
) -> tables.Columns:
    """Return pictures as samples, bytes (samples, rows, columns) or (samples, 3, rows, columns)."""
    of_mode = {"auto": None, "grey": "L", "colour": "RGB"}[mode]
    pictures: dict[str, np.ndarray] = {}
    names = {file.name for file in files}
    for name, content in archives.contents(root, names.__contains__):
        with archives.reading(root / name):
            picture = resized(decoded(content, of_mode), size)
        if not pictures:
            check_memory(2.0 * picture.nbytes * len(files), f"'{root}' cannot be read: it")
        pictures[name] = picture
    if any(picture.ndim == 3 for picture in pictures.values()):
        pictures = {
            name: picture if picture.ndim == 3 else np.stack([picture] * 3)
            for name, picture in pictures.items()
        }
    first = pictures[files[0].name].shape
    for file in files:
        shape = pictures[file.name].shape
        if shape != first:
            raise InputError(
                f"data.path is '{root}', where pictures have {first[-2]} x {first[-1]} pixels, and "
                f"'{one_line(file.name, 100)}' {shape[-2]} x {shape[-1]}; data.size=N makes all "
                "N x N"
            )
    classes = [file.class_name for file in files]
    labels = numbers_or_texts(classes)
    if labels.dtype.kind == "i" and labels.max() >= 2 * len(set(classes)):  # as years
        labels = np.array(classes, object)
    marks = np.array([file.split == TEST for file in files])
    clients = [file.client for file in files if file.client is not None]
    return tables.Columns(
        np.stack([pictures[file.name] for file in files]),
        labels,
        numbers_or_texts(clients) if clients else None,
        marks if marks.any() else None,
        divisor=BRIGHTEST,
    )


def numbers_or_texts(names: Sequence[str]) -> np.ndarray:
    """Return names of folders as whole numbers where all are spelt as these, else as texts."""
    are_numbers = all(name.isdecimal() and str(int(name)) == name for name in names)
    return np.array(names, np.int64) if are_numbers else np.array(names, object)


def resized(picture: np.ndarray, size: int | None) -> np.ndarray:
    """Return a picture with so many rows and columns, bytes."""
    if size is None or picture.shape[-2:] == (size, size):
        return picture
    layers = picture if picture.ndim == 3 else picture[None]
    scaled = [
        np.asarray(Image.fromarray(layer).resize((size, size), Image.Resampling.BILINEAR))
        for layer in layers
    ]
    return np.stack(scaled) if picture.ndim == 3 else scaled[0]
