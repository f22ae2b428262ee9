"""Prints how many tests passed and failed in pytest's JUnit reports: ``count_tests.py FILE ...``.

Reports of several ranks of one job are counted together: a test counts once, as failed if any rank
failed it, as passed if some rank passed it and none failed, and not at all if all skipped it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def outcomes(report: Path) -> dict[str, str]:
    """The outcome of each test in a report; none if the session ended before it was written."""
    if not report.exists():
        return {}
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            found[name] = "failed"
        else:
            # a fixture that fails at its end is a second entry of the same name
            found.setdefault(name, "skipped" if "skipped" in tags else "passed")
    return found


def main(reports: list[Path]) -> None:
    """Prints the two numbers for ``reports``."""
    seen: dict[str, set[str]] = {}
    for report in reports:
        for name, outcome in outcomes(report).items():
            seen.setdefault(name, set()).add(outcome)
    failed = sum("failed" in ranks for ranks in seen.values())
    passed = sum("passed" in ranks and "failed" not in ranks for ranks in seen.values())
    print(passed, failed)


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
