from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from published import REAL, idx_bytes

collect_ignore = [] if REAL.is_dir() else ["test_data_real.py"]

REPOSITORY = Path(__file__).parents[3]
COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture
def mnist() -> Path:
    directory = Path(os.environ.get("MPIFED_DATA", REPOSITORY / "../shared/data")) / "mnist"
    if not directory.is_dir():
        pytest.skip(f"no MNIST files: there is no directory '{directory}' (MPIFED_DATA)")
    return directory


@pytest.fixture
def write_idx() -> Callable[..., None]:
    """Writes images (k, rows, cols) and labels (k,) as the two IDX files of a part."""

    def write(
        directory: Path,
        part: str,
        images: np.ndarray,
        labels: np.ndarray,
        compressions: tuple[str, str] = ("", ""),
    ) -> None:
        for what, values, compression in zip(
            ("images-idx3", "labels-idx1"), (images, labels), compressions, strict=True
        ):
            path = directory / f"{part}-{what}-ubyte{compression}"
            path.write_bytes(COMPRESS[compression](idx_bytes(values)))

    return write


@pytest.fixture
def small_images(tmp_path: Path, write_idx: Callable[..., None]) -> Path:
    """A directory with 300 + 80 images of 5 x 4 pixels, of 4 labels, compressed in all ways."""
    directory = tmp_path / "images"
    directory.mkdir()
    random = np.random.default_rng(1)
    for part, count, compressions in (("train", 300, (".xz", "")), ("t10k", 80, (".gz", ".xz"))):
        images = random.integers(0, 256, (count, 5, 4))
        write_idx(directory, part, images, random.integers(0, 4, count), compressions)
    return directory
