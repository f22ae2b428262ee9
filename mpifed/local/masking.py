"""Which numbers of a row local steps train, for updates that leave the others as they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

SPAN = 4096
"""Numbers, about, that are saved and restored in the time of updating one more span."""


@dataclass(frozen=True)
class Mask:
    """A mask of the parameters of a row.

    Attributes
    ----------
    numbers : Tensor
        Which are trained, bool (P,).

    Examples
    --------
    >>> import torch
    >>> Mask(torch.arange(6) % 3 > 0).spans
    (slice(1, 3, None), slice(4, 6, None))
    """

    numbers: Tensor

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """The runs of trained numbers."""
        padded = np.pad(self.numbers.cpu().numpy(), 1).astype(np.int8)
        edges = np.flatnonzero(np.diff(padded))
        return tuple(slice(int(a), int(b)) for a, b in edges.reshape(-1, 2))

    @cached_property
    def is_by_spans(self) -> bool:
        """Whether updating span by span is quicker than restoring what is not trained."""
        return (len(self.spans) - 1) * SPAN <= len(self.numbers)
