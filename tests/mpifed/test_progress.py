from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest
from commands import environment, started

SHOW = """
from mpifed.training.progress import Progress
progress = Progress(1, 5, False, lambda line: None)
progress.say("a line of its own")
progress.round(2)
progress.close()
"""


def shown(columns: int) -> str:
    """What reaches a terminal of so many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(
        theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0)
    )
    variables = {**environment(TERM="xterm")}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        variables.pop(name, None)
    words, nothing = [sys.executable, "-c", SHOW], subprocess.DEVNULL
    with started(words, stdin=nothing, stdout=theirs, env=variables) as child:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 4096):
                text += part
        except OSError:
            pass  # that is how Linux says that the other end is closed
        os.close(ours)
        assert child.wait(30) == 0
    return text.decode()


@pytest.mark.parametrize("columns", [0, 60])
def test_a_terminal_without_columns_gets_plain_lines(columns):
    text = shown(columns)
    assert "a line of its own" in text
    assert ("\x1b" in text) == (columns > 0)
    assert ("round 2/5" in text) == (columns > 0)
