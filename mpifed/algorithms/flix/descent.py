"""Gradient descent on the FLIX objective: what ``flix``, ``dcgd`` and ``diana`` have in common.

    x^{k+1} = x^k - gamma g^k,   g^k an estimate of grad f~(x^k)

A ``MessageRule`` says how g^k comes about: whole models (``flix``), compressed gradients (``dcgd``)
or compressed differences of gradients (``diana``). The clients' optima x_i, the first point, the
step size gamma, line search, stopping rule and measurements are here. Gaps are measured from the
minimiser of f~, which every rank finds in lockstep on exact sums over all clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
import scipy.optimize
import torch
from annotated_types import Ge
from torch import Tensor

from mpifed.algorithms.base import Algorithm, AnyChannel, Predictor, Weighting, message_variance
from mpifed.algorithms.flix import options
from mpifed.algorithms.flix.objective import (
    FlixObjective,
    as_linear,
    weighted_mean,
    weighted_variance,
)
from mpifed.algorithms.flix.options import (
    LEAST_VALUE,
    MINIMISER,
    FlixState,
    Fraction,
    Method,
    NonNegative,
    Positive,
    StepSize,
    Stopping,
    stored_model,
    stored_optima,
)
from mpifed.exchange.base import Exchange, ServerChannel, to_server
from mpifed.exchange.measuring import agreed, largest, total
from mpifed.exchange.reduction import SparseRows, gathered
from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import Objectives, hessian, smoothness
from mpifed.local.objective import Regulariser
from mpifed.local.optima import (
    FIRST_SMOOTHNESS,
    MOST_SMOOTHNESS,
    SMALL_LOSS,
    Solver,
    Start,
    local_optima,
    local_starts,
    usual_tolerance,
)
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model
from mpifed.models.linear import Linear
from mpifed.theory import flix as theory

# Parameters up to which Newton's method is preferred: its matrices are summed over clients.
NEWTON_UP_TO = 600

# Smallest over largest curvature up to which f~ counts as flat in some direction.
FLAT = 1e-12

# The last Newton step, over 1 + ||x||, up to which x counts as a minimiser. Where f~ has an infimum
# but no minimiser, the steps do not shrink.
ARRIVED = 1e-4


@dataclass(frozen=True)
class Minimum:
    """f~ at its least."""

    x: Tensor
    value: float
    unique: bool


def curvatures(
    model: Model, clients: Clients, regulariser: Regulariser, published_code: bool
) -> Tensor:
    """L_i, float64 (clients,); zeros where the smoothness of the model is not known."""
    if as_linear(model) is None:
        return torch.zeros(len(clients), dtype=torch.float64)
    found = smoothness(model, clients, regulariser)
    if published_code:
        lam = regulariser.smoothness
        found = found - lam + lam / (4 * torch.from_numpy(clients.n_train).double())
    return found


def minimum(
    objective: FlixObjective, optima: Tensor, clients: Clients, method: Method
) -> Minimum | None:
    """The minimum of f~, as exactly as float64 allows; collective."""
    linear = as_linear(objective.model)
    if method == "none" or (method == "auto" and linear is None):
        return None
    if not objective.alpha(clients.federation.training).any():
        return None
    risk = Risk(objective, optima, clients)
    strongly_convex = linear is not None and objective.regulariser.strong_convexity > 0
    one_output = linear is not None and linear.n_outputs == 1
    small = objective.model.n_parameters <= NEWTON_UP_TO
    if method == "newton" or (method == "auto" and one_output and small):
        assert linear is not None and one_output
        return _newton(risk, linear, strongly_convex)
    # Without Hessians only a strongly convex risk is known to have one minimiser.
    x, value = _lbfgs(risk, objective.model.n_parameters)
    return Minimum(x, value, strongly_convex)


def measured(
    objective: FlixObjective, state: FlixState, x: Tensor, clients: Clients
) -> dict[str, float | None]:
    """What FLIX adds to metrics.csv; collective."""
    n = len(clients.federation.training)
    losses = objective.losses(state.optima, x, clients)
    value = float(total(clients, losses[:, None])[0]) / n
    found: dict[str, float | None] = {"objective": value}
    if int(state.known):
        found["objective_gap"] = value - float(state.least)
    if int(state.known) == MINIMISER:
        away = float((x.double() - state.reference).square().sum())
        squares = float(total(clients, objective.squares(clients)[:, None])[0])
        found["deployed_distance"] = squares * away / n
    return found


class Risk:
    """f~ and its derivatives at x, float64 (P,), over all training clients; collective."""

    def __init__(self, objective: FlixObjective, optima: Tensor, clients: Clients) -> None:
        self._risks, self._regulariser = objective.risks(clients), objective.regulariser
        self._optima, self._clients = optima, clients
        self._alpha = torch.from_numpy(objective.alpha(clients.ids)).to(optima)[:, None]
        self._n = len(clients.federation.training)

    def _mixed(self, x: Tensor) -> Tensor:
        """T_i(x) as ``FlixObjective.mixed``, with alpha rounded to the type of the optima."""
        return self._alpha * x.to(self._optima) + (1 - self._alpha) * self._optima

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        """f~(x) and its gradient, float64 (P,)."""
        points = self._mixed(x)
        losses = self._risks.losses(points).double()[:, None]
        gradients = self._alpha * self._risks.gradients(points)
        summed = total(self._clients, torch.cat([losses, gradients.double()], 1)) / self._n
        return float(summed[0]), summed[1:].cpu()

    def hessian(self, x: Tensor, model: Linear) -> Tensor:
        """The Hessian of f~ at x, float64 (P, P), of a linear model with one output."""
        train = self._clients.shards.train
        rows = [
            alpha.double() ** 2 * hessian(model, train, int(row), point, self._regulariser)
            for alpha, row, point in zip(
                self._alpha.cpu(), self._clients.rows, self._mixed(x), strict=True
            )
        ]
        square = (len(x), len(x))
        stacked = torch.stack(rows) if rows else torch.zeros(0, *square, dtype=torch.float64)
        return total(self._clients, stacked) / self._n


def _newton(risk: Risk, model: Linear, strongly_convex: bool) -> Minimum:
    x = torch.zeros(model.n_parameters, dtype=torch.float64)
    value, gradient = risk(x)
    for _ in range(100):
        step = _newton_step(risk.hessian(x, model), gradient)
        scale = 1.0
        while scale > 2.0**-30:
            moved = x - scale * step
            new_value, new_gradient = risk(moved)
            better = float(new_gradient.norm()) < float(gradient.norm())
            if new_value < value or (new_value == value and better):
                break
            scale /= 2
        else:
            break
        x, value, gradient = moved, new_value, new_gradient
    if strongly_convex:
        return Minimum(x, value, True)
    curvature = risk.hessian(x, model)
    eigenvalues = torch.linalg.eigvalsh(curvature)
    away = float(_newton_step(curvature, gradient).norm())
    curved = float(eigenvalues[0]) > FLAT * float(eigenvalues[-1])
    return Minimum(x, value, curved and away <= ARRIVED * (1 + float(x.norm())))


def _newton_step(curvature: Tensor, gradient: Tensor) -> Tensor:
    """The step of least norm: a Hessian may be singular."""
    return torch.linalg.lstsq(curvature, gradient[:, None], driver="gelsd").solution[:, 0]


def _lbfgs(risk: Callable[[Tensor], tuple[float, Tensor]], size: int) -> tuple[Tensor, float]:
    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = risk(torch.from_numpy(w))
        return f, g.numpy()

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-14, "maxcor": 30}
    found = scipy.optimize.minimize(
        value, np.zeros(size), jac=True, method="L-BFGS-B", options=options
    )
    return torch.from_numpy(found.x), float(found.fun)


@dataclass(frozen=True)
class Problem:
    """A run before its first round, as a theorem sees it."""

    objective: FlixObjective
    state: FlixState
    clients: Clients
    exchange: Exchange
    constants: theory.Constants
    step_size: StepSize
    averages: bool
    accuracy: float

    @property
    def has_minimiser(self) -> bool:
        """Whether Theorems 3 and 4 hold and the minimiser is known, from which they measure."""
        strong = self.step_size.setting == "strongly_convex" and self.constants.mu_alpha > 0
        return strong and bool(int(self.state.known))

    def squared_gradients(self, away_from: Tensor | None = None) -> float:
        """sum_i ||g_i - h_i||^2 for the gradients g_i of f_i(T_i(x)) at the minimiser x*."""
        state, draws = self.state, Draws(0, 0)
        x = state.reference.to(state.optima)
        g = self.objective.gradients(state.optima, x, self.clients, draws)
        if away_from is not None:
            g = g - self.objective.gradients(state.optima, away_from, self.clients, draws)
        return float(total(self.clients, g.double().square().sum(1)[:, None])[0])


def all_constants(
    clients: Clients,
    alpha: np.ndarray,
    smoothness: Tensor,
    strong: float,
    omega: float,
    memory_rate: float,
) -> theory.Constants:
    """The constants of the theorems over all training clients; collective."""
    federation = clients.federation
    one_hot = torch.zeros(len(clients), federation.n_clients, dtype=torch.float64)
    one_hot[torch.arange(len(clients)), torch.from_numpy(clients.ids)] = smoothness
    smooth = total(clients, one_hot).numpy()[federation.training]
    return theory.constants(alpha, smooth, strong, omega, memory_rate)


def feeds_errors_back(exchange: Exchange, size: int) -> bool:
    """Whether the compressor of messages of ``size`` numbers loses something that the next message
    makes up for.
    """
    compressor = exchange.compressor
    if compressor is None or compressor.unbiased or exchange.shared_is_rows:
        return False
    return compressor.contraction(size) < 1


def theorem_of_step(problem: Problem, unproven: list[str]) -> str:
    """Which theorem gave gamma, and what of the run it does not cover, for the log."""
    how, exchange, objective = problem.step_size, problem.exchange, problem.objective
    if how.given is not None:
        return ""
    fed_back = feeds_errors_back(exchange, objective.model.n_parameters)
    whose = "error feedback's" if fed_back else f"the {how.setting}"
    gossip = ["gossip"] if exchange.shared_is_rows else []
    stochastic = ["stochastic gradients"] if objective.batch_size is not None else []
    beyond = " and ".join([*gossip, *stochastic, *unproven])
    return f", of {whose} theorem" + (f", which does not speak of {beyond}" if beyond else "")


def is_predictable(problem: Problem) -> bool:
    """Whether the theorems cover the run, whatever its messages are."""
    how, exchange = problem.step_size, problem.exchange
    return (
        how.given is None
        and how.smoothness != "published_code"
        and problem.objective.batch_size is None
        and not exchange.shared_is_rows
        and exchange.federation.inclusion == 1
    )


def constants_in_words(c: theory.Constants) -> str:
    """The constants, for the log."""
    return (
        f"mean L_i {c.l_hat:.6g}, L_alpha {c.l_alpha:.6g}, condition {c.condition:.4g}, omega "
        f"{c.omega:.4g}"
    )


def accuracy_of_optima(
    gradient_norms: Tensor, tolerance: float, iterations: int, clients: Clients
) -> list[str]:
    """Log lines on how near to their optima the clients came; collective."""
    worst = largest(clients, gradient_norms)
    lines = [f"local optima: gradient norms up to {worst:.2e}"]
    if worst > tolerance:
        lines.append(
            f"warning: algorithm.local_tolerance {tolerance:g} was not reached (at most "
            f"{iterations} iterations, or no further progress); x_i are what was reached"
        )
    return lines


def bold_memory_rate(rate: float, omega: float) -> list[str]:
    """A warning where DIANA's beta, ``rate``, is above what is proven; nothing elsewhere."""
    if theory.is_stable(rate, omega):
        return []
    return [
        f"warning: algorithm.control_variate_rate {rate:g} is above 1 / (1 + omega) = "
        f"{theory.largest_memory_rate(omega):.4g}, up to which DIANA is known to converge"
    ]


def report_theorem_two(problem: Problem) -> list[str]:
    """Rounds that Theorem 2 needs from the one-shot average, with equal coefficients;
    collective.
    """
    c, clients = problem.constants, problem.clients
    alpha = problem.objective.alpha(clients.federation.training)
    equal = len(alpha) > 0 and bool((alpha == alpha[0]).all())
    if not problem.averages or c.mu_hat <= 0 or not equal:
        return []
    variance = weighted_variance(problem.state.optima, problem.state.smoothness, clients)
    rounds = theory.communications(c, variance, problem.accuracy, float(alpha[0]))
    most = theory.one_shot_alpha(c, variance, problem.accuracy)
    return [
        f"Theorem 2: at most {rounds} rounds to a gap of {problem.accuracy:g}; one round is enough "
        f"up to flix_alpha {most:.3g}"
    ]


def report_theorem_three(problem: Problem) -> list[str]:
    """Where Theorem 3 puts the floor of DCGD; collective."""
    if not problem.has_minimiser:
        return []
    c = problem.constants
    noise = problem.squared_gradients() / c.n
    floor = theory.dcgd_floor(c, float(problem.state.step), c.omega * noise)
    gap = c.l_alpha / 2 * floor
    return [f"Theorem 3: E||x - x*||^2 ends at {floor:.3g} at most, the gap at {gap:.3g}"]


def report_theorem_four(problem: Problem, starts_with_gradients: bool) -> list[str]:
    """Rounds after which Theorem 4 puts the expected gap of DIANA below the accuracy;
    collective.
    """
    c, state, clients = problem.constants, problem.state, problem.clients
    if not problem.has_minimiser or not theory.is_stable(c.rho, c.omega):
        return []
    x = state.model[0].to(state.optima)
    if problem.averages:
        mass = state.smoothness * problem.objective.squares(clients)
        x = weighted_mean(state.optima, mass, clients)
    away = float((x.double() - state.reference).square().sum())
    sigma = c.omega * problem.squared_gradients(x if starts_with_gradients else None) / c.n
    step = float(state.step)
    start = away + 4 * step**2 / (c.n * c.rho) * sigma
    rate = theory.diana_rate(c, step)
    rounds = theory.rounds_until(c.l_alpha / 2 * start, problem.accuracy, rate)
    return [
        f"Theorem 4: an expected gap of {problem.accuracy:g} after at most "
        f"{rounds + problem.averages} rounds"
    ]


State = TypeVar("State", bound=FlixState)


class MessageRule(ABC, Generic[State, AnyChannel]):
    """How gradients of f~ travel, and what the paper proves about it."""

    @abstractmethod
    def start(self, state: FlixState) -> State:
        """Return the state before round 1, with what this rule keeps from round to round."""

    @abstractmethod
    def step(
        self,
        objective: FlixObjective,
        state: State,
        clients: Clients,
        channel: AnyChannel,
        draws: Draws,
        first: bool,
    ) -> State:
        """Return the state with x^{k+1} for x^k: one communication round."""

    @abstractmethod
    def step_size(self, c: theory.Constants, how: StepSize) -> float:
        """Return gamma by the theorem for this rule."""

    @abstractmethod
    def predicted_rounds(self, problem: Problem) -> list[str]:
        """Return log lines on what the theorem for this rule predicts; collective."""

    def variance(self, exchange: Exchange, size: int) -> float:
        """Return omega of a message of ``size`` numbers, absent clients included; 0 if it arrives
        whole.
        """
        return message_variance(exchange.compressor, exchange.federation, size)

    def memory_rate(self, omega: float) -> float:
        """Return beta of DIANA's memories; 1 without memories."""
        return 1.0

    def unproven(self, exchange: Exchange) -> list[str]:
        """Return what of the exchange the theorem for this rule does not cover, in words."""
        return []

    def warnings(self, exchange: Exchange, size: int) -> list[str]:
        """Return log lines on options with which the method may diverge."""
        return []


def send_gradients(
    objective: FlixObjective,
    optima: Tensor,
    x: Tensor,
    memories: Tensor | None,
    clients: Clients,
    channel: ServerChannel,
    draws: Draws,
    whole: bool = False,
) -> Tensor | SparseRows:
    """C_i(alpha_i grad f_i(T_i(x)) - h_i) as the server receives it."""
    size, exact = optima.shape[1], objective.batch_size is None
    columns = channel.coordinates(size) if exact and not whole else None
    if columns is not None:
        chosen = objective.partial_gradients(optima, x, clients, columns)
        if chosen is not None:
            if memories is not None:
                chosen.sub_(gathered(memories, columns))
            return channel.send_chosen(SparseRows(columns, chosen, size))
    rows = objective.gradients(optima, x, clients, draws)
    if memories is not None:
        rows.sub_(memories)
    return channel.send(rows, whole)


def stepped(model: Tensor, step: float, gradient: Tensor) -> Tensor:
    """x - step * gradient, computed in float64 at the server."""
    return (model.double() - step * gradient).to(model)


def one_shot_average(
    optima: Tensor, squares: Tensor, smoothness: Tensor, channel: ServerChannel
) -> Tensor | None:
    """The average of Theorem 1: x_avg = sum_i w_i x_i with w_i proportional to alpha_i^2 L_i."""
    known = torch.where(smoothness > 0, smoothness, torch.ones_like(smoothness))
    mass = (squares * known)[:, None].to(optima)
    sent = channel.send(torch.cat([optima * mass, mass], 1), whole=True)
    summed = channel.sum(sent, torch.ones(len(optima), dtype=torch.float64))
    return summed[:-1] / summed[-1] if float(summed[-1]) > 0 else None


S = TypeVar("S", bound=FlixState)


def watched_step(
    objective: FlixObjective,
    stopping: Stopping,
    state: S,
    clients: Clients,
    channel: ServerChannel,
    draws: Draws,
) -> S:
    """One round of gradient descent whose server judges gradients and losses."""
    x = channel.broadcast(state.model)[:, 0]
    sent = channel.send(objective.local_gradients(state.optima, x, clients, draws), whole=True)
    uniform = clients.sampled_weights
    alpha = torch.from_numpy(objective.alpha(clients.ids))
    gradient = channel.sum(sent, uniform * alpha)
    value = partial(_value, objective, state.optima, clients, channel)
    before: float | None = None
    if stopping.below is not None:
        judged = channel.sum(sent, uniform) if stopping.rule == "paper" else gradient
        met = float(judged.norm()) < stopping.below
        if met and stopping.rule == "published_code":
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
    if stopping.stuck == "stay":
        return state
    fresh = draws.stream("redrawn").standard_normal(state.model.shape[1])
    return replace(state, model=torch.from_numpy(fresh).to(state.model)[None])


def _value(
    objective: FlixObjective, optima: Tensor, clients: Clients, channel: ServerChannel, x: Tensor
) -> float:
    """f~(x), from the losses that clients send."""
    losses = objective.losses(optima, x, clients)[:, None]
    return float(channel.sum(channel.send(losses, whole=True), clients.sampled_weights)[0])


class Descent(Algorithm[AnyChannel], Generic[State, AnyChannel]):
    """Gradient descent on the FLIX objective, by one rule for the messages.

    Parameters
    ----------
    model : Model
    local : LocalSolver
        Its batch size alone is read, where ``gradient`` is stochastic.
    messages : MessageRule
        What clients send, and what the server makes of it.
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

    step_option = "algorithm.step"
    averages_by: Weighting = "clients"
    aggregates = "sums"
    local_options: tuple[str, ...] = ()
    columns = ("objective", "objective_gap", "deployed_distance", "up_floats")
    validate = staticmethod(options.check_together)

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        messages: MessageRule[State, AnyChannel],
        *,
        flix_alpha: Fraction | list[Fraction] = 0.5,
        l2: NonNegative = 0.0,
        regulariser: Literal["l2", "nonconvex"] = "l2",
        step: options.Step = None,
        setting: options.Setting = "auto",
        smoothness: options.Smoothness = "paper",
        start: options.FirstPoint = None,
        start_from: str | None = None,
        stop_at: Positive | None = None,
        stop_rule: options.StopRule = "objective",
        stuck: options.Stuck = "stay",
        gradient: Literal["exact", "stochastic"] = "exact",
        local_solver: Solver = "gd",
        local_start: Start | None = None,
        local_tolerance: Positive | None = None,
        local_iterations: Annotated[int, Ge(1)] = 100_000,
        optima_from: str | None = None,
        reference: options.Method = "auto",
        accuracy: Positive = 1e-10,
    ) -> None:
        options.check_model(model, step, local_solver, reference)
        self.model, self.messages = model, messages
        self.regulariser = Regulariser(regulariser, l2)
        risks = Objectives(model, self.regulariser)
        batch_size = None if gradient == "exact" else local.options.batch_size
        self.objective = FlixObjective(model, self.regulariser, flix_alpha, risks, batch_size)
        self.local_options = () if gradient == "exact" else ("batch_size",)
        self.start = options.StartingPoint(start, start_from)
        proven = options.proven_setting(setting, model, self.regulariser)
        self.step_size = options.StepSize(step, proven, smoothness)
        self.stopping = options.Stopping(stop_at, stop_rule, stuck)
        self.optima = options.LocalOptima(
            local_solver,
            local_start or ("independent" if as_linear(model) is None else "zeros"),
            local_tolerance or usual_tolerance(l2),
            local_iterations,
            optima_from,
        )
        self.reference = options.Reference(reference, accuracy)

    @staticmethod
    def complete_options(given: dict[str, Any], n_training: int) -> dict[str, Any]:
        """The options with ``local_tolerance`` null as the number that it means."""
        tolerance = given["local_tolerance"] or usual_tolerance(given["l2"])
        return {**given, "local_tolerance": tolerance}

    # -- before the first round

    def inspect(self, dtype: torch.dtype) -> None:
        """Checks that the runs in ``start_from`` and ``optima_from`` hold such an x, or x_i."""
        if self.start.earlier_run is not None:
            none = torch.empty(1, self.model.n_parameters, dtype=dtype)
            stored_model(self.start.earlier_run, none)
        if self.optima.earlier_run is not None:
            none = torch.empty(0, self.model.n_parameters, dtype=dtype)
            stored_optima(self.optima.earlier_run, none, np.arange(0))

    def init(self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype) -> State:
        size, count, double = self.model.n_parameters, len(clients), torch.float64
        first = torch.zeros(1, size, dtype=dtype, device=clients.device)
        if self.start.point == "ones":
            first += 1
        elif self.start.point == "random":
            first[0] = torch.from_numpy(self.model.init(draws.stream("model"))).to(dtype)
        state = FlixState(
            model=exchange.spread(first),
            optima=local_starts(self.model, clients, draws, self.optima.start, dtype),
            gradient_norm=torch.zeros(count, dtype=double),
            smoothness=torch.zeros(count, dtype=double),
            step=torch.zeros(1, dtype=double),
            reference=first.new_zeros(size, dtype=double),
            least=torch.zeros(1, dtype=double),
            known=torch.zeros(1, dtype=torch.int64),
            stopped=torch.zeros(1, dtype=torch.int64),
        )
        return self.messages.start(state)

    def prepare(self, state: State, clients: Clients, exchange: Exchange, draws: Draws) -> State:
        """The clients' optima, L_i, gamma and the minimiser of f~; collective."""
        x_i, norms = self._local_optima(state.optima, clients, draws)
        compat = self.step_size.smoothness == "published_code"
        l_i = curvatures(self.model, clients, self.regulariser, compat)
        state = replace(state, optima=x_i, gradient_norm=norms.cpu(), smoothness=l_i)
        if self.start.earlier_run is not None:
            x = stored_model(self.start.earlier_run, state.model[:1].reshape(1, -1))
            state = replace(state, model=exchange.spread(x))
        step = torch.tensor([self._step(state, clients, exchange)], dtype=torch.float64)
        found = minimum(self.objective, x_i, clients, self.reference.method)
        if found is None:
            return replace(state, step=step)
        least = torch.tensor([found.value], dtype=torch.float64)
        known = torch.tensor([MINIMISER if found.unique else LEAST_VALUE])
        x = found.x.to(state.reference)
        return replace(state, step=step, reference=x, least=least, known=known)

    def _local_optima(self, start: Tensor, clients: Clients, draws: Draws) -> tuple[Tensor, Tensor]:
        how = self.optima
        if how.earlier_run is not None:
            return stored_optima(how.earlier_run, start, clients.ids)
        limits = how.solver, how.tolerance, how.iterations
        # Agreed at once: who has ended the search waits here for those that are asked to stop.
        return agreed(
            clients,
            lambda: local_optima(self.model, clients, self.regulariser, start, draws, *limits),
        )

    def _step(self, state: FlixState, clients: Clients, exchange: Exchange) -> float:
        given, size = self.step_size.given, self.model.n_parameters
        if given is not None:
            return 0.0 if given == "line_search" else float(given)
        c = self.constants(state, clients, exchange)
        if c.l_alpha <= 0:
            return 0.0
        if exchange.compressor is None or not feeds_errors_back(exchange, size):
            return self.messages.step_size(c, self.step_size)
        return theory.error_feedback_step(c, exchange.compressor.contraction(size))

    def constants(self, state: FlixState, clients: Clients, exchange: Exchange) -> theory.Constants:
        """The constants of the theorems over all clients; collective."""
        omega = self.messages.variance(exchange, self.model.n_parameters)
        return all_constants(
            clients,
            self.objective.alpha(clients.federation.training),
            state.smoothness,
            max(0.0, self.regulariser.strong_convexity),
            omega,
            self.messages.memory_rate(omega),
        )

    def remarks(self, state: State, clients: Clients, exchange: Exchange) -> list[str]:
        """Constants, step size, and the rounds that the theorems predict; collective."""
        warnings = self.messages.warnings(exchange, self.model.n_parameters)
        return [*self._predictions(state, clients, exchange), *warnings]

    def _predictions(self, state: State, clients: Clients, exchange: Exchange) -> list[str]:
        how, accuracy = self.optima, self.reference.accuracy
        lines = accuracy_of_optima(state.gradient_norm, how.tolerance, how.iterations, clients)
        gamma = "by line search" if self.step_size.is_searched else f"{float(state.step):.6g}"
        if as_linear(self.model) is None:
            return [*lines, f"step size {gamma}"]
        c = self.constants(state, clients, exchange)
        averages = self.start.is_average
        problem = Problem(
            self.objective, state, clients, exchange, c, self.step_size, averages, accuracy
        )
        by = theorem_of_step(problem, self.messages.unproven(exchange))
        lines.append(f"{constants_in_words(c)}; step size {gamma}{by}")
        if is_predictable(problem):
            lines += self.messages.predicted_rounds(problem)
        return lines

    # -- rounds

    def round(self, state: State, clients: Clients, channel: AnyChannel, draws: Draws) -> State:
        if self.objective.is_local or int(state.stopped):
            return state
        averages = self.start.is_average and not channel.shared_is_rows
        if averages and draws.round == 1:
            return self._averaged(state, clients, to_server(channel))
        if self.step_size.is_searched or self.stopping.below is not None:
            server = to_server(channel)
            return watched_step(self.objective, self.stopping, state, clients, server, draws)
        first = draws.round == 1 + averages
        return self.messages.step(self.objective, state, clients, channel, draws, first)

    def _averaged(self, state: State, clients: Clients, channel: ServerChannel) -> State:
        """The average of Theorem 1; x as it was where all alpha_i of the participants are 0."""
        squares = self.objective.squares(clients)
        found = one_shot_average(state.optima, squares, state.smoothness, channel)
        return state if found is None else replace(state, model=found[None].to(state.model))

    # -- what is deployed and measured

    def deploy(self, state: State, clients: Clients, draws: Draws) -> Predictor:
        """Client i predicts with T_i(x)."""
        x = state.model[0] if state.model.dim() == 2 else state.model[:, 0]
        alpha = torch.from_numpy(self.objective.alpha(clients.ids))
        results = {"flix_alpha": alpha, "local_gradient_norm": state.gradient_norm}
        served = self.objective.mixed(state.optima, x, clients)
        return Predictor(served[:, None], results=results)

    def measure(
        self, state: State, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        x = exchange.mean(state.model)[0]
        found = measured(self.objective, state, x, clients)
        return {**found, "up_floats": exchange.ledger.up_floats}

    def payload(self) -> int:
        """The size of x; 0 where all alpha_i are 0, since then nothing is sent."""
        return 0 if self.objective.is_local else self.model.n_parameters
