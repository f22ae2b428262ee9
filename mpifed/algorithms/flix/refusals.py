"""Which options of FLIX, DCGD and DIANA do not go together, and why."""

from __future__ import annotations

from typing import Any

from mpifed.algorithms.flix.earlier_run import refuse_other_problem
from mpifed.algorithms.server_messages import refuse_biased, refuse_gossip
from mpifed.errors import InputError
from mpifed.models.base import Model
from mpifed.models.linear import Linear


def refuse_flix(configuration: Any) -> str | None:
    """Why these options do not go together, if they do not."""
    options, gossip = configuration.algorithm, configuration.exchange["name"] == "gossip"
    alpha = options["flix_alpha"]
    if isinstance(alpha, list) and len(alpha) != configuration.clients:
        return (
            f"algorithm.flix_alpha has {len(alpha)} entries, but there are "
            f"{configuration.clients} clients; it must be one number, or one for each"
        )
    strong = options["l2"] > 0 and options["regulariser"] == "l2"
    if options["setting"] == "strongly_convex" and not strong:
        return (
            "algorithm.setting is 'strongly_convex', but without regulariser=l2 and an l2 above 0 "
            "nothing makes the risks so; allowed: auto, convex, nonconvex"
        )
    if gossip and options["start"] == "average":
        return (
            "algorithm.start is 'average', which needs a server; allowed with gossip: zeros, "
            "ones, random"
        )
    if options["start"] == "average" and options["start_from"]:
        return (
            f"algorithm.start is 'average', a first round that forgets x, and algorithm.start_from "
            f"is '{options['start_from']}'; one of them must be empty"
        )
    if options["step"] == "line_search" or options["stop_at"] is not None:
        what = "step" if options["step"] == "line_search" else "stop_at"
        said = f"algorithm.{what} is {options[what]!r}, which "
        if gossip or options.get("name") != "flix":
            return said + "asks for algorithm=flix and exchange=server"
        if configuration.compression["name"] not in ("none", "identity"):
            return said + "asks for whole gradients; compression must be none"
    return refuse_other_problem(configuration) if options["optima_from"] else None


def refuse_for_model(
    model: Model, step: float | str | None, local_solver: str, reference: str
) -> None:
    """Raises ``InputError`` for options that need to know more of the model than is known."""
    if step is None and not isinstance(model, Linear):
        raise InputError(
            "algorithm.step is missing: the smoothness of this model is not known, so no "
            "theorem gives it; set a number, or line_search"
        )
    if isinstance(model, Linear) and model.n_outputs == 1:
        return
    for option, value, others in (
        ("local_solver", local_solver, "gd, lbfgs, published_code"),
        ("reference", reference, "auto, lbfgs, none"),
    ):
        if value == "newton":
            raise InputError(
                f"algorithm.{option} is 'newton', which is for linear models with one output; "
                f"allowed here: {others}"
            )


WITH_GOSSIP = (
    "under gossip use algorithm=flix with a compression, which neighbours keep replicas for"
)
WITH_BIAS = (
    "use algorithm=flix, whose messages have error feedback, or an unbiased compressor such as "
    "rand_k"
)


def refuse_compressed(configuration: Any) -> str | None:
    """Why the options of DCGD or DIANA do not go together, if they do not."""
    return (
        refuse_gossip(configuration, WITH_GOSSIP)
        or refuse_biased(configuration, WITH_BIAS)
        or refuse_flix(configuration)
    )
