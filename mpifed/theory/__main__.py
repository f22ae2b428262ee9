"""What theorems say of a run, as one JSON object.

    python -m mpifed.theory variance RUN_DIR
    python -m mpifed.theory one-shot RUN_DIR --accuracy E
    python -m mpifed.theory rounds RUN_DIR --accuracy E [--alpha A]
    python -m mpifed.theory alpha RUN_DIR --accuracy E --rounds R
    python -m mpifed.theory observers RUN_DIR

RUN_DIR is a run of flix, dcgd or diana, whose newest checkpoint is read; for observers one of
private gossip with privacy.observers.

variance  checks Proposition 3, Var(T_i(x)) = (1 - alpha)^2 Var(x_i).
one-shot  gives the largest alpha with which the one-shot average (Theorem 1) is within E of the
          minimum, and a bound on its distance from the minimum with the alpha of the run.
rounds    gives the number of communications after which gradient descent is within E of the
          minimum (Theorem 2).
alpha     gives the largest alpha with which R communications are enough for that (Theorem 2).
observers gives epsilon of what each training client (a row) has learnt of each other, null of
          itself; the largest of them and their mean.

rounds and alpha need a run of flix in which all clients send uncompressed messages; the log of a
run of dcgd or diana has the prediction of its own theorem.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.command import Parser, carried_out, parser_of, whole
from mpifed.errors import EXIT_FINISHED, InputError
from mpifed.theory import flix
from topologies.command_line import number
from topologies.schema import excerpt

METHODS = ("flix", "dcgd", "diana")
REQUIRED: dict[str, tuple[str, ...]] = {
    "variance": (),
    "one-shot": ("accuracy",),
    "rounds": ("accuracy",),
    "alpha": ("accuracy", "rounds"),
    "observers": (),
}


@dataclass(frozen=True)
class Stored:
    """The training clients in the newest checkpoint of a run; n of them, models of P numbers."""

    path: Path
    alpha: np.ndarray
    optima: np.ndarray
    smoothness: np.ndarray
    x: np.ndarray
    strong: float
    configuration: Mapping[str, Any]

    def deployed(self) -> np.ndarray:
        """Return T_i(x) = alpha_i x + (1 - alpha_i) x_i, (n, P)."""
        alpha = self.alpha[:, None]
        return alpha * self.x + (1 - alpha) * self.optima

    def equal_alpha(self) -> float:
        """Return the alpha that all clients share; raise ``InputError`` if they differ."""
        if not (self.alpha == self.alpha[0]).all():
            raise InputError(
                f"{self.path}: algorithm.flix_alpha differs between clients; this is known for "
                "equal coefficients only"
            )
        return float(self.alpha[0])

    def constants(self) -> flix.Constants:
        """Return the constants without compression."""
        if self.configuration["algorithm"]["smoothness"] == "published_code":
            raise InputError(
                f"{self.path}: algorithm.smoothness is 'published_code', whose L_i are too small "
                "for the theorems; ask of a run with: paper, safe"
            )
        if not (self.smoothness > 0).all():
            raise InputError(
                f"{self.path}: the smoothness of this model is not known; theorems are for linear "
                "models"
            )
        return flix.constants(self.alpha, self.smoothness, self.strong)

    def of_gradient_descent(self) -> flix.Constants:
        """Return the constants for Theorem 2."""
        c, beyond = self.constants(), self._beyond_gradient_descent()
        if beyond:
            raise InputError(
                f"{self.path}: Theorem 2 is about gradient descent, where all clients send whole "
                f"gradients to a server in every round; this run has {' and '.join(beyond)}"
            )
        if self.strong <= 0:
            raise InputError(
                f"{self.path}: the risks are not strongly convex; Theorem 2 asks for algorithm.l2 "
                "above 0 and regulariser=l2"
            )
        return c

    def _beyond_gradient_descent(self) -> list[str]:
        """Return the options of the run that gradient descent does not have, as key=value."""
        run = self.configuration
        options = run["algorithm"]
        plain = {
            "algorithm": (options["name"], ("flix",)),
            "compression": (run["compression"]["name"], ("none", "identity")),
            "exchange": (run["exchange"]["name"], ("server",)),
            "algorithm.gradient": (options["gradient"], ("exact",)),
            "participation": (run["participation"], (1.0,)),
        }
        return [
            f"{key}={excerpt(value)}" for key, (value, fine) in plain.items() if value not in fine
        ]


def read_run(directory: Path) -> Stored:
    """Read the newest intact checkpoint of a run directory."""
    # Below all that needs no torch, which checkpoints bring.
    from mpifed.checkpoint.files import newest
    from mpifed.federation.clients import draw_unseen
    from mpifed.io import hdf5

    found, _ = newest(directory)
    if found is None:
        raise InputError(f"RUN_DIR is '{directory}', which holds no intact checkpoint of a run")
    path, run = found[0], found[1].configuration
    options = run["algorithm"]
    if options["name"] not in METHODS:
        raise InputError(
            f"RUN_DIR is '{directory}', a run of '{options['name']}'; it must be one of: "
            f"{', '.join(METHODS)}"
        )
    try:
        n = run["clients"]
        training = np.flatnonzero(
            ~draw_unseen(n, run["evaluation"]["unseen_fraction"], run["seed"])
        )
        alpha = np.broadcast_to(np.asarray(options["flix_alpha"], float), n)[training]
        strong = float(options["l2"]) if options["regulariser"] == "l2" else 0.0
        with hdf5.opened(path) as file:
            clients = file["clients"]
            shared = "model" not in clients
            stored = hdf5.all_values(file["server/model"] if shared else clients["model"])
            optima, smooth = (hdf5.all_values(clients[name]) for name in ("optima", "smoothness"))
        if not len(optima) == len(smooth) == n or (len(stored) != n and not shared):
            raise ValueError(f"it does not hold the state of {n} clients")
        x = (stored[0] if shared else stored[training, 0]).astype(float)
        optima, smooth = optima[training].astype(float), smooth[training].astype(float)
        if optima.ndim != 2 or optima.shape[-1:] != x.shape[-1:] or smooth.ndim != 1:
            raise ValueError("its models and optima have different shapes")
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a run of FLIX: {hdf5.disk_reason(error)}") from None
    return Stored(path, alpha, optima, smooth, x, strong, run)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return carried_out("mpifed.theory", lambda: _answer(words))


def _answer(words: Sequence[str] | None) -> int:
    options = parser().parse_args(words)
    for name in REQUIRED[options.question]:
        if getattr(options, name) is None:
            raise InputError(f"{options.question} needs --{name}")
    if options.question == "observers":
        answer = observers(options.run_dir)
    else:
        answer = ANSWERS[options.question](read_run(options.run_dir), vars(options))
    print(_indented({"question": options.question, **answer}))
    return EXIT_FINISHED


def _indented(answer: Mapping[str, Any]) -> str:
    """Return a JSON object with a line for each entry, and for each row of a matrix."""
    entries = []
    for name, value in answer.items():
        text = json.dumps(value).replace("[[", "[\n    [").replace("], [", "],\n    [")
        entries.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}"


def observers(directory: Path) -> dict[str, Any]:
    """Return what the clients of a run of private gossip have learnt of each other."""
    from mpifed.results.results import read_clients

    name = "epsilon_by_observer"
    found = read_clients(directory / "clients.h5").learnt.get(name)
    if found is None:
        raise InputError(
            f"RUN_DIR is '{directory}', whose clients.h5 has no learnt/{name}; ask of a finished "
            "run with privacy.observers: messages, averages"
        )
    rows = [[None if np.isnan(cell) else cell for cell in row] for row in found.tolist()]
    return {"largest": float(np.nanmax(found)), "mean": float(np.nanmean(found)), name: rows}


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
    }


def rounds(run: Stored, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the communications that gradient descent needs for an accuracy (Theorem 2)."""
    c, accuracy = run.of_gradient_descent(), options["accuracy"]
    alpha = run.equal_alpha() if options["alpha"] is None else options["alpha"]
    spread = flix.spread(run.optima, run.smoothness)
    needed = flix.communications(c, spread, accuracy, alpha)
    return {"accuracy": accuracy, "flix_alpha": alpha, "rounds": needed}


def affordable(run: Stored, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the largest equal alpha for a number of communications (Theorem 2, solved for
    alpha).
    """
    c, accuracy = run.of_gradient_descent(), options["accuracy"]
    spread = flix.spread(run.optima, run.smoothness)
    most = flix.affordable_alpha(c, spread, accuracy, options["rounds"])
    return {"accuracy": accuracy, "rounds": options["rounds"], "largest_equal_alpha": most}


POSITIVE = number(float, "a number above 0", lambda value: 0 < value < float("inf"))
SHARE = number(float, "a number, at least 0, at most 1", lambda value: 0 <= value <= 1)

ANSWERS = {"variance": variance, "one-shot": one_shot, "rounds": rounds, "alpha": affordable}


def parser() -> Parser:
    """Return the parser of the command."""
    made = parser_of("theory", __doc__)
    made.add_argument("question", choices=list(REQUIRED), help="what is asked")
    made.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run")
    made.add_argument("--accuracy", type=POSITIVE, metavar="E", help="a gap of the objective")
    made.add_argument("--rounds", type=whole(0), metavar="R", help="communications")
    made.add_argument("--alpha", type=SHARE, metavar="A", help="instead of the run's own")
    return made


if __name__ == "__main__":
    sys.exit(main())
