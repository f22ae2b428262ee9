"""Surrogates as a run has them, without a run."""

from __future__ import annotations

from typing import Any

from mpifed.data.base import Description
from mpifed.surrogate import Surrogate, as_surrogate, maker_of
from mpifed.testing.data import with_names


def make_surrogate(surrogate: Any, data: Description) -> Surrogate:
    """Make the surrogate of a run on such data.

    Parameters
    ----------
    surrogate : str, function or mapping
        A name, ``module:function``, a function, or a mapping with ``name`` and options, as
        ``algorithm.surrogate``.
    data : mpifed.dataset.Description
        What the samples are, as ``load_dataset(...).description``.

    Returns
    -------
    mpifed.surrogate.Surrogate
        Its ``statistics``, ``minimiser`` and ``losses`` can be compared with closed forms.

    Raises
    ------
    InputError
        If an option is wrong, or does not fit the data.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array([1])
    >>> samples = Description("clusters", (2,), 0, one, one, one, "unlabelled")
    >>> make_surrogate({"name": "dictionary", "n_atoms": 3}, samples).n_parameters
    6
    """
    section = with_names(surrogate, "surrogate")
    return as_surrogate(maker_of(section, "surrogate")(data))
