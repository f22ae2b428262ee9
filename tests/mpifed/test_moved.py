"""Earlier paths of public modules."""

import importlib
from types import ModuleType

import pytest

from mpifed.moved import MOVED


@pytest.mark.parametrize("before", MOVED)
def test_an_earlier_path_warns_and_has_the_names_of_today(before):
    now = importlib.import_module(MOVED[before])
    with pytest.warns(DeprecationWarning, match=before):
        found = importlib.reload(importlib.import_module(before))
    for name, value in vars(now).items():
        if not name.startswith("_") and not isinstance(value, ModuleType):
            assert getattr(found, name) is value
