"""The distribution as older tools ask for it; all that it says is in pyproject.toml."""

from setuptools import setup

setup()
