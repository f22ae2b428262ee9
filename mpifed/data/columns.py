"""Users' own samples: inputs, targets and clients as arrays, checked and described."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.data.dealt import Parts, Source
from mpifed.data.grouped import GroupedDataset, GroupedName
from mpifed.data.pooled import PIECE, Pool
from mpifed.data.targets import marks, numbered, read_targets
from mpifed.errors import InputError, one_line
from mpifed.mpi.communicator import Communicator

OwnTask = Literal["auto", "classification", "sequence", "multi_label", "regression", "unlabelled"]


@dataclass(frozen=True)
class Columns:
    """Samples, one a row.

    Attributes
    ----------
    x : ndarray
        Inputs, numbers (samples, ...).
    y : ndarray or None
        Targets: (samples,) or (samples, targets).
    client : ndarray or None
        Whose each sample is, whole numbers or texts (samples,).
    is_test : ndarray or None
        Whether each sample is for testing, true or false or 0 or 1 (samples,).
    class_names : tuple of str
        Names of the labels.
    divisor : int or None
        What x is divided by unless an option says so; None where the source does not tell.
    """

    x: np.ndarray
    y: np.ndarray | None = None
    client: np.ndarray | None = None
    is_test: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    divisor: int | None = None


class OwnDataset(GroupedDataset):
    """Samples of a user's own, as inputs, targets and clients.

    Parameters
    ----------
    task : {'auto', 'classification', 'sequence', 'multi_label', 'regression', 'unlabelled'}
        What is to be learnt. ``sequence`` is a label at each position of x. ``auto`` is unlabelled
        without targets, classification for whole numbers and texts, multi_label for several columns
        of 0 and 1, regression for the rest; columns with one 1 in each row are refused.
    divisor : int, optional
        A sample is x over this number, as 255 for pictures of bytes. None is 255 for pictures in
        parquet files, else 1.
    partition : str, optional
        How samples are dealt to the clients. None is natural where each sample has a client, else
        iid.
    split : {'60_20_20', 'in_order', 'published'}, optional
        How a client's samples become training, validation and test samples: 60/20/20 at random, the
        same in the order of the source, or tested on those that are marked. None is published where
        an option marks test samples, else 60_20_20.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        read: Callable[[], tuple[str, str, Columns]],
        *,
        task: OwnTask = "auto",
        divisor: Annotated[int, Ge(1), Le(1 << 31)] | None = None,
        partition: GroupedName | None = None,
        split: Parts | None = None,
        **options: Any,
    ) -> None:
        def find() -> Source:
            said, name, columns = read()
            if columns.client is None and partition == "natural":
                raise InputError(
                    "data.partition is 'natural', but no client of each sample is given "
                    "(data.client)"
                )
            source = source_of(said, name, columns, task, divisor)
            unread = tuple(_unread(columns, partition, split))
            return replace(source, remarks=(*source.remarks, *unread))

        options["partition"], options["split"] = partition or "iid", split
        super().__init__(n_clients, run_seed, communicator, find, **options)

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Fill in partition and split, by whether samples have clients and marks for testing."""
        partition = "natural" if options.get("client") else "iid"
        split = "published" if options.get("test") else "60_20_20"
        found = {"partition": options.get("partition"), "split": options.get("split")}
        own = {"partition": partition, "split": split}
        return {**options, **{name: found[name] or own[name] for name in own}}


def _unread(columns: Columns, partition: str | None, split: str | None) -> Iterator[str]:
    """Lines for the log about columns that the options make no use of."""
    if columns.client is not None and partition != "natural":
        yield (
            f"data.partition={partition} deals samples without regard to the clients that are "
            "given; data.partition=natural deals by them"
        )
    if columns.is_test is not None and split != "published":
        yield (
            f"data.split={split} mixes samples marked for testing with the others; "
            "data.split=published tests on them"
        )


def source_of(
    said: str, name: str, columns: Columns, task: OwnTask, divisor: int | None = None
) -> Source:
    """Return checked columns as a source.

    Parameters
    ----------
    said : str
        The beginning of messages, as ``data.path is 'file.npz', where``.
    name : str
        Name of the data set.
    columns : Columns
        The samples.
    task : str
        What is to be learnt.
    divisor : int, optional
        A sample is x over this number. None is that of the columns, else 1.

    Raises
    ------
    InputError
        If shapes or types do not fit, or a value is not finite.
    """
    x = _inputs(said, columns.x)
    for column, what in (
        (columns.y, "targets"),
        (columns.client, "clients"),
        (columns.is_test, "marks of test samples"),
    ):
        if column is not None and (column.ndim < 1 or len(column) != len(x)):
            raise InputError(
                f"{said} x has {len(x)} samples, but {what} have the shape {column.shape}"
            )
    found = read_targets(
        said, columns.y, None if task == "auto" else task, x.shape, columns.class_names
    )
    scale = divisor or columns.divisor
    pool = Pool(
        name,
        found.values,
        found.n_classes,
        x.shape[1:],
        x.dtype.name,
        scale or 1,
        found.task,
        found.class_names,
    )
    owner = is_test = None
    if columns.client is not None:
        owner = numbered(said, columns.client, "client")[1]
    if columns.is_test is not None:
        is_test = marks(said, columns.is_test)
    remarks = found.remarks if scale is not None else (*found.remarks, *_not_divided(x))
    return Source(pool, lambda: _pieces(x), owner, is_test=is_test, remarks=remarks)


def _not_divided(x: np.ndarray) -> Iterator[str]:
    if x.dtype == np.uint8 and x.max() > 1:
        yield (
            f"x holds bytes up to {x.max()}, which models see as they are; data.divisor=255 makes "
            "numbers in [0, 1] of pictures, data.divisor=1 says that this is meant"
        )


def _pieces(x: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(x), PIECE):
        yield np.ascontiguousarray(x[start : start + PIECE])


def _inputs(said: str, x: np.ndarray) -> np.ndarray:
    """x in a type that is stored: bytes, float32 or float64."""
    if x.dtype.kind not in "biuf":
        raise InputError(
            f"{said} x holds {one_line(str(x.dtype), 40)}, not numbers that can be read: integers, "
            "floating-point numbers of up to 64 bits"
        )
    if x.ndim < 2 or x.size == 0:
        raise InputError(
            f"{said} x has the shape {x.shape}; it must be (samples, features) or (samples, ...), "
            "with a sample at least"
        )
    if x.dtype.kind == "f":
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
        finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
        if not finite.all():
            raise InputError(f"{said} x of sample {finite.argmin()} has a value that is not finite")
        return x
    return x if x.dtype == np.uint8 else x.astype(np.float64)
