"""Gradient descent on the FLIX objective: what ``flix``, ``dcgd`` and ``diana`` have in common.

    x^{k+1} = x^k - gamma g^k,   g^k an estimate of grad f~(x^k)

A method says how g^k comes about: from whole models (``flix``), compressed gradients (``dcgd``) or
compressed differences of gradients (``diana``). The clients' optima x_i, the first point, the step
size gamma, line search, stopping rule and measurements are here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

import mpifed.algorithms.flix.theorems as theory
from mpifed import state as states
from mpifed.algorithms.flix.objective import (
    FlixObjective,
    Fraction,
    Method,
    as_linear,
    check_coefficients,
    minimum,
)
from mpifed.errors import InputError, excerpt
from mpifed.message import SparseRows, gathered, message_variance, proven_contraction
from mpifed.method import (
    Algorithm,
    AnyChannel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Predictor,
    Requirement,
    ServerChannel,
    plain,
    stored_configuration,
    stored_state,
    to_server,
)
from mpifed.model import (
    FIRST_SMOOTHNESS,
    MOST_SMOOTHNESS,
    SMALL_LOSS,
    Model,
    Objectives,
    Regulariser,
    Solver,
    Start,
    local_optima,
    local_starts,
    smoothness,
    starting_point,
    usual_tolerance,
)

# Parts of a configuration, and options of the algorithm, that change a client's optimum.
OPTIMUM = (
    *("l2", "regulariser", "local_solver", "local_start"),
    *("local_tolerance", "local_iterations"),
)

Positive = Annotated[float, Gt(0)]

# What may be known of the minimum of f~.
MINIMISER, LEAST_VALUE = 1, 2


@dataclass(frozen=True)
class FlixState:
    """The state of ``flix`` and ``dcgd``; that of ``diana`` adds its memories."""

    model: Tensor = states.shared()
    optima: Tensor = states.client()
    gradient_norm: Tensor = states.client()
    smoothness: Tensor = states.client()
    step: Tensor = states.server()
    reference: Tensor = states.server()
    least: Tensor = states.server()
    known: Tensor = states.server()
    stopped: Tensor = states.server()


@dataclass(frozen=True)
class StoredModel:
    """The x of a run under a server, (1, P)."""

    model: Tensor = states.server()


@dataclass(frozen=True)
class StoredOptima:
    """x_i (clients, P) and ||grad f_i(x_i)|| (clients,)."""

    optima: Tensor = states.client()
    gradient_norm: Tensor = states.client()


class Descent(Algorithm[AnyChannel]):
    """Gradient descent on the FLIX objective.

    Parameters
    ----------
    model : Model
    local : LocalSolver
        Its batch size alone is read, where ``gradient`` is stochastic.
    flix_alpha : float or list of float
        alpha_i: one coefficient for all clients, or one for each.
    l2 : float
        lambda, the strength of the regulariser.
    regulariser : {'l2', 'nonconvex'}
        The paper's is ``l2``; the other is the published code's.
    step : float or 'line_search', optional
        gamma; None is that of the theorem for ``setting``. ``line_search`` tries 1 / L for L = 0.1,
        0.2, 0.4, ... up to 2^40 in every round, until the objective falls.
    setting : {'auto', 'strongly_convex', 'convex', 'nonconvex'}
        ``auto`` is strongly convex where lambda is positive, else convex.
    smoothness : {'paper', 'safe', 'published_code'}
        The constants that enter gamma. ``safe`` puts max_i alpha_i^2 L_i for L_alpha in Theorem 8;
        ``published_code`` divides lambda by 4 m_i in L_i.
    start : {'average', 'zeros', 'ones', 'random'}, optional
        x^0; None is the average of Theorem 1 under a server, zeros under gossip. The published code
        starts from ones.
    start_from : str, optional
        The directory of a run of the same model, whose newest x is x^0 whatever ``start`` says.
    stop_at : float, optional
        x no longer moves once the norm of the gradient of f~ is below it.
    stop_rule : {'objective', 'paper', 'published_code'}
        ``paper`` takes (1/n) sum_i grad f_i(T_i(x)) for that gradient, without alpha_i, as the
        paper's text has it; ``published_code`` asks for a loss below 1e-4 besides.
    stuck : {'stay', 'redraw'}
        Where no step of a line search decreases f~, x stays, or is drawn anew from N(0, 1), as in
        the published code.
    gradient : {'exact', 'stochastic'}
        Whether a client's gradient is that of its whole risk, or of a minibatch.
    local_solver : {'gd', 'lbfgs', 'newton', 'published_code'}
        How the x_i are found.
    local_start : {'zeros', 'shared', 'independent'}, optional
        Where that starts; None is zeros for linear models, independent draws for networks.
    local_tolerance : float, optional
        ||grad f_i|| at which it stops. None is 1e-6 (the paper's) with a regulariser and 1e-3 (the
        published code's) without one, where minimisers may be far away or missing.
    local_iterations : int
        Iterations after which it stops at the latest.
    optima_from : str, optional
        The directory of a run of the same problem, whose x_i are taken.
    reference : {'auto', 'newton', 'lbfgs', 'none'}
        How the minimiser is found from which gaps are measured.
    accuracy : float
        epsilon, the gap for which the log predicts rounds.
    """

    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement({"participation.late": "miss"}, "whose clients compute one gradient"),
        Requirement(
            {"algorithm.regulariser": "l2", "algorithm.l2": Gt(0)},
            "which nothing else makes the risks",
            {"algorithm.setting": "strongly_convex"},
        ),
        Requirement(
            {"algorithm.start": ("zeros", "ones", "random")},
            "without a server",
            {"exchange": "gossip"},
        ),
        Requirement(
            {"algorithm.start_from": None}, "which forgets x", {"algorithm.start": "average"}
        ),
    )
    step_option = "algorithm.step"
    aggregates = "sums"
    local_options: tuple[str, ...] = ()
    columns = ("objective", "objective_gap", "deployed_distance", "up_floats")

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        flix_alpha: Fraction | list[Fraction] = 0.5,
        l2: Annotated[float, Ge(0)] = 0.0,
        regulariser: Literal["l2", "nonconvex"] = "l2",
        step: Positive | Literal["line_search"] | None = None,
        setting: Literal["auto", "strongly_convex", "convex", "nonconvex"] = "auto",
        smoothness: Literal["paper", "safe", "published_code"] = "paper",
        start: Literal["average", "zeros", "ones", "random"] | None = None,
        start_from: str | None = None,
        stop_at: Positive | None = None,
        stop_rule: Literal["objective", "paper", "published_code"] = "objective",
        stuck: Literal["stay", "redraw"] = "stay",
        gradient: Literal["exact", "stochastic"] = "exact",
        local_solver: Solver = "gd",
        local_start: Start | None = None,
        local_tolerance: Positive | None = None,
        local_iterations: Annotated[int, Ge(1)] = 100_000,
        optima_from: str | None = None,
        reference: Method = "auto",
        accuracy: Positive = 1e-10,
    ) -> None:
        check_model(model, step, local_solver, reference)
        self.model, self.regulariser = model, Regulariser(regulariser, l2)
        self.is_linear = as_linear(model) is not None
        risks = Objectives(model, self.regulariser)
        batch_size = None if gradient == "exact" else local.options.batch_size
        self.objective = FlixObjective(flix_alpha, model, self.regulariser, risks, batch_size)
        self.local_options = () if gradient == "exact" else ("batch_size",)
        self.start, self.start_from = start, start_from
        # Whether round 1 under a server is the one-shot average.
        self.averages = start == "average" or (start is None and start_from is None)
        self.step, self.smoothness = step, smoothness
        self.setting: theory.Setting
        if setting != "auto":
            self.setting = setting
        elif regulariser == "nonconvex" or not self.is_linear:
            self.setting = "nonconvex"
        else:
            self.setting = "strongly_convex" if l2 > 0 else "convex"
        self.stop_at, self.stop_rule, self.stuck = stop_at, stop_rule, stuck
        self.local_start: Start = local_start or ("zeros" if self.is_linear else "independent")
        self.tolerance, self.iterations = local_tolerance or usual_tolerance(l2), local_iterations
        self.solver, self.optima_from = local_solver, optima_from
        self.reference: Method = reference
        self.accuracy = accuracy

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """The options with ``local_tolerance`` null as the number that it means."""
        tolerance = options["local_tolerance"] or usual_tolerance(options["l2"])
        return {**options, "local_tolerance": tolerance}

    @staticmethod
    def validate(
        options: dict[str, Any],
        clients: int,
        seed: int,
        dtype: str,
        data: Any,
        model: Any,
        evaluation: Any,
    ) -> None:
        """Check ``flix_alpha`` against the clients, and ``optima_from`` against its run's files."""
        check_coefficients(options["flix_alpha"], clients)
        directory = options["optima_from"]
        other = stored_configuration(directory) if directory else None
        if other is None:
            return
        problem = {"clients": clients, "seed": seed, "dtype": dtype, "data": data, "model": model}
        pairs = [(key, other.get(key), plain(value)) for key, value in problem.items()]
        held_out = other["evaluation"].get("validation_fraction", 0.0)
        fraction = evaluation.validation_fraction
        pairs.append(("evaluation.validation_fraction", held_out, fraction))
        pairs += [(f"algorithm.{k}", other["algorithm"].get(k), options[k]) for k in OPTIMUM]
        for key, a, b in pairs:
            if a != b:
                raise InputError(
                    f"algorithm.optima_from is '{directory}', a run of another problem: {key} is "
                    f"{excerpt(a)} there, {excerpt(b)} here"
                )

    # -- what a method says

    @abstractmethod
    def descend(
        self, state: FlixState, clients: Clients, channel: AnyChannel, draws: Draws, first: bool
    ) -> FlixState:
        """Return the state with x^{k+1} for x^k: one communication round."""

    @abstractmethod
    def proven_step(self, c: theory.Constants) -> float:
        """Return gamma by the theorem for this method."""

    @abstractmethod
    def predicted_rounds(
        self, state: FlixState, clients: Clients, exchange: Exchange, c: theory.Constants
    ) -> list[str]:
        """Return log lines on what the theorem for this method predicts; collective."""

    def variance(self, exchange: Exchange) -> float:
        """Return omega of a message, absent clients included; 0 if it arrives whole."""
        size = self.model.n_parameters
        return message_variance(exchange.compressor, exchange.federation, size)

    def memory_rate(self, omega: float) -> float:
        """Return beta of DIANA's memories; 1 without memories."""
        return 1.0

    def unproven(self, exchange: Exchange) -> list[str]:
        """Return what of the run the theorem for the step size does not cover, in words."""
        uncovered = ["gossip"] if exchange.shared_is_rows else []
        return [*uncovered, *["stochastic gradients"] * (self.objective.batch_size is not None)]

    # -- before the first round

    def inspect(self, dtype: torch.dtype) -> None:
        """Check that the runs in ``start_from`` and ``optima_from`` hold such an x, or x_i."""
        none = torch.empty(1, self.model.n_parameters, dtype=dtype)
        if self.start_from is not None:
            stored_model(self.start_from, none)
        if self.optima_from is not None:
            stored_optima(self.optima_from, none[:0], np.arange(0))

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FlixState:
        size, count, double = self.model.n_parameters, len(clients), torch.float64
        first = starting_point(self.model, self.start, draws, dtype).to(clients.device)
        return FlixState(
            model=exchange.spread(first),
            optima=local_starts(self.model, clients, draws, self.local_start, dtype),
            gradient_norm=torch.zeros(count, dtype=double),
            smoothness=torch.zeros(count, dtype=double),
            step=torch.zeros(1, dtype=double),
            reference=first.new_zeros(size, dtype=double),
            least=torch.zeros(1, dtype=double),
            known=torch.zeros(1, dtype=torch.int64),
            stopped=torch.zeros(1, dtype=torch.int64),
        )

    def prepare(
        self, state: FlixState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FlixState:
        """The clients' optima, L_i, gamma and the minimiser of f~; collective."""
        x_i, norms = self._local_optima(state.optima, clients, draws)
        state = replace(
            state, optima=x_i, gradient_norm=norms.cpu(), smoothness=self._curvatures(clients)
        )
        if self.start_from is not None:
            x = stored_model(self.start_from, state.model[:1].reshape(1, -1))
            state = replace(state, model=exchange.spread(x))
        step = torch.tensor([self._step(state, clients, exchange)], dtype=torch.float64)
        optimum = minimum(self.objective, x_i, clients, self.reference)
        if optimum is None:
            return replace(state, step=step)
        least = torch.tensor([optimum.value], dtype=torch.float64)
        knowledge = torch.tensor([MINIMISER if optimum.unique else LEAST_VALUE])
        x = optimum.x.to(state.reference)
        return replace(state, step=step, reference=x, least=least, known=knowledge)

    def _local_optima(self, start: Tensor, clients: Clients, draws: Draws) -> tuple[Tensor, Tensor]:
        if self.optima_from is not None:
            return stored_optima(self.optima_from, start, clients.ids)
        limits = self.solver, self.tolerance, self.iterations
        # Agreed at once: who has ended the search waits here for those that are asked to stop.
        return clients.agreed(
            lambda: local_optima(self.model, clients, self.regulariser, start, draws, *limits),
        )

    def _curvatures(self, clients: Clients) -> Tensor:
        """L_i, float64 (clients,); zeros where the smoothness of the model is not known."""
        if not self.is_linear:
            return torch.zeros(len(clients), dtype=torch.float64)
        constants = smoothness(self.model, clients, self.regulariser)
        if self.smoothness == "published_code":
            lam = self.regulariser.smoothness
            constants = constants - lam + lam / (4 * torch.from_numpy(clients.n_train).double())
        return constants

    def _step(self, state: FlixState, clients: Clients, exchange: Exchange) -> float:
        if self.step is not None:
            return 0.0 if self.step == "line_search" else float(self.step)
        c = self.constants(state, clients, exchange)
        if c.l_alpha <= 0:
            return 0.0
        contraction = self._fed_back(exchange)
        return (
            self.proven_step(c) if contraction == 1 else theory.error_feedback_step(c, contraction)
        )

    def _fed_back(self, exchange: Exchange) -> float:
        """delta of a compressor that loses what the next message makes up for; 1 without one."""
        compressor = exchange.compressor
        if compressor is None or compressor.unbiased or exchange.shared_is_rows:
            return 1.0
        return min(1.0, proven_contraction(compressor, self.model.n_parameters))

    def constants(self, state: FlixState, clients: Clients, exchange: Exchange) -> theory.Constants:
        """The constants of the theorems over all training clients; collective."""
        federation, omega = clients.federation, self.variance(exchange)
        one_hot = torch.zeros(len(clients), federation.n_clients, dtype=torch.float64)
        one_hot[torch.arange(len(clients)), torch.from_numpy(clients.ids)] = state.smoothness
        return theory.constants(
            self.objective.alpha(federation.training),
            clients.total(one_hot).numpy()[federation.training],
            max(0.0, self.regulariser.strong_convexity),
            omega,
            self.memory_rate(omega),
        )

    def remarks(self, state: FlixState, clients: Clients, exchange: Exchange) -> list[str]:
        """Constants, step size, and the rounds that the theorems predict; collective."""
        worst = clients.largest(state.gradient_norm)
        lines = [f"local optima: gradient norms up to {worst:.2e}"]
        if worst > self.tolerance:
            lines.append(
                f"warning: algorithm.local_tolerance {self.tolerance:g} was not reached (at most "
                f"{self.iterations} iterations, or no further progress); x_i are what was reached"
            )
        gamma = "by line search" if self.step == "line_search" else f"{float(state.step):.6g}"
        if not self.is_linear:
            return [*lines, f"step size {gamma}"]
        c = self.constants(state, clients, exchange)
        by = ""
        if self.step is None:
            whose = "error feedback's" if self._fed_back(exchange) < 1 else f"the {self.setting}"
            beyond = " and ".join(self.unproven(exchange))
            by = f", of {whose} theorem" + (f", which does not speak of {beyond}" if beyond else "")
        lines.append(
            f"mean L_i {c.l_hat:.6g}, L_alpha {c.l_alpha:.6g}, condition {c.condition:.4g}, omega "
            f"{c.omega:.4g}; step size {gamma}{by}"
        )
        covered = self.step is None and self.smoothness != "published_code"
        covered = covered and self.objective.batch_size is None and not exchange.shared_is_rows
        if covered and exchange.federation.inclusion == 1:
            lines += self.predicted_rounds(state, clients, exchange, c)
        return lines

    def knows_minimiser(self, state: FlixState, c: theory.Constants) -> bool:
        """Return whether Theorems 3 and 4 hold and the point is known from which they measure."""
        strong = self.setting == "strongly_convex" and c.mu_alpha > 0
        return strong and bool(int(state.known))

    def squared_gradients(
        self, state: FlixState, clients: Clients, away_from: Tensor | None = None
    ) -> float:
        """sum_i ||g_i - h_i||^2 for the gradients g_i of f_i(T_i(x)) at the minimiser x*."""
        draws, x = Draws(0, 0), state.reference.to(state.optima)
        g = self.objective.gradients(state.optima, x, clients, draws)
        if away_from is not None:
            g = g - self.objective.gradients(state.optima, away_from, clients, draws)
        return float(clients.total(g.double().square().sum(1)[:, None])[0])

    # -- rounds

    def round(
        self, state: FlixState, clients: Clients, channel: AnyChannel, draws: Draws
    ) -> FlixState:
        if self.objective.is_local or int(state.stopped):
            return state
        averages = self.averages and not channel.shared_is_rows
        if averages and draws.round == 1:
            return self._averaged(state, clients, to_server(channel))
        if self.step == "line_search" or self.stop_at is not None:
            return self._watched(state, clients, to_server(channel), draws)
        return self.descend(state, clients, channel, draws, draws.round == 1 + averages)

    def _averaged(self, state: FlixState, clients: Clients, channel: ServerChannel) -> FlixState:
        """The average of Theorem 1: x = sum_i w_i x_i with w_i proportional to alpha_i^2 L_i; x as
        it was where all alpha_i of the participants are 0.
        """
        optima, smooth = state.optima, state.smoothness
        smoothness_or_one = torch.where(smooth > 0, smooth, torch.ones_like(smooth))
        mass = (self.objective.squares(clients) * smoothness_or_one)[:, None].to(optima)
        sent = channel.send(torch.cat([optima * mass, mass], 1), uncompressed=True)
        summed = channel.sum(sent, torch.ones(len(optima), dtype=torch.float64))
        if not float(summed[-1]) > 0:
            return state
        return replace(state, model=(summed[:-1] / summed[-1])[None].to(state.model))

    def _watched(
        self, state: FlixState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FlixState:
        """One round of gradient descent whose server judges gradients and losses."""
        x = channel.broadcast(state.model)[:, 0]
        local = self.objective.local_gradients(state.optima, x, clients, draws)
        sent, uniform = channel.send(local, uncompressed=True), clients.sampled_weights
        alpha = torch.from_numpy(self.objective.alpha(clients.ids))
        gradient = channel.sum(sent, uniform * alpha)

        def value(x: Tensor) -> float:
            """f~(x), from the losses that clients send."""
            losses = self.objective.losses(state.optima, x, clients)[:, None]
            return float(channel.sum(channel.send(losses, uncompressed=True), uniform)[0])

        before: float | None = None
        if self.stop_at is not None:
            judged = channel.sum(sent, uniform) if self.stop_rule == "paper" else gradient
            met = float(judged.norm()) < self.stop_at
            if met and self.stop_rule == "published_code":
                before = value(x)
                met = before < SMALL_LOSS
            if met:
                return replace(state, stopped=torch.tensor([draws.round]))
        if float(state.step):
            return replace(state, model=stepped(state.model, float(state.step), gradient))
        before = value(x) if before is None else before
        guess = FIRST_SMOOTHNESS
        while guess <= MOST_SMOOTHNESS:
            moved = (state.model.double() - gradient / guess).to(state.model)
            if value(channel.broadcast(moved)[:, 0]) < before:
                return replace(state, model=moved)
            guess *= 2
        if self.stuck == "stay":
            return state
        fresh = draws.stream("redrawn").standard_normal(state.model.shape[1])
        return replace(state, model=torch.from_numpy(fresh).to(state.model)[None])

    # -- what is deployed and measured

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
        x, n = exchange.mean(state.model)[0], len(clients.federation.training)
        losses = self.objective.losses(state.optima, x, clients)
        value = float(clients.total(losses[:, None])[0]) / n
        measures: dict[str, float | None] = {"objective": value}
        if int(state.known):
            measures["objective_gap"] = value - float(state.least)
        if int(state.known) == MINIMISER:
            away = float((x.double() - state.reference).square().sum())
            squares = float(clients.total(self.objective.squares(clients)[:, None])[0])
            measures["deployed_distance"] = squares * away / n
        return {**measures, "up_floats": exchange.ledger.up_floats}

    def payload(self) -> int:
        """The size of x; 0 where all alpha_i are 0, since then nothing is sent."""
        return 0 if self.objective.is_local else self.model.n_parameters


def send_gradients(
    objective: FlixObjective,
    state: FlixState,
    memories: Tensor | None,
    clients: Clients,
    channel: ServerChannel,
    draws: Draws,
    uncompressed: bool = False,
) -> Tensor | SparseRows:
    """C_i(alpha_i grad f_i(T_i(x)) - h_i) as the server receives it."""
    x, optima = state.model[0], state.optima
    exact = objective.batch_size is None
    columns = channel.coordinates(len(x)) if exact and not uncompressed else None
    if columns is not None:
        chosen = objective.partial_gradients(optima, x, clients, columns)
        if chosen is not None:
            if memories is not None:
                chosen.sub_(gathered(memories, columns))
            return channel.send_chosen(SparseRows(columns, chosen, len(x)))
    rows = objective.gradients(optima, x, clients, draws)
    if memories is not None:
        rows.sub_(memories)
    return channel.send(rows, uncompressed)


def stepped(model: Tensor, step: float, gradient: Tensor) -> Tensor:
    """x - step * gradient, computed in float64 at the server."""
    return (model.double() - step * gradient).to(model)


def stored_model(run: str, like: Tensor) -> Tensor:
    """The x of the newest intact checkpoint of a run."""
    template, none = StoredModel(torch.zeros_like(like)), np.arange(0)
    x: Tensor = stored_state(run, "algorithm.start_from", template, none, gossip=False).model
    return x


def stored_optima(run: str, like: Tensor, ids: np.ndarray) -> tuple[Tensor, Tensor]:
    """The clients' optima in the newest intact checkpoint of a run."""
    template = StoredOptima(like, torch.zeros(len(ids), dtype=torch.float64))
    stored = stored_state(run, "algorithm.optima_from", template, ids)
    return stored.optima, stored.gradient_norm


def check_model(model: Model, step: float | str | None, local_solver: str, reference: str) -> None:
    """Check that enough is known of the model for these options."""
    linear = as_linear(model)
    if step is None and linear is None:
        raise InputError(
            "algorithm.step is missing: the smoothness of this model is not known, so no "
            "theorem gives it; set a number, or line_search"
        )
    for option, value in (("local_solver", local_solver), ("reference", reference)):
        if value == "newton" and (linear is None or linear.n_outputs > 1):
            raise InputError(
                f"algorithm.{option} is 'newton', which is for linear models with one output"
            )
