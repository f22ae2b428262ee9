"""What is told at once while an experiment is put together, and what is kept as a warning."""

from __future__ import annotations

import logging

from mpifed.training.train import listening


def test_information_is_said_at_once_and_warnings_are_kept():
    log, said = logging.getLogger("mpifed"), []
    level = log.level
    with listening(said.append) as heard:
        log.info("start 1 of 4")
        assert said == ["start 1 of 4"]
        log.warning("too small")
    assert heard == ["too small"] and said == ["start 1 of 4"] and log.level == level


def test_quiet_runs_keep_warnings_alone():
    log = logging.getLogger("mpifed")
    with listening() as heard:
        log.info("start 1 of 4")
        log.warning("too small")
    assert heard == ["too small"]
