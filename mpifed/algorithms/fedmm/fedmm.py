"""FedMM: federated majorise-minimise by aggregating surrogates (Dieuleveut et al. 2025, Alg. 2).

Clients compute statistics of their data under T(S). The server mixes them in the surrogates' own
space and maps the result back. Messages are compressed, clients take part at random, and control
variates V_i remove the differences between clients. Algorithm 4, which folds participation into
compression, is this with full participation and ``compression: {name: bernoulli, inner: ...}``.

Under gossip every client holds its S and neighbours mix them. This variant is mpifed's, not the
paper's: a client moves to S_i + gamma n mu_i (its statistics - S_i) and averages the result. Mixing
keeps the mean over clients, so that the factor n mu_i gives it the direction of a server; at a
fixed point sum mu_i S_i equals the clients' statistics, weighted alike.

The rate alpha of the control variates is bounded by Theorem 1; gamma_t are the steps of
Algorithms 1 to 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed import state
from mpifed.dataset import Description, Split
from mpifed.errors import Diverged, InputError, RunError
from mpifed.message import ComponentOf, message_variance
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Not,
    Predictor,
    Requirement,
    ServerChannel,
    to_server,
)
from mpifed.model import NoModel, batches, chosen
from mpifed.surrogate import LinAlgError, MadeWithTarget, Surrogate, as_surrogate, maker_of

# Exceptions of factorisations, those of torch and those of surrogates.
FAILURES = (LinAlgError, RunError)

# A run with a larger objective counts as diverged, even if all numbers are finite.
LARGEST_OBJECTIVE = 1e50

DEFAULT_STEP = 0.05


@dataclass(frozen=True)
class StoredFacts:
    """The facts that a run keeps."""

    facts: Tensor = state.server()


def find_facts(
    surrogate: Surrogate, clients: Clients, weights: Tensor, samples_of: Callable[[int], Tensor]
) -> Tensor:
    """Compute what a surrogate asks of all data; collective."""
    means = []
    for block, size in enumerate(surrogate.fact_blocks):
        rows = torch.zeros(len(clients), size, dtype=torch.float64)
        for i in range(len(clients)):
            rows[i] = surrogate.facts(samples_of(i), block)
        means.append(clients.total(rows, weights))
    return clients.computed_once(lambda: surrogate.conclude(torch.cat(means)))


def sample_of(data: Description, with_target: bool) -> Description:
    """Return the description of the data as ``inputs_of`` gives them."""
    width = math.prod(data.input_shape)
    if not with_target:
        return replace(data, input_shape=(width,), n_classes=0, task="unlabelled")
    targets = {"unlabelled": 0, "classification": 1}.get(data.task, data.n_classes)
    return replace(data, input_shape=(width + targets,))


def shards_of(clients: Clients) -> Split:
    """Return the whole training shards of ``clients``."""
    train = clients.shards.train
    if len(clients) == len(train.counts):
        return train
    spans = zip(clients.starts, clients.starts + clients.n_train, strict=True)
    return chosen(train, [np.arange(first, last) for first, last in spans])


def inputs_of(split: Split, with_target: bool) -> Tensor:
    """Return z of every sample: x, then y as the last columns if ``with_target``:
    (samples, dim).
    """
    x, y = split.x.flatten(1).double(), split.y.double()
    if not with_target or (y.dim() == 2 and not y.shape[1]):
        return x
    return torch.cat([x, y if y.dim() == 2 else y[:, None]], 1)


def rows_or_nan(function: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    """Apply ``function`` to rows, with NaN for those for which it fails."""
    if not len(rows):
        return rows.new_empty(0, size)
    try:
        return function(rows)
    except FAILURES:
        return torch.stack([_or_nan(partial(function, row), size, FAILURES) for row in rows])


def statistics_or_nan(
    surrogate: Surrogate, z: Tensor, theta: Tensor, offsets: np.ndarray
) -> Tensor:
    """Return ``surrogate.statistics``, with NaN for the clients for whom it fails."""

    def of_client(i: int, first: int, last: int) -> Tensor:
        client_theta = theta if theta.dim() == 1 else theta[i]
        return surrogate.statistics(z[first:last], client_theta, np.array([0, last - first]))[0]

    try:
        return surrogate.statistics(z, theta, offsets)
    except LinAlgError:
        spans = enumerate(pairwise(offsets.tolist()))
        rows = [_or_nan(partial(of_client, i, *span), surrogate.size) for i, span in spans]
        return torch.stack(rows)


def _or_nan(
    make: Callable[[], Tensor], size: int, failures: tuple[type[Exception], ...] = (LinAlgError,)
) -> Tensor:
    try:
        return make()
    except failures:
        return torch.full((size,), torch.nan, dtype=torch.float64)


@contextmanager
def at_the_server(what: str) -> Iterator[None]:
    """Turn a failure to compute ``what``, alike on every rank, into ``Diverged`` of no client."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, Diverged):
            raise
        reason = " ".join(str(error).split())
        raise Diverged(
            f"the server's {what} cannot be computed: the training diverged ({reason})", []
        ) from error


def training_objective(
    surrogate: Surrogate, theta: Tensor, clients: Clients, weights: Tensor, with_target: bool
) -> float:
    """Return the objective on all training samples; collective."""
    means = risks(surrogate, theta, clients.shards.train, clients, with_target)
    return float(clients.total(means, weights)[0]) + surrogate.penalty(theta)


def test_objective(
    surrogate: Surrogate, theta: Tensor, clients: Clients, by_samples: bool, with_target: bool
) -> float | None:
    """Return the objective on test samples, of the clients that have any; collective."""
    counts = torch.from_numpy(clients.shards.test.counts[clients.rows]).double()
    means = risks(surrogate, theta, clients.shards.test, clients, with_target)
    weights = counts if by_samples else (counts > 0).double()
    summed, mass = clients.total(torch.cat([means, torch.ones_like(means)], 1), weights)
    return float(summed / mass) + surrogate.penalty(theta) if mass else None


def risks(
    surrogate: Surrogate, theta: Tensor, split: Split, clients: Clients, with_target: bool
) -> Tensor:
    """Return each client's mean loss on some of its samples."""
    means = torch.zeros(len(clients), 1, dtype=torch.float64)
    for i, row in enumerate(clients.rows):
        if split.counts[row]:
            z = inputs_of(split.of_client(row), with_target)
            try:
                means[i] = surrogate.losses(z, theta).mean()
            except LinAlgError:
                means[i] = torch.nan
    return means


@dataclass(frozen=True)
class FedMMState:
    """``surrogate`` S (q,), the one before it, control variates V_i (clients, q) and V (q,)."""

    surrogate: Tensor = state.shared()
    previous: Tensor = state.follows()
    variates: Tensor = state.client()
    variate: Tensor = state.server()
    known: Any = field(default_factory=state.Nothing, metadata={"owner": "server"})


StepRule = Literal["constant", "sqrt", "inverse", "inverse_kept"]


def gamma_of(rule: StepRule, beta: float, t: int) -> float:
    """Return the step size of a round."""
    rules = {
        "constant": beta,
        "sqrt": beta / math.sqrt(beta + t),
        "inverse": 1 / t,
        "inverse_kept": 1 / (t + 1),
    }
    return rules[rule]


class FedMM(Algorithm[Channel]):
    """FedMM: majorise-minimise with aggregation of surrogates, control variates, compression.

    Parameters
    ----------
    surrogate : str or mapping
        The problem (``mpifed/surrogates``) and its options.
    step_rule : {'constant', 'sqrt', 'inverse', 'inverse_kept'}
        gamma_t of round t, from 1, with beta = ``step``: beta, beta / sqrt(beta + t), 1 / t or
        1 / (t + 1). The second is that of the paper's experiments (section 6), the third
        forgets the first S, the fourth keeps it as one sample.
    step : float
        The beta of ``step_rule``.
    control_variate_rate : float
        Rate alpha of the control variates; 0 has none.
    batch : int, optional
        Samples that a client sees in a round. None takes its whole shard.
    online : bool
        Whether each round draws ``batch`` fresh samples from the data set's distribution.
    client_weights : {'uniform', 'samples'}
        The mu_i: 1 / n, as in all experiments of the paper, or m_i / m.
    """

    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement(
            {"exchange.asynchrony": ("none", "wait_free"), "algorithm.control_variate_rate": 0},
            "where values are projected and no server has control variates",
            {"algorithm:exchanges": Not(()), "exchange": "gossip"},
        ),
        Requirement({"data:fresh": Not(None)}, "which draws samples", {"algorithm.online": True}),
        Requirement({"device": ("auto", "cpu")}, "which computes on the CPU"),
        Requirement({"participation.late": "miss"}, "which takes no steps that could be cut"),
    )
    aggregates = "sums"
    local_options = ()
    compressors: ClassVar[Literal["unbiased", "none"]] = "unbiased"
    tasks = ("unlabelled", "classification", "regression")
    columns: tuple[str, ...] = ("objective", "surrogate_update", "parameter_update")

    def __init__(
        self,
        model: NoModel,
        local: LocalSolver,
        *,
        surrogate: Annotated[Any, ComponentOf("surrogate")] = "dictionary",
        step_rule: StepRule = "sqrt",
        step: Annotated[float, Ge(1e-100), Le(1)] = DEFAULT_STEP,
        control_variate_rate: Annotated[float, Ge(0), Le(1)] = 0.0,
        batch: Annotated[int, Ge(1)] | None = None,
        online: bool = False,
        client_weights: Literal["uniform", "samples"] = "uniform",
    ) -> None:
        make = maker_of(surrogate, "algorithm.surrogate")
        self.with_target = isinstance(make.func, MadeWithTarget)
        self.surrogate = as_surrogate(make(sample_of(model.data, self.with_target)))
        self.step_rule, self.step = step_rule, step
        self.step_option, self.unused = "algorithm.step", []
        if step_rule.startswith("inverse"):
            self.step_option = "algorithm.step, with step_rule constant or sqrt,"
            if step != DEFAULT_STEP:
                self.unused.append(
                    f"algorithm.step={step:g} changes nothing: step_rule {step_rule} has no step"
                )
        if model.data.task != "unlabelled" and not self.with_target:
            self.unused.append(
                f"{type(self.surrogate).__name__} describes the inputs alone: the targets of "
                f"'{model.data.source}' are not used"
            )
        self.rate, self.batch, self.online = control_variate_rate, batch, online
        self.by_samples = client_weights == "samples"
        if model.data.n_test.any():
            self.columns = (*self.columns, "test_objective")
        if online and batch is None:
            raise InputError(
                "algorithm.online is true, but algorithm.batch is empty; give a number"
            )

    # -- state

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedMMState:
        surrogate = self.surrogate
        stored_facts: StoredFacts | state.Nothing = state.Nothing()
        if surrogate.fact_blocks:
            facts = self.facts(clients)
            surrogate = as_surrogate(surrogate.knowing(facts))
            stored_facts = StoredFacts(facts) if surrogate.waits else stored_facts
        if self.by_samples and exchange.shared_is_rows:
            self.check_steps(clients)
        theta = torch.from_numpy(surrogate.init(draws.stream("surrogate")))
        begun = exchange.spread(self.first(surrogate, theta, clients))
        size = self.message_size()
        zeros = torch.zeros(len(clients), size, dtype=torch.float64)
        return FedMMState(begun, begun.clone(), zeros, zeros.new_zeros(size), stored_facts)

    def facts(self, clients: Clients) -> Tensor:
        """Return what the surrogate asks of all data; collective."""
        train = clients.shards.train

        def samples_of(i: int) -> Tensor:
            return inputs_of(train.of_client(clients.rows[i]), self.with_target)

        return find_facts(self.surrogate, clients, self.weights(clients), samples_of)

    def surrogate_of(self, state: FedMMState) -> Surrogate:
        """Return the surrogate with the facts that the state has kept."""
        if not isinstance(state.known, StoredFacts):
            return self.surrogate
        return as_surrogate(self.surrogate.knowing(state.known.facts))

    def check_steps(self, clients: Clients) -> None:
        """Refuse steps gamma n mu_i above 1 of a client under gossip, with mu_i = m_i / m."""
        federation = clients.federation
        largest = int(federation.n_train[federation.training].max()) * len(federation.training)
        longest = self.gamma(1) * largest / federation.n_train_total
        if longest > 1:
            raise InputError(
                "algorithm.client_weights is 'samples', with which by gossip a client moves by "
                f"gamma n mu_i, here up to {longest:.4g} in round 1; allowed: at most 1, by a "
                f"smaller {self.step_option} or client_weights uniform"
            )

    def first(self, surrogate: Surrogate, theta: Tensor, clients: Clients) -> Tensor:
        """Return what is iterated, from theta_0: an S with T(S) = theta_0, or the mean statistics
        of all training data under theta_0; collective.
        """
        if not surrogate.starts_from_data:
            return surrogate.surrogate_of(theta)
        means = torch.zeros(len(clients), surrogate.size, dtype=torch.float64)
        if len(clients):
            means = self.statistics(surrogate, theta, shards_of(clients))
        return clients.total(means, self.weights(clients))

    def message_size(self) -> int:
        """Return the numbers q in a message."""
        return self.surrogate.size

    # -- rounds

    def round(
        self, state: FedMMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedMMState:
        surrogate, gamma = self.surrogate_of(state), self.gamma(draws.round)
        start = channel.broadcast(state.surrogate)
        theta = self.shared_parameters(surrogate, state.surrogate, start, channel.shared_is_rows)
        oracle = self.oracle(surrogate, start, theta, clients, draws)
        weights = self.weights(clients)
        if not isinstance(channel, ServerChannel):
            scale = channel.rates(clients.weights, "normalised" if self.by_samples else "none")
            size = gamma if scale is None else gamma * torch.from_numpy(scale)[:, None]
            moved = self.project(surrogate, start + size * (oracle - start))
            mixed = channel.average(moved, weights, before=state.surrogate)
            return replace(state, surrogate=self.project(surrogate, mixed), previous=start)
        p = clients.federation.inclusion
        arrived = channel.send(oracle.sub_(start).sub_(state.variates))  # Quant(Delta_i)
        summed = channel.sum(arrived, weights / p)
        direction = state.variate + summed  # H, with the V before this round
        (moved,) = channel.at_server(
            lambda: [self.project(surrogate, state.surrogate + gamma * direction)]
        )
        return FedMMState(
            moved,
            state.surrogate,
            arrived.mul_(self.rate / p).add_(state.variates) if self.rate else state.variates,
            state.variate + self.rate * summed,
            state.known,
        )

    def idle(
        self, state: FedMMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedMMState:
        """Move along V also where no message arrives."""
        return self.round(state, clients, channel, draws)

    def gamma(self, round: int) -> float:
        """Return gamma_t of round t, counted from 1."""
        return gamma_of(self.step_rule, self.step, round)

    def shared_parameters(
        self, surrogate: Surrogate, s: Tensor, start: Tensor, by_row: bool
    ) -> Tensor:
        """Return T(S), (n_parameters,), or a row for each client's S in ``start``."""
        if not by_row:
            # Also on ranks without a client, so that a failure is the same on all ranks.
            return self.parameters(surrogate, s)
        return rows_or_nan(surrogate.minimiser, start, surrogate.n_parameters)

    def oracle(
        self, surrogate: Surrogate, start: Tensor, theta: Tensor, clients: Clients, draws: Draws
    ) -> Tensor:
        """Return S_i, each client's mean statistics under theta: (clients, q)."""
        if not len(clients):
            return start.clone()
        return self.statistics(surrogate, theta, self.samples(clients, draws))

    def statistics(self, surrogate: Surrogate, theta: Tensor, split: Split) -> Tensor:
        """Return mean statistics of the clients of ``split``, (clients, q); NaN where they fail."""
        z = inputs_of(split, self.with_target)
        return statistics_or_nan(surrogate, z, theta, split.offsets)

    def samples(self, clients: Clients, draws: Draws) -> Split:
        """Return what each client sees this round."""
        if self.online:
            assert clients.shards.fresh is not None
            return clients.shards.fresh(clients.ids, draws.round, self.batch or 1)
        if self.batch is None:
            return shards_of(clients)
        return chosen(clients.shards.train, batches(clients, draws, "samples", self.batch))

    def project(self, surrogate: Surrogate, s: Tensor) -> Tensor:
        """Return ``onto`` of s; s itself where it has no rows or is not finite."""
        return self.onto(surrogate, s) if len(s) and bool(torch.isfinite(s).all()) else s

    def onto(self, surrogate: Surrogate, s: Tensor) -> Tensor:
        """Return the nearest point of the surrogates' domain."""
        return surrogate.project(s)

    def weights(self, clients: Clients) -> Tensor:
        """Return mu_i, float64 (clients,)."""
        return clients.average_weights(self.by_samples)

    def mean(self, s: Tensor, exchange: Exchange) -> Tensor:
        """Return S, under gossip sum mu_i S_i; collective."""
        return exchange.mean(s, self.by_samples)

    def remarks(self, state: FedMMState, clients: Clients, exchange: Exchange) -> list[str]:
        """What Theorem 1 requires of the control variates' rate, and the facts about the data."""
        facts = self.fact_lines(state, clients)
        if exchange.shared_is_rows:
            return ["fedmm by gossip is a variant of mpifed's own, not of the paper", *facts]
        omega = message_variance(exchange.compressor, clients.federation, self.message_size())
        largest = 1 / (1 + omega)
        lines = [
            f"messages vary with omega_p {omega:.4g}; Theorem 1 asks for a control_variate_rate of "
            f"at most {largest:.4g}"
        ]
        if self.rate > largest:
            lines.append(f"warning: algorithm.control_variate_rate is {self.rate:g}, above that")
        return [*lines, *facts]

    def fact_lines(self, state: FedMMState, clients: Clients) -> list[str]:
        """Return lines for the log on the facts about the data, and on what is not used."""
        surrogate = self.surrogate_of(state)
        if surrogate.fact_blocks and not surrogate.waits:
            surrogate = surrogate.knowing(self.facts(clients))
        return [*self.unused, *surrogate.remarks()]

    # -- what is measured

    def deploy(self, state: FedMMState, clients: Clients, draws: Draws) -> Predictor:
        """Return that there is nothing to predict with."""
        return Predictor(None)

    def parameters(self, surrogate: Surrogate, s: Tensor) -> Tensor:
        """Return theta of what is iterated, (n_parameters,)."""
        with at_the_server("T(S)"):
            return surrogate.minimiser(s)

    def learnt(self, state: FedMMState, exchange: Exchange) -> dict[str, Tensor]:
        """theta, under gossip that of sum mu_i S_i, in the parts that the surrogate names."""
        surrogate = self.surrogate_of(state)
        return surrogate.parts(self.parameters(surrogate, self.mean(state.surrogate, exchange)))

    def measure(
        self, state: FedMMState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> dict[str, float | None]:
        """The objective on all training data, and the normalised updates of the last round."""
        surrogate = self.surrogate_of(state)
        now, before = (self.mean(s, exchange) for s in (state.surrogate, state.previous))
        at = surrogate, self.parameters(surrogate, now), clients
        value = training_objective(*at, self.weights(clients), self.with_target)
        if not abs(value) < LARGEST_OBJECTIVE:
            raise Diverged(f"the objective is {value:g}: the training diverged", [])
        measures: dict[str, float | None] = {"objective": value}
        if "test_objective" in self.columns:
            measures["test_objective"] = test_objective(*at, self.by_samples, self.with_target)
        if draws.round:
            squared = self.gamma(draws.round) ** 2
            steps = self.updates(surrogate, now, before, clients, draws)
            measures |= {name: value / squared for name, value in steps.items()}
        return measures

    def updates(
        self, surrogate: Surrogate, now: Tensor, before: Tensor, clients: Clients, draws: Draws
    ) -> dict[str, float]:
        """Return squared norms of the last move in the surrogates' and the parameters' space."""
        theta, theta_before = (self.parameters(surrogate, s) for s in (now, before))
        return {
            "surrogate_update": float((now - before).square().sum()),
            "parameter_update": float((theta - theta_before).square().sum()),
        }

    def payload(self) -> int:
        return self.message_size() if self.communicates else 0


class FedMMTheta(FedMM):
    """The naive twin of FedMM: aggregates parameters, not surrogates (section 4.1, eq. 21).

    A client maps its statistics to parameters before it sends them, and the server mixes
    parameters. The paper uses it to show why surrogates should be mixed.
    """

    columns = (*FedMM.columns, "surrogate_update_estimate")

    def first(self, surrogate: Surrogate, theta: Tensor, clients: Clients) -> Tensor:
        """theta_0 itself is iterated, or T of the mean statistics under it; collective."""
        if not surrogate.starts_from_data:
            return theta
        with at_the_server("first T(S)"):
            return surrogate.minimiser(super().first(surrogate, theta, clients))

    def message_size(self) -> int:
        """Messages are parameters."""
        return self.surrogate.n_parameters

    def shared_parameters(
        self, surrogate: Surrogate, s: Tensor, start: Tensor, by_row: bool
    ) -> Tensor:
        """Return theta as iterated, (n_parameters,), or its rows in ``start`` under gossip."""
        return start if by_row else s

    def oracle(
        self, surrogate: Surrogate, start: Tensor, theta: Tensor, clients: Clients, draws: Draws
    ) -> Tensor:
        """Return theta_i = T(mean statistics under theta), (clients, n_parameters)."""
        if not len(clients):
            return start.clone()
        means = self.statistics(surrogate, theta, self.samples(clients, draws))
        return rows_or_nan(surrogate.minimiser, means, self.message_size())

    def onto(self, surrogate: Surrogate, s: Tensor) -> Tensor:
        """Return the nearest point of Theta, where the surrogate has one."""
        return surrogate.project_parameters(s)

    def parameters(self, surrogate: Surrogate, s: Tensor) -> Tensor:
        """theta of what is iterated, which is theta."""
        return s

    def updates(
        self, surrogate: Surrogate, now: Tensor, before: Tensor, clients: Clients, draws: Draws
    ) -> dict[str, float]:
        """As in ``FedMM``, with statistics of all data for the surrogates' space; collective.

        The estimate has the statistics that clients compute in this round, and in the next one.
        """
        split = shards_of(clients)
        exact = self.squared_move(surrogate, (now, split), (before, split), clients)
        estimate = exact
        if self.batch is not None:
            batches = (self.samples(clients, replace(draws, round=draws.round + k)) for k in (1, 0))
            after, current = zip((now, before), batches, strict=True)
            estimate = self.squared_move(surrogate, after, current, clients)
        return {
            "surrogate_update": exact,
            "parameter_update": float((now - before).square().sum()),
            "surrogate_update_estimate": estimate,
        }

    def squared_move(
        self,
        surrogate: Surrogate,
        after: tuple[Tensor, Split],
        before: tuple[Tensor, Split],
        clients: Clients,
    ) -> float:
        """Return ||mean S(theta) - mean S(theta')||^2, each mean of some samples; collective."""
        moves = torch.zeros(len(clients), surrogate.size, dtype=torch.float64)
        if len(clients):
            moves = self.statistics(surrogate, *after) - self.statistics(surrogate, *before)
        return float(clients.total(moves, self.weights(clients)).square().sum())


class SaSsmm(FedMM):
    """SA-SSMM: centralised stochastic majorise-minimise, one client (Algorithm 1).

    S <- S + gamma_t (S_t - S), with S_t a mini-batch mean of the statistics under T(S). With
    ``step_rule: inverse_kept``, batches of one and the unit-ball dictionary it is online dictionary
    learning (Mairal et al. 2010), in which the first S counts as one sample.
    """

    requires = (
        *FedMM.requires,
        Requirement(
            {"clients": 1, "participation": 1.0, "compression": "none"}, "which sends nothing"
        ),
    )
    exchanges = ()
    compressors = "none"

    def round(
        self, state: FedMMState, clients: Clients, channel: Channel, draws: Draws
    ) -> FedMMState:
        surrogate = self.surrogate_of(state)
        start = state.surrogate.expand(len(clients), -1)
        theta = self.parameters(surrogate, state.surrogate)
        oracle = self.oracle(surrogate, start, theta, clients, draws)
        # The sum has one term; it brings the direction to ranks without a client.
        server = to_server(channel)
        direction = server.sum(oracle - start, torch.ones(len(clients), dtype=torch.float64))
        gamma = self.gamma(draws.round)
        (moved,) = server.at_server(
            lambda: [self.project(surrogate, state.surrogate + gamma * direction)]
        )
        return replace(state, surrogate=moved, previous=state.surrogate)

    def remarks(self, state: FedMMState, clients: Clients, exchange: Exchange) -> list[str]:
        """The facts about the data, and which options have no effect."""
        unread = []
        if self.rate:
            unread.append(
                f"algorithm.control_variate_rate={self.rate:g} changes nothing: sa_ssmm has one "
                "client, which does not differ from itself"
            )
        return [*unread, *self.fact_lines(state, clients)]
