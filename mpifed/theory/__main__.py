"""What the theorems of FLIX predict for a run, from its newest checkpoint, as one JSON object.

    python -m mpifed.theory variance RUN_DIR
    python -m mpifed.theory one-shot RUN_DIR --accuracy E
    python -m mpifed.theory rounds RUN_DIR --accuracy E [--alpha A]
    python -m mpifed.theory alpha RUN_DIR --accuracy E --rounds R

RUN_DIR is a run of flix, dcgd or diana.

variance  checks Proposition 3, Var(T_i(x)) = (1 - alpha)^2 Var(x_i).
one-shot  gives the largest alpha with which the one-shot average (Theorem 1) is within E of the
          minimum, and a bound on its distance from the minimum with the alpha of the run.
rounds    gives the number of communications after which gradient descent is within E of the
          minimum (Theorem 2).
alpha     gives the largest alpha with which R communications are enough for that (Theorem 2).

rounds and alpha need a run of flix in which all clients send uncompressed messages; the log of a
run of dcgd or diana has the prediction of its own theorem. The output explains each number.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.command import Parser, carried_out, program, whole
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, InputError, complain
from mpifed.results.run_directories import check_checkpointed
from mpifed.theory import flix
from topologies.inputs import number

if TYPE_CHECKING:
    from mpifed.theory.runs import Stored

REQUIRED: dict[str, tuple[str, ...]] = {
    "variance": (),
    "one-shot": ("accuracy",),
    "rounds": ("accuracy",),
    "alpha": ("accuracy", "rounds"),
}


# Explanations of the numbers of ``one_shot``.
ONE_SHOT = {
    "largest_equal_alpha": "up to this alpha, the same for all clients, the one-shot average is "
    "within accuracy of the least f~ (Theorem 1)",
    "largest_alpha": "the same where clients have different alpha_i, none of them larger than this",
    "bound_for_this_run": "with the alpha_i of this run f~ at the one-shot average is at most this "
    "far above its least value, whatever accuracy is and wherever the run began",
}

FROM_AVERAGE = "from the one-shot average, which is one of them, with step 1 / L_alpha (Theorem 2)"
ROUNDS = {
    "rounds": "after this many communications gradient descent is within accuracy of the least f~, "
    f"{FROM_AVERAGE}",
}
# Explanations of the numbers of ``rounds`` and ``affordable``.
AFFORDABLE = {
    "largest_equal_alpha": "up to this alpha, the same for all clients, rounds communications "
    f"bring gradient descent within accuracy of the least f~, {FROM_AVERAGE}",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    try:
        options = parser().parse_args(words)
        _check(options)
        from mpifed.theory.runs import read_run  # brings torch, which no word above needs

        answer = ANSWERS[options.question](read_run(options.run_dir), vars(options))
    except InputError as error:
        complain("mpifed.theory", str(error))
        return EXIT_BAD_INPUT
    print(json.dumps({"question": options.question, **answer}))
    return EXIT_FINISHED


def variance(run: Stored, options: Mapping[str, Any]) -> dict[str, float]:
    """Return both sides of Proposition 3 at the run's x: Var(T_i(x)) = (1 - alpha)^2 Var(x_i)."""
    alpha = run.equal_alpha()
    if run.x.ndim > 1:
        raise InputError(
            f"{run.path}: every client has an x of its own under gossip; Proposition 3 is about "
            "one that all share"
        )
    local, deployed = flix.variance(run.optima), flix.variance(run.deployed())
    predicted = (1 - alpha) ** 2 * local
    return {
        "flix_alpha": alpha,
        "variance_of_optima": local,
        "variance_of_deployed": deployed,
        "predicted": predicted,
    }


def one_shot(run: Stored, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the largest alpha for which the one-shot average is accurate (Theorem 1)."""
    c, accuracy = run.constants(), options["accuracy"]
    spread = flix.spread(run.optima, run.smoothness)
    apart = flix.largest_distance(run.optima)
    own = flix.spread(run.optima, run.alpha**2 * run.smoothness)
    return {
        "accuracy": accuracy,
        "largest_equal_alpha": min(1.0, flix.one_shot_alpha(c, spread, accuracy)),
        "largest_alpha": min(1.0, flix.one_shot_alpha(c, apart, accuracy)),
        "bound_for_this_run": c.l_alpha * own / 2,
        "meaning": ONE_SHOT,
    }


def rounds(run: Stored, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the communications that gradient descent needs for an accuracy (Theorem 2)."""
    c, accuracy = run.of_gradient_descent(), options["accuracy"]
    alpha = run.equal_alpha() if options["alpha"] is None else options["alpha"]
    spread = flix.spread(run.optima, run.smoothness)
    needed = flix.communications(c, spread, accuracy, alpha)
    return {"accuracy": accuracy, "flix_alpha": alpha, "rounds": needed, "meaning": ROUNDS}


def affordable(run: Stored, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the largest equal alpha for a number of communications (Theorem 2, solved for
    alpha).
    """
    c, accuracy = run.of_gradient_descent(), options["accuracy"]
    spread = flix.spread(run.optima, run.smoothness)
    most = flix.affordable_alpha(c, spread, accuracy, options["rounds"])
    answer = {"accuracy": accuracy, "rounds": options["rounds"], "largest_equal_alpha": most}
    return {**answer, "meaning": AFFORDABLE}


POSITIVE = number(float, "a number above 0", lambda value: 0 < value < float("inf"))
SHARE = number(float, "a number, at least 0, at most 1", lambda value: 0 <= value <= 1)

ANSWERS = {"variance": variance, "one-shot": one_shot, "rounds": rounds, "alpha": affordable}


def _check(options: argparse.Namespace) -> None:
    """Validate what needs no checkpoint to be read."""
    for name in REQUIRED[options.question]:
        if getattr(options, name) is None:
            raise InputError(f"{options.question} needs --{name}")
    check_checkpointed(options.run_dir)


def parser() -> Parser:
    """Return the parser of the command."""
    made = Parser(
        prog=program("theory"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("question", choices=list(ANSWERS), help="what is asked")
    made.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run of FLIX")
    made.add_argument("--accuracy", type=POSITIVE, metavar="E", help="a gap of the objective")
    made.add_argument("--rounds", type=whole(0), metavar="R", help="communications")
    made.add_argument("--alpha", type=SHARE, metavar="A", help="instead of the run's own")
    return made


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.theory", main))
