"""Writes docs/evidence/battery.md: where every method ends on four problems with known optima.

    python scripts/studies/battery_page.py

It takes about two minutes. The problems and aims are those of the tests, tests/mpifed/battery.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mpifed"))

from battery import COMPARED, ELSEWHERE, LOOSER, METHODS, PROBLEMS, TOLERANCE, final_gap  # noqa: E402

TEXT = f"""# Gaps to known optima

Every method runs on four small problems whose optima are known, and ends where it aims. A gap is
the largest distance of a number of a client's deployed model from the aim, after the last round.
The tests ask for at most {TOLERANCE:g}, and for what is stated below where steps shrink near the
aim. After {COMPARED} rounds, state digests on one rank and on four were equal in every run.

There are four clients and two parameters. numpy and scipy compute the aims, without mpifed's code.

| problem | risks |
| --- | --- |
| `equal` | one quadratic for all clients |
| `unlike` | f(w) = (w − c)ᵀ A (w − c) / 2, with A and c of each client's own |
| `groups` | least squares without noise; each half of the clients has a regressor of its own |
| `logistic` | logistic regression with an ℓ2 term, whose minimum Newton's steps find to 10⁻¹² |

Clients take five gradient steps a round, and one in `logistic`. On `groups`, the methods of
clusters and mixtures have two clusters or components, and each client aims at its own minimiser.
MOCHA minimises the hinge loss of labels. Methods that cannot put an ℓ2 term on what they deploy run
`logistic` without it.

"""


def cell(method: str, name: str) -> str:
    """Return the gap of a method on a problem, and what is allowed."""
    at_most = LOOSER.get((method, name))
    stated = "" if at_most is None else f" (at most {at_most:g})"
    return f"{final_gap(method, PROBLEMS[name]):.0e}{stated}"


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    lines = [f"| method | aim | rounds | {' | '.join(PROBLEMS)} |", f"|{' --- |' * 7}"]
    for method, entry in METHODS.items():
        aim = entry.aim.__name__.replace("_", " ")
        cells = [cell(method, name) for name in PROBLEMS]
        lines.append(f"| `{method}` | {aim} | {entry.rounds} | {' | '.join(cells)} |")
    aims = {entry.aim for entry in METHODS.values()}
    meanings = sorted(
        f"* **{aim.__name__.replace('_', ' ')}**: {(aim.__doc__ or '').strip()}" for aim in aims
    )
    others = [f"* `{method}` {reason}." for method, reason in ELSEWHERE.items()]
    parts = [
        TEXT + "\n".join(lines),
        "## Aims",
        "\n".join(meanings),
        "## Methods with tests of their own",
        "\n".join(others),
        "<!-- docs: not run: slow -->\n```sh\npython scripts/studies/battery_page.py\n```",
    ]
    (ROOT / "docs" / "evidence" / "battery.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
