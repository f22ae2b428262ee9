"""Objects that a user's module does not have are found in its text; what is there is left alone."""

from __future__ import annotations

import sys

import pytest
from mpifed.components.absent import refuse_absent

from mpifed.errors import InputError

TORCH = "import torch\n"  # never imported here


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that fails where it is imported; return its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str, name: str = "written_module") -> str:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise AssertionError('imported')\n{text}\n")
        return name

    return write


@pytest.mark.parametrize(
    "text",
    [
        "def net(data): ...",
        "class net: ...",
        "net = lambda data: None",
        "a, (net, *b) = 1, (2, 3)",
        "net: object = None",
        "import json as net",
        "import net.inner",
        "from json import loads as net",
        "if True:\n    def net(data): ...",
        "try:\n    from json import net\nexcept ImportError:\n    net = None",
        "for net in (): ...",
        "with open('x') as net: ...",
        "(net := 3)",
        "from json import *",
        "def __getattr__(name): ...",
        "globals()['net'] = None",
        "import sys\nsetattr(sys.modules[__name__], 'net', None)",
        "exec('net = None')",
        "def make():\n    global net\n    def net(data): ...\nmake()",
        "import registrar\nregistrar.add(__name__)",
        "import registrar\nregistrar.add(to=__name__)",
        "def net(:",
    ],
)
def test_a_name_that_may_be_there_passes(text, module):
    refuse_absent(f"{module(text)}:net", "model.name")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def other():\n    net = 1\n    def net(): ...",
        "class Other:\n    net = None",
        "import logging\nlog = logging.getLogger(__name__)",
        "if __name__ == '__main__':\n    print(__file__)",
    ],
)
def test_a_name_that_is_bound_nowhere_outside_is_refused(text, module):
    with pytest.raises(InputError, match="but 'written_module' has no callable 'net'"):
        refuse_absent(f"{module(TORCH + text)}:net", "model.name")
    assert "written_module" not in sys.modules


def test_the_closest_definition_is_named(module):
    with pytest.raises(InputError, match=r"has no callable 'nett'; did you mean 'net'\?$"):
        refuse_absent(f"{module('def net(data): ...')}:nett", "model.name")


def test_modules_of_packages_are_found_without_importing_these(module):
    module("", "written_package.__init__")
    name = module("def net(data): ...", "written_package.inner")
    refuse_absent(f"{name}:net", "model.name")
    refuse_absent("written_package:inner", "model.name")
    with pytest.raises(InputError, match="has no callable 'other'"):
        refuse_absent(f"{name}:other", "model.name")
    assert "written_package" not in sys.modules


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_to_be_found:net", "module 'nowhere_to_be_found' is not found"),
        ("not/a/module:net", "which is a path and no module"),
        (":net", "cannot be imported"),
        ("json:", "has no callable ''"),
        ("json:net", "has no callable 'net'"),
        ("math:net", "has no callable 'net'"),
        ("json:dmup", "did you mean 'dump'"),
        ("__main__:nothing", "it must be defined in the program that is running"),
    ],
)
def test_modules_that_cost_nothing_are_asked(name, said):
    with pytest.raises(InputError, match=said):
        refuse_absent(name, "model.name")


def test_what_these_have_passes():
    refuse_absent("json:loads", "on_round")
    refuse_absent("math:sqrt", "on_round")
