"""What the property tests of readers share: settings, and what a refusal must be."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings

from mpifed.errors import InputError

EXAMPLES = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def a_sentence(error: InputError, path: Path | None = None) -> None:
    """One printable line, which names the file (or its directory) where there is one."""
    text = str(error)
    assert text.isprintable()
    assert path is None or str(path) in text, text
