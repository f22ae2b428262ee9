"""FLIX (Gasanov et al. 2021): explicit mixtures of each client's own optimum and one shared model.

    T_i(x) = alpha_i x + (1 - alpha_i) x_i,   minimise f~(x) = (1/n) sum_i f_i(T_i(x))

where x_i = argmin f_i is found before the first round, without communication. This is Algorithm 1,
distributed gradient descent on f~; ``dcgd`` and ``diana`` compress its messages. With ``start:
average`` the first round is the one-shot average of Theorem 1 and gradient descent goes on from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.algorithms.base import Predictor
from mpifed.algorithms.flix.earlier_run import stored_model, stored_optima
from mpifed.algorithms.flix.forecast import (
    all_constants,
    constants_in_words,
    optima_reached,
    setting_of,
    theorem_two,
    unproven,
)
from mpifed.algorithms.flix.line_search import Descent, StopRule, Stuck
from mpifed.algorithms.flix.measures import measured
from mpifed.algorithms.flix.minimum import curvatures, minimum
from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.algorithms.flix.one_shot import one_shot_average
from mpifed.algorithms.flix.refusals import refuse_flix, refuse_for_model
from mpifed.algorithms.flix.state import LEAST_VALUE, MINIMISER, FlixState
from mpifed.components.schema import Above, AtLeast, AtMost
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import Objectives
from mpifed.local.objective import Regulariser
from mpifed.local.optima import Solver, Start, local_optima, local_starts, usual_tolerance
from mpifed.local.solver import LocalSGD
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.mpi.agreement import agree
from mpifed.theory import flix as theory

Positive = Annotated[float, Above(0)]
Fraction = Annotated[float, AtLeast(0), AtMost(1)]


class Flix:
    """FLIX by distributed gradient descent: mixtures of a local optimum and a shared model."""

    step_option = "algorithm.step"
    columns = ("objective", "objective_gap", "deployed_distance", "up_floats")
    compressors = "any"

    def __init__(
        self,
        model: Model,
        local: LocalSGD,
        *,
        flix_alpha: Fraction | list[Fraction] = 0.5,
        l2: Annotated[float, AtLeast(0)] = 0.0,
        regulariser: Literal["l2", "nonconvex"] = "l2",
        step: Positive | Literal["line_search"] | None = None,
        setting: Literal["auto", "strongly_convex", "convex", "nonconvex"] = "auto",
        smoothness: Literal["paper", "safe", "published_code"] = "paper",
        start: Literal["average", "zeros", "ones", "random"] | None = None,
        start_from: str | None = None,
        stop_at: Positive | None = None,
        stop_rule: StopRule = "objective",
        stuck: Stuck = "stay",
        gradient: Literal["exact", "stochastic"] = "exact",
        local_solver: Solver = "gd",
        local_start: Start | None = None,
        local_tolerance: Positive | None = None,
        local_iterations: Annotated[int, AtLeast(1)] = 100_000,
        optima_from: str | None = None,
        reference: Literal["auto", "newton", "lbfgs", "none"] = "auto",
        accuracy: Positive = 1e-10,
    ) -> None:
        """``flix_alpha`` is one coefficient for all clients, or a list with one for each.

        ``l2`` is lambda; the paper's regulariser is ``l2``. ``step`` gives gamma by hand; without
        it the theorem for ``setting`` does (auto: strongly convex where lambda is positive, else
        convex); ``line_search`` tries 1 / L for L = 0.1, 0.2, 0.4, ... up to 2^40 in every round
        until the objective falls, and if it never does x will ``stuck: stay`` or be drawn anew from
        N(0, 1) (``redraw``, the published code). ``smoothness: published_code`` divides lambda by
        4 m_i, as the published code does.

        ``start`` null is the average of Theorem 1 under a server and zeros under gossip; the
        published code starts from ones. ``start_from`` is the directory of a run of the same model
        whose newest x is the start, whatever point ``start`` names. x no longer moves once the norm
        of the objective's gradient is below ``stop_at``; ``stop_rule: paper`` takes
        (1/n) sum_i grad f_i(T_i(x)) for it, without alpha_i, as the paper's text has it, and
        ``published_code`` asks for a loss below 1e-4 besides.

        ``local_start`` null is zeros for linear models and independent draws for networks.
        ``local_tolerance`` null is 1e-6 (the paper's) with a regulariser and 1e-3 (the published
        code's) without one, where minimisers may be far away or missing.
        ``optima_from`` is the directory of a run of the same problem whose x_i are taken.
        ``reference`` says how the minimiser is found from which gaps are measured; ``accuracy`` is
        the epsilon of the rounds that the run foretells.
        """
        refuse_for_model(model, step, local_solver, reference)
        self.model, self.local = model, local
        self.regulariser = Regulariser(regulariser, l2)
        self.objective = FlixObjective(
            model,
            self.regulariser,
            flix_alpha,
            Objectives(model, self.regulariser),
            None if gradient == "exact" else local.options.batch_size,
        )
        self.local_options = () if gradient == "exact" else ("batch_size",)
        self.step, self.smoothness = step, smoothness
        self.setting = setting_of(setting, model, self.regulariser)
        self.start, self.start_from = start, start_from
        self.stop_at, self.stop_rule, self.stuck = stop_at, stop_rule, stuck
        linear = isinstance(model, Linear)
        self.local_solver, self.optima_from = local_solver, optima_from
        self.local_start: Start = local_start or ("zeros" if linear else "independent")
        self.local_tolerance = local_tolerance or usual_tolerance(l2)
        self.local_iterations = local_iterations
        self.reference, self.accuracy = reference, accuracy

    refuse = staticmethod(refuse_flix)

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """``local_tolerance`` null as the number that it is."""
        given = options["local_tolerance"]
        return {**options, "local_tolerance": given or usual_tolerance(options["l2"])}

    # -- before the first round

    def inspect(self, dtype: torch.dtype) -> None:
        """Refuses runs in ``start_from`` and ``optima_from`` that hold no such x, or x_i."""
        if self.start_from is not None:
            stored_model(self.start_from, torch.empty(1, self.model.n_parameters, dtype=dtype))
        if self.optima_from is not None:
            none = torch.empty(0, self.model.n_parameters, dtype=dtype)
            stored_optima(self.optima_from, none, np.arange(0))

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FlixState:
        size, count = self.model.n_parameters, len(clients)
        first = torch.zeros(1, size, dtype=dtype)
        if self.start == "ones":
            first += 1
        elif self.start == "random":
            first[0] = torch.from_numpy(self.model.init(draws.stream("model"))).to(dtype)
        double = torch.float64
        return FlixState(
            exchange.spread(first),
            local_starts(self.model, clients, draws, self.local_start, dtype),
            torch.zeros(count, dtype=double),
            torch.zeros(count, dtype=double),
            torch.zeros(1, dtype=double),
            torch.zeros(size, dtype=double),
            torch.zeros(1, dtype=double),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
        )

    def prepare(
        self, state: FlixState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FlixState:
        """The clients' optima, and the constants of the theorems; collective."""
        if self.optima_from is not None:
            optima, norms = stored_optima(self.optima_from, state.optima, clients.ids)
        else:
            how = self.local_solver, self.local_tolerance, self.local_iterations
            # Agreed at once: ranks whose search has ended wait here for those that are stopped.
            optima, norms = agree(
                clients.federation.communicator,
                lambda: local_optima(
                    self.model, clients, self.regulariser, state.optima, draws, *how
                ),
            )
        made = replace(state, optima=optima, gradient_norm=norms)
        if self.start_from is not None:
            x = stored_model(self.start_from, state.model[:1].reshape(1, -1))
            made = replace(made, model=exchange.spread(x))
        if isinstance(self.model, Linear):
            compat = self.smoothness == "published_code"
            l_i = curvatures(self.model, clients, self.regulariser, compat)
            made = replace(made, smoothness=l_i)
        step = self._step(made, clients, exchange)
        made = replace(made, step=torch.tensor([step], dtype=torch.float64))
        found = minimum(self.objective, optima, clients, self.reference)
        if found is None:
            return made
        least = torch.tensor([found.value], dtype=torch.float64)
        known = torch.tensor([MINIMISER if found.unique else LEAST_VALUE])
        return replace(made, reference=found.x, least=least, known=known)

    # -- constants

    def constants(self, state: FlixState, clients: Clients, exchange: Exchange) -> theory.Constants:
        """What the theorems need, over all clients; collective."""
        omega = self.variance(exchange)
        alpha = self.objective.alpha(clients.federation.training)
        strong = max(0.0, self.regulariser.strong_convexity)
        rate = self.memory_rate(omega)
        return all_constants(clients, alpha, state.smoothness, strong, omega, rate)

    def variance(self, exchange: Exchange) -> float:
        """omega of the messages; 0 where they arrive whole, or error feedback makes up for them."""
        compressor = exchange.compressor
        if compressor is None or exchange.shared_is_rows or not compressor.unbiased:
            return 0.0
        return compressor.omega(self.model.n_parameters)

    def memory_rate(self, omega: float) -> float:
        return 1.0

    def _step(self, state: FlixState, clients: Clients, exchange: Exchange) -> float:
        if self.step is not None:
            return self.step if isinstance(self.step, float) else 0.0
        c = self.constants(state, clients, exchange)
        if c.l_alpha <= 0:
            return 0.0
        if exchange.compressor is None or not self.feeds_errors_back(exchange):
            return self.theoretical_step(c)
        delta = exchange.compressor.contraction(self.model.n_parameters)
        return theory.error_feedback_step(c, delta)

    def feeds_errors_back(self, exchange: Exchange) -> bool:
        """Whether a compressor keeps something back, which goes with the next message."""
        compressor = exchange.compressor
        if compressor is None or compressor.unbiased or exchange.shared_is_rows:
            return False
        return compressor.contraction(self.model.n_parameters) < 1

    def theoretical_step(self, c: theory.Constants) -> float:
        """With unbiased compression gradient descent is DCGD; replicas of neighbours need none."""
        return theory.dcgd_step(c, self.setting) if c.omega else theory.dgd_step(c)

    def remarks(self, state: FlixState, clients: Clients, exchange: Exchange) -> list[str]:
        """Constants, step size, and the rounds that the theorems foretell; collective."""
        lines = optima_reached(
            state.gradient_norm, self.local_tolerance, self.local_iterations, clients
        )
        hand = "by line search" if self.step == "line_search" else f"{float(state.step):.6g}"
        if not isinstance(self.model, Linear):
            return [*lines, f"step size {hand}"]
        c = self.constants(state, clients, exchange)
        whose = "error feedback's" if self.feeds_errors_back(exchange) else f"the {self.setting}"
        by = "" if self.step is not None else f", of {whose} theorem"
        beyond = unproven(exchange, self.objective, self.compressors == "unbiased")
        by += f", which does not speak of {beyond}" if by and beyond else ""
        lines.append(f"{constants_in_words(c)}; step size {hand}{by}")
        return lines + (self.foretold(state, c, clients) if self.is_foreseen(exchange) else [])

    def is_foreseen(self, exchange: Exchange) -> bool:
        """Whether the run is one of those that the theorems speak of; where a method goes with any
        compressor, its theorem is about whole messages.
        """
        return (
            self.step is None
            and self.objective.batch_size is None
            and self.smoothness != "published_code"
            and not exchange.shared_is_rows
            and exchange.federation.inclusion == 1
            and (self.compressors == "unbiased" or exchange.compressor is None)
        )

    def foretold(self, state: FlixState, c: theory.Constants, clients: Clients) -> list[str]:
        """Rounds that Theorem 2 needs for ``accuracy``; collective."""
        if not self.from_average:
            return []
        alpha = self.objective.alpha(clients.federation.training)
        return theorem_two(c, alpha, state.optima, state.smoothness, clients, self.accuracy)

    # -- rounds

    def round(
        self, state: FlixState, clients: Clients, channel: Channel, draws: Draws
    ) -> FlixState:
        if self.objective.is_local or int(state.stopped):
            return state
        if self.averages(channel) and draws.round == 1:
            return replace(state, model=self.average(state, clients, channel))
        if self.step == "line_search" or self.stop_at is not None:
            step = float(state.step) or None
            descent = Descent(self.objective, step, self.stop_at, self.stop_rule, self.stuck)
            model, met = descent(state.model, state.optima, clients, channel, draws)
            stopped = torch.tensor([draws.round if met else 0])
            return replace(state, model=model, stopped=stopped)
        x = channel.broadcast(state.model)
        g = self.objective.gradients(state.optima, x[:, 0], clients, draws)
        moved = x - float(state.step) * g[:, None]
        uniform = clients.equal_weights.float().double()  # rounded as in all runs before
        return replace(state, model=channel.average(moved, uniform, before=state.model))

    @property
    def from_average(self) -> bool:
        """Whether a server begins with the one-shot average."""
        return self.start == "average" or (self.start is None and self.start_from is None)

    def averages(self, channel: Channel) -> bool:
        """Whether the first round is the one-shot average."""
        return self.from_average and not channel.shared_is_rows

    def average(self, state: FlixState, clients: Clients, channel: Channel) -> Tensor:
        """The average of Theorem 1, or the model where nobody has a share in it."""
        squares = self.objective.squares(clients)
        found = one_shot_average(state.optima, squares, state.smoothness, channel)
        return state.model if found is None else found[None].to(state.model)

    # -- what is served and measured

    def deploy(self, state: FlixState, clients: Clients, draws: Draws) -> Predictor:
        """Client i predicts with T_i(x)."""
        x = state.model[0] if state.model.dim() == 2 else state.model[:, 0]
        alpha = torch.from_numpy(self.objective.alpha(clients.ids))
        results = {"flix_alpha": alpha, "local_gradient_norm": state.gradient_norm}
        served = self.objective.mixed(state.optima, x, clients)
        return Predictor(served[:, None], results=results)

    def measure(
        self, state: FlixState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        x = exchange.mean(state.model)[0]
        least = float(state.least) if int(state.known) else None
        minimiser = state.reference if int(state.known) == MINIMISER else None
        found = measured(self.objective, state.optima, x, least, minimiser, clients)
        return {**found, "up_floats": exchange.ledger.up_floats}

    def payload(self) -> int:
        """The size of x; 0 where all alpha_i are 0, since then nothing is sent."""
        return 0 if self.objective.is_local else self.model.n_parameters
