"""scikit-learn's bundled handwritten digits: real data that need not be downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpifed.data.partitioned import DealtDataset, Pool, Source

# Pixels are 0 .. 16.
LEVELS = 16


class Digits(DealtDataset):
    """scikit-learn's 1797 handwritten digits, 8 x 8 pixels in [0, 1], 10 labels."""

    def __init__(self, *run: Any, **options: Any) -> None:
        super().__init__(_read, {}, *run, **options)


def _read() -> Source:
    # scikit-learn takes seconds to import, which only one rank has to spend.
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = bundle.images.astype(np.uint8)
    pool = Pool("digits", bundle.target.astype(np.int64), 10, (8, 8), "uint8", LEVELS)
    return Source(pool, lambda: [images])
