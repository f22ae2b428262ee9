"""Evaluation between rounds: each client's scores, their averages and worst tenth, warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from mpifed import state as states
from mpifed.config.options import ClientWeights
from mpifed.data.base import Shards, Split
from mpifed.data.central import HOLDOUT
from mpifed.errors import InputError, wrong_result
from mpifed.exchange.accounting import EPSILON, accountant_of
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.observers import Mixed, epsilons, privacy_losses
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.federation import Federation
from mpifed.federation.hosted import HostedShards
from mpifed.federation.participation import count_participants
from mpifed.local.minibatches import chosen
from mpifed.local.options import unread
from mpifed.local.scoring import client_scores
from mpifed.method import checks
from mpifed.method.predictor import Predictor
from mpifed.models.base import Model
from mpifed.training.central import central_columns, central_scores, shared_predictor
from mpifed.training.poisoned import Poisoned
from mpifed.training.scores import (
    FIELD,
    Metric,
    Samples,
    of_samples,
    scores_by_client,
    scores_of_all,
)
from mpifed.training.setup import Setup
from mpifed.training.simulated_time import COLUMN, STALENESS, is_simulated, taking_part, waits

# The mean accuracy of the least accurate tenth of the clients, which fits the bottom decile of
# Marfoq et al. 2021.
WORST = "test_accuracy_worst10"

# Columns of every metrics.csv.
COLUMNS = [
    "round",
    "seconds",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "test_accuracy_p10",
    "test_accuracy_min",
    "test_accuracy_std",
    "active_clients",
    "up_bits",
    "down_bits",
    "consensus_distance",
    "state_digest",
    WORST,
]
UNSEEN_COLUMNS = ["unseen_train_accuracy", "unseen_test_accuracy"]

# Under gossip: the score of the average of all clients' models (Zhu et al. 2025).
MERGED = "merged_test_accuracy"

# The columns of ``metrics.csv`` where validation samples are scored.
VALIDATION_COLUMNS = ["validation_loss", "validation_accuracy"]

# A training loss so many times the first one is warned of.
LEAP = 10.0

# The data set of clients.h5, (clients, shares).
ACCURACY_BY_SHARE = "test_accuracy_by_share"


@dataclass(frozen=True)
class ClientResults:
    """Scores and sample counts of all clients, in client order; NaN where none applies.

    ``pooled`` has scores of all their samples together, by column of metrics.csv.
    """

    n_train: np.ndarray
    n_test: np.ndarray
    train_loss: np.ndarray
    train_accuracy: np.ndarray
    test_loss: np.ndarray
    test_accuracy: np.ndarray
    unseen: np.ndarray
    mixture: np.ndarray | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    ids: np.ndarray | None = None
    pooled: dict[str, float | None] = field(default_factory=dict)

    @property
    def client_ids(self) -> np.ndarray:
        """The numbers of the clients, int64 (n_clients,), ascending."""
        return np.arange(len(self.n_train)) if self.ids is None else self.ids


def scored_clients(federation: Federation, share: float, draws: Draws) -> np.ndarray:
    """Return the clients that an evaluation scores, ascending, int64."""
    chosen = []
    kinds = {"training": federation.training, "unseen": np.flatnonzero(federation.unseen)}
    for kind, among in kinds.items():
        if len(among):
            count = count_participants(share, len(among))
            stream = draws.stream(f"evaluation/{kind}")
            chosen.append(among[stream.choice(len(among), count, replace=False, shuffle=False)])
    return np.sort(np.concatenate(chosen))


def score_clients(
    federation: Federation,
    model: Model,
    served: Iterable[tuple[Clients, Predictor, Predictor | None]],
    validates: bool = False,
    ids: np.ndarray | None = None,
    relabelled: Poisoned | None = None,
    metrics: Sequence[Metric] = (),
    n_classes: int = 0,
) -> ClientResults | None:
    """Score hosted clients on their training and test splits; collective.

    The second predictor, if any, is what they have of the merged state.
    ``relabelled`` are the data of attackers, who are scored on their true labels.
    """
    parts = []
    samples: dict[str, list[Samples]] = {name: [] for name in _scored_splits(validates, federation)}
    for clients, predictor, merged in served:
        if len(clients.rows):
            train = clients.shards.train
            if relabelled is not None:
                train = relabelled.with_true_labels(train, clients.shards.client_ids)
            columns, predicted = _score(
                model, clients, predictor, train, validates, of_samples(metrics)
            )
            kind = "unseen_" * bool(federation.unseen[clients.ids[0]])
            for name, of_split in predicted.items():
                scores = scores_by_client(metrics, of_split, n_classes)
                columns |= {f"{name}_{metric}": values for metric, values in scores.items()}
                samples.get(f"{kind}{name}", []).append(of_split)
            parts.append(columns)
            if merged is not None:
                accurate = model.loss.measure == "accuracy"
                shares = _test_shares(model, clients, merged)
                parts[-1][MERGED] = shares if accurate else np.full(len(clients), np.nan)
    gathered = federation.communicator.gather_object(parts)
    pooled = {
        f"{name}_{metric}": score
        for name, of_split in samples.items()
        for metric, score in scores_of_all(
            federation.communicator, metrics, of_split, n_classes
        ).items()
    }
    if gathered is None:
        return None
    every = [part for of_rank in gathered for part in of_rank]
    unseen = federation.unseen if ids is None else federation.unseen[ids]
    columns = {}
    for name in dict.fromkeys(name for part in every for name in part if name != "ids"):
        having = [part for part in every if part.get(name) is not None]
        if not having:
            continue
        first = having[0][name]
        shape = (len(unseen), *first.shape[1:])
        columns[name] = np.full(shape, np.nan) if first.dtype == float else np.zeros(shape, int)
        for part in having:
            rows = part["ids"] if ids is None else np.searchsorted(ids, part["ids"])
            columns[name][rows] = part[name]
    names = {*ClientResults.__dataclass_fields__} - {"extra", "ids", "pooled"}
    fields = {name: columns.pop(name) for name in list(columns) if name in names}
    return ClientResults(unseen=unseen, **fields, extra=columns, ids=ids, pooled=pooled)


def _scored_splits(validates: bool, federation: Federation) -> list[str]:
    """Return the splits of whose samples together there are scores."""
    unseen = ["unseen_test"] if federation.unseen.any() else []
    return ["test", *(["validation"] if validates else []), *unseen]


def _score(
    model: Model,
    clients: Clients,
    predictor: Predictor,
    train: Split,
    validates: bool,
    reads: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, Samples]]:
    """Return scores of clients by column, and what is predicted for each sample by split."""
    shards, rows = clients.shards, clients.rows
    of = (predictor.parameters_of, predictor.weights_of)
    mixture, measure = predictor.mixture, model.loss.measure
    mixes = mixture is not None and mixture.shape[1] > 1
    likelihoods = mixes and model.loss.of_mixture is not None
    columns = {
        "ids": clients.ids,
        "n_train": train.counts[rows],
        "n_test": shards.test.counts[rows],
        "mixture": None if mixture is None else mixture.double().cpu().numpy(),
    }
    splits, predicted = {"train": train, "test": shards.test}, {}
    if validates:
        splits["validation"] = shards.val
        columns["n_validation"] = shards.val.counts[rows]
    for name, split in splits.items():
        if predictor.parameters is None:
            nothing = np.full(len(rows), np.nan)
            columns |= {f"{name}_loss": nothing, f"{name}_accuracy": nothing}
            continue
        of_each = reads if name != "train" else ()
        scores = client_scores(model, *of, split, rows, predictor.local_predictor, of_each)
        if of_each:
            predicted[name] = Samples(clients.ids, split.counts[rows], scores.samples)
        with np.errstate(invalid="ignore"):
            share = scores.hits / scores.possible
        accurate = measure == "accuracy"
        columns[f"{name}_loss"] = scores.loss
        columns[f"{name}_accuracy"] = share if accurate else np.full(len(rows), np.nan)
        if likelihoods:
            columns[f"{name}_nll"] = scores.nll
        if measure is not None and not accurate:
            columns |= {f"{name}_{measure}": share, f"{name}_{measure}_possible": scores.possible}
    results = {name: _array(values) for name, values in predictor.results.items()}
    return columns | results, predicted


def _test_shares(model: Model, clients: Clients, predictor: Predictor) -> np.ndarray:
    """The share of what it could predict right of its test samples, by client; NaN without any."""
    if predictor.parameters is None:
        return np.full(len(clients), np.nan)
    of = (predictor.parameters_of, predictor.weights_of)
    scores = client_scores(model, *of, clients.shards.test, clients.rows, predictor.local_predictor)
    with np.errstate(invalid="ignore"):
        return scores.hits / scores.possible


def _array(values: torch.Tensor) -> np.ndarray:
    return (values.double() if values.is_floating_point() else values).cpu().numpy()


def task_columns(model: Model, mixes: bool, validates: bool = False) -> list[str]:
    """Return the columns of metrics.csv that the task adds."""
    loss = model.loss
    splits = ("train", "test", "validation") if validates else ("train", "test")
    measures: list[str] = [] if loss.measure in (None, "accuracy") else [loss.measure]
    if mixes and loss.of_mixture is not None:
        measures.append("nll")
    if loss.perplexity:
        measures.append("perplexity")
    return [f"{split}_{measure}" for measure in measures for split in splits]


def warn_of_losses(results: ClientResults, round: int, advice: str) -> bool:
    """Log which clients have a loss that is not finite although the state is."""
    loss = results.train_loss
    scored = np.isfinite(loss).any() or np.isfinite(results.train_accuracy).any()
    bad = np.flatnonzero(~np.isfinite(loss) & (results.n_train > 0) & ~results.unseen)
    if not scored or not len(bad):
        return False
    logging.getLogger("mpifed").warning(
        f"after round {round} the training loss of client {results.client_ids[bad[0]]} is not "
        f"finite: numbers have grown too large, and {advice}"
    )
    return True


def warn_of_leap(first: Mapping[str, Any], scores: Mapping[str, Any]) -> bool:
    """Log that the training loss is far above that of the first scores, where it is."""
    before, now = first["train_loss"], scores["train_loss"]
    if before is None or now is None or not now > LEAP * abs(before):
        return False
    logging.getLogger("mpifed").warning(
        f"after round {scores['round']} the training loss is {now:.4g}, but it was {before:.4g} "
        f"after round {first['round']}: training diverges, as where local.lr is too large or "
        "inputs are wide (data.standardise)"
    )
    return True


def summarise(
    results: ClientResults, client_weights: ClientWeights = "scored"
) -> dict[str, float | None]:
    """Return the columns of metrics.csv that describe scores of clients."""
    seen = ~results.unseen
    tested = results.test_accuracy[seen & np.isfinite(results.test_accuracy)]

    def average(values: np.ndarray, counts: np.ndarray, among: np.ndarray) -> float | None:
        weights = {
            "scored": counts,
            "train": np.where(counts > 0, results.n_train, 0),
            "uniform": counts > 0,
        }[client_weights]
        return _average(values, weights, among)

    summary = {
        "train_loss": average(results.train_loss, results.n_train, seen),
        "train_accuracy": average(results.train_accuracy, results.n_train, seen),
        "test_loss": average(results.test_loss, results.n_test, seen),
        "test_accuracy": average(results.test_accuracy, results.n_test, seen),
        "test_accuracy_p10": bottom_decile(tested) if len(tested) else None,
        WORST: worst_tenth(tested) if len(tested) else None,
        "test_accuracy_min": float(tested.min()) if len(tested) else None,
        "test_accuracy_std": float(tested.std()) if len(tested) else None,
    }
    samples = {"train": results.n_train, "test": results.n_test, "merged": results.n_test}
    if "n_validation" in results.extra:
        samples["validation"] = results.extra["n_validation"]
    for name in (MERGED, *VALIDATION_COLUMNS, *(f"{split}_nll" for split in samples)):
        if name in results.extra:
            summary[name] = average(results.extra[name], samples[name.partition("_")[0]], seen)
    for name in results.extra:
        if f"{name}_possible" in results.extra:
            counts = results.extra[f"{name}_possible"]
            summary[name] = average(results.extra[name], counts, seen)
    summary |= results.pooled
    for name in results.pooled.keys() & results.extra.keys():
        if name.startswith("test_"):
            scores = results.extra[name]
            defined = scores[seen & np.isfinite(scores)]
            summary[f"{name}_mean"] = average(
                scores, np.where(np.isfinite(scores), results.n_test, 0), seen
            )
            summary[f"{name}_p10"] = bottom_decile(defined) if len(defined) else None
            summary[f"{name}_worst10"] = worst_tenth(defined) if len(defined) else None
    if results.unseen.any():
        train = average(results.train_accuracy, results.n_train, results.unseen)
        test = average(results.test_accuracy, results.n_test, results.unseen)
        summary |= {"unseen_train_accuracy": train, "unseen_test_accuracy": test}
    return summary


def perplexities(losses: dict[str, float | None]) -> dict[str, float | None]:
    """Return exp of the mean loss of each split, as columns; infinite where it overflows."""
    with np.errstate(over="ignore"):
        return {
            f"{split}_perplexity": None if loss is None else float(np.exp(loss))
            for split, loss in losses.items()
        }


def bottom_decile(accuracies: np.ndarray) -> float:
    """Return the ceil(T / 10)-th smallest of T values."""
    return float(np.sort(accuracies)[-(-len(accuracies) // 10) - 1])


def worst_tenth(accuracies: np.ndarray) -> float:
    """Return the mean of the ceil(T / 10) smallest of T values."""
    return float(np.sort(accuracies)[: -(-len(accuracies) // 10)].mean())


def _average(values: np.ndarray, weights: np.ndarray, among: np.ndarray) -> float | None:
    scored = among & (weights > 0)
    if not scored.any() or np.isnan(values[scored]).all():
        return None
    return float((values[scored] * weights[scored]).sum() / weights[scored].sum())


def first_samples(clients: Clients, share: float) -> Clients:
    """Return the same clients with the first of their training samples."""
    shards, federation = clients.shards, clients.federation
    train = shards.train
    counts = np.floor(share * train.counts + 1e-9).astype(np.int64)
    begins = train.offsets[:-1]
    split = chosen(train, [np.arange(a, a + n) for a, n in zip(begins, counts, strict=True)])
    n_train = federation.n_train.copy()
    n_train[shards.client_ids] = counts
    return replace(
        clients,
        federation=replace(federation, n_train=n_train),
        shards=Shards(shards.client_ids, split, shards.val, shards.test, shards.fresh),
    )


def with_growth(
    setup: Setup, state: Any, unseen: Clients, predictor: Predictor, draws: Draws
) -> Predictor:
    """Return ``predictor`` with the accuracies that its clients have with shares of their data."""
    shares = setup.evaluation.unseen_shares or ()
    accuracies = np.full((len(unseen), len(shares)), np.nan)
    for k, share in enumerate(shares):
        fewer = first_samples(unseen, share)
        deployed = setup.algorithm.adapt(state, fewer, setup.exchange, draws)
        counts = len(fewer), setup.model.n_parameters
        adapted = checks.checked_predictor(setup.algorithm, "adapt", deployed, *counts)
        accuracies[:, k] = _test_shares(setup.model, unseen, adapted)
    return replace(
        predictor, results={**predictor.results, ACCURACY_BY_SHARE: torch.from_numpy(accuracies)}
    )


def columns_of(setup: Setup) -> list[str]:
    """Return the columns of this run's metrics.csv, in order."""
    unseen = UNSEEN_COLUMNS if setup.federation.unseen.any() else []
    validates = setup.evaluation.validates
    validation = VALIDATION_COLUMNS if validates else []
    columns = [
        *COLUMNS,
        *([MERGED] if _merges(setup) else []),
        *([COLUMN] if is_simulated(setup) else []),
        *([] if waits(setup) else STALENESS),
        *([EPSILON] if setup.exchange.privacy is not None else []),
        *setup.exchange.columns,
        *unseen,
        *validation,
        *task_columns(setup.model, "nll" in setup.algorithm.columns, validates),
        *metric_columns(setup),
        *central_columns(setup),
        *(name for name in setup.algorithm.columns if name != "nll"),
    ]
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(
                f"{FIELD} has {setup.evaluation.metric_names}, but there is another column {name}; "
                "a function of another name gets a column of its own"
            )
    return columns


def metric_columns(setup: Setup) -> list[str]:
    """Return the columns of metrics.csv that ``evaluation.metrics`` adds."""
    names = [metric.name for metric in setup.metrics if metric.is_number]
    splits = _scored_splits(setup.evaluation.validates, setup.federation)
    ends = {"test": ("", "_mean", "_p10", "_worst10")}
    return [
        f"{split}_{name}{end}"
        for name in names
        for split in splits
        for end in ends.get(split, ("",))
    ]


def _merges(setup: Setup) -> bool:
    """Whether clients have models of their own that are averaged."""
    algorithm = setup.algorithm
    return setup.exchange.shared_is_rows and algorithm.communicates and algorithm.uses_model()


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a state."""

    results: ClientResults | None
    distance: float | None
    measured: dict[str, float | None]
    chosen: dict[str, float | None]
    learnt: dict[str, np.ndarray]
    perplexity: bool = False  # whether losses are logarithms of perplexities
    central: dict[str, float | None] = field(default_factory=dict)

    def row(self, client_weights: ClientWeights = "scored") -> dict[str, Any]:
        """Return the values of a row of metrics.csv by column; on rank 0."""
        assert self.results is not None
        means = summarise(self.results, client_weights)
        losses = {n.removesuffix("_loss"): mean for n, mean in means.items() if n.endswith("_loss")}
        return {
            **means,
            **(perplexities(losses) if self.perplexity else {}),
            "consensus_distance": self.distance,
            **self.chosen,
            **self.central,
            **self.measured,
        }


def evaluate(
    setup: Setup, shards: HostedShards, state: states.RunState, draws: Draws
) -> Evaluation:
    """Evaluate the state after a round."""
    training, exchange = training_of(setup, shards), setup.exchange
    shared = states.shared_tensors(state.algorithm)
    trained = of_trained(setup, state, training.rows)
    return Evaluation(
        score(setup, shards, state, training, draws),
        exchange.consensus_distance(exchange.latest(shared, state.memory)) if shared else None,
        measure(setup, trained, training, draws),
        exchange.measure(state.memory),
        _learnt(setup, trained),
        setup.model.loss.perplexity,
        of_central(setup, state, training, draws) if setup.central is not None else {},
    )


def of_central(
    setup: Setup, state: states.RunState, training: Clients, draws: Draws
) -> dict[str, float | None]:
    """Return the scores on the central test set by column, on rank 0. Collective."""
    return central_scores(
        setup, state.algorithm, training, deployed_by(setup, state, training, draws)
    )


def deployed_by(
    setup: Setup, state: states.RunState, training: Clients, draws: Draws
) -> Callable[[np.ndarray], Predictor]:
    """Return the function that deploys for the training clients at some positions."""

    def deploy(positions: np.ndarray) -> Predictor:
        """Return what the training clients at some positions predict with."""
        rows = training.rows[positions]
        of_rows = of_trained(setup, state, rows)
        clients = replace(training, rows=rows)
        predictor = setup.algorithm.deploy(of_rows, clients, draws)
        counts = len(rows), setup.model.n_parameters
        return checks.checked_predictor(setup.algorithm, "deploy", predictor, *counts)

    return deploy


def training_of(setup: Setup, shards: HostedShards) -> Clients:
    """Return the clients hosted here that take part in training."""
    federation = setup.federation
    return shards.among_hosted(np.flatnonzero(~federation.unseen[federation.hosted]))


def remarks(setup: Setup, state: states.RunState, shards: HostedShards) -> list[str]:
    """Return lines for the log: the algorithm's own, and options of ``local`` that it ignores."""
    algorithm = setup.algorithm
    training = training_of(setup, shards)
    of_algorithm = algorithm.remarks(state.algorithm, training, setup.exchange)
    lines = [*_unread(setup), *_of_sample(setup), *_of_attacks(setup), *of_algorithm]
    return [*lines, *(_of_central(setup, state, training) if setup.central is not None else ())]


def _of_central(setup: Setup, state: states.RunState, training: Clients) -> list[str]:
    """Return a line about the central test set; ``InputError`` where no model is shared."""
    assert setup.central is not None
    deploy = deployed_by(setup, state, training, Draws(setup.seed, 0))
    models, _ = shared_predictor(setup, state.algorithm, training, deploy)
    n = int(setup.central.description.n_test.sum())
    what = "the shared model"
    if len(models) > 1:
        what = f"{len(models)} models, mixed with the mean of the clients' weights,"
    elif setup.exchange.shared_is_rows:
        what = "the average of the clients' models"
    held = " that no client has" if setup.evaluation.central == HOLDOUT else ""
    lines = [f"evaluation.central: {n:,} test samples{held} score {what}"]
    if not setup.dataset.description.n_test.any():
        lines.append("clients have no test samples of their own: the columns test_* are empty")
    return lines


def _of_attacks(setup: Setup) -> list[str]:
    """Return lines that say who attacks, and what the privacy of the whole run will be."""
    if setup.federation.communicator.rank:
        return []
    lines = []
    if setup.attackers is not None:
        lines.append(str(setup.attackers))
        aggregator = getattr(setup.exchange, "aggregator", None)
        number, n = int(setup.attackers.who.sum()), len(setup.federation.training)
        bears = None if aggregator is None else aggregator.bears(n)
        if bears is not None and number > bears:
            lines.append(
                f"warning: {number} clients attack, more than the {bears} of {n} that "
                "exchange.aggregator bears"
            )
    options, rounds = setup.exchange.privacy, setup.rounds
    if options is not None:
        epsilon = accountant_of(options, setup.federation, setup.seed)(rounds)
        lines.append(
            f"privacy {options.where}: after {rounds:,} rounds epsilon is {epsilon:.4g} for delta "
            f"{options.delta:g}"
        )
    return lines


def _of_sample(setup: Setup) -> list[str]:
    """Return a line that says of how many clients the scores are, where it is not all."""
    share, federation = setup.evaluation.sample, setup.federation
    if share == 1:
        return []
    return [
        f"evaluation.sample is {share:g}: scores are averages over {count_scored(setup)} of the "
        f"{federation.n_clients} clients, drawn for each evaluation"
    ]


def _unread(setup: Setup) -> list[str]:
    """Return a line for each option of ``local`` that is set but not read by the algorithm."""
    read = setup.algorithm.local_options
    if read is None:
        return []
    name, what = setup.method.name, ", ".join(read) or "nothing"
    return [
        f"local.{key}={value} changes nothing: of the section local, {name} reads {what}"
        for key, value in unread(setup.solver.options, read).items()
    ]


def count_scored(setup: Setup) -> int:
    """Return how many clients an evaluation scores."""
    share, seed = setup.evaluation.sample, setup.seed
    return len(scored_clients(setup.federation, share, Draws(seed, 0)))


def score(
    setup: Setup,
    shards: HostedShards,
    state: states.RunState,
    training: Clients,
    draws: Draws,
) -> ClientResults | None:
    """Score clients with the predictors of this round."""
    algorithm, federation = setup.algorithm, setup.federation
    options, is_rows = setup.evaluation, setup.exchange.shared_is_rows
    if options.sample < 1:
        ids = scored_clients(federation, options.sample, draws)
        of_clients = ids[federation.owner[ids] == federation.communicator.rank]
        positions = np.searchsorted(federation.hosted, of_clients)
    else:
        ids, positions = None, np.arange(len(federation.hosted))
    is_unseen = federation.unseen[federation.hosted[positions]]

    checked = partial(checks.checked_predictor, algorithm)
    size = setup.model.n_parameters
    merged = states.merged(state.algorithm, setup.exchange.mean) if _merges(setup) else None

    def deployed(of_all: Any, clients: Clients, chosen: np.ndarray) -> Predictor:
        every = len(chosen) == len(federation.hosted)
        of_clients = of_all if every else states.select(of_all, torch.from_numpy(chosen), is_rows)
        return checked("deploy", algorithm.deploy(of_clients, clients, draws), len(chosen), size)

    def served() -> Iterator[tuple[Clients, Predictor, Predictor | None]]:
        rows = positions[~is_unseen]
        for block in shards.blocks(rows):
            chosen = rows[block]
            clients = training if len(chosen) == len(training.rows) else shards.clients(chosen)
            of_merged = None if merged is None else deployed(merged, clients, chosen)
            yield clients, deployed(state.algorithm, clients, chosen), of_merged
        if federation.unseen.any():
            unseen = shards.among_hosted(positions[is_unseen])
            adapted = algorithm.adapt(state.algorithm, unseen, setup.exchange, draws)
            predictor = checked("adapt", adapted, len(unseen), size)
            if options.unseen_shares and draws.round == setup.rounds:
                predictor = with_growth(setup, state.algorithm, unseen, predictor, draws)
            yield unseen, predictor, None

    relabelled = setup.dataset if isinstance(setup.dataset, Poisoned) else None
    return score_clients(
        federation,
        setup.model,
        served(),
        options.validates,
        ids,
        relabelled,
        setup.metrics,
        setup.dataset.description.n_classes,
    )


def measure(setup: Setup, trained: Any, training: Clients, draws: Draws) -> dict[str, float | None]:
    """Return what the algorithm adds to metrics.csv, by column."""
    measured = setup.algorithm.measure(trained, training, setup.exchange, draws)
    if unknown := set(measured) - set(setup.algorithm.columns):
        allowed = f"columns alone: {', '.join(setup.algorithm.columns) or 'none'}"
        raise wrong_result(setup.algorithm, "measure", f"{sorted(unknown)}", allowed)
    return measured


def _learnt(setup: Setup, trained: Any) -> dict[str, np.ndarray]:
    """Return the results of the algorithm that belong to no client, by name."""
    learnt = setup.algorithm.learnt(trained, setup.exchange)
    return {name: torch.as_tensor(part).detach().cpu().numpy() for name, part in learnt.items()}


def of_observers(setup: Setup) -> dict[str, np.ndarray]:
    """Return what training clients learn of each other in all rounds, by name. Collective.

    (observers, clients) on rank 0; nothing elsewhere, and where ``privacy.observers`` is none.
    """
    exchange, options = setup.exchange, setup.exchange.privacy
    if options is None or options.observers == "none" or not isinstance(exchange, Gossip):
        return {}
    rounds, steps = [], exchange.gossip_steps
    for k in range(1, setup.rounds + 1):
        active = taking_part(setup, k)
        routes = [exchange.routing.route((k - 1) * steps + j, active) for j in range(1, steps + 1)]
        rounds.append(Mixed([r.sparse for r in routes], active[setup.federation.training]))
    if setup.federation.communicator.rank:
        return {}
    assert options.noise_multiplier is not None
    with threadpool_limits(1, user_api="blas"):  # its number of threads would change the last bits
        mu = privacy_losses(
            rounds, options.noise_multiplier, options.pairwise_multiplier, options.observers
        )
    return {"mu_by_observer": mu, "epsilon_by_observer": epsilons(mu, options.delta)}


def of_trained(setup: Setup, state: states.RunState, rows: np.ndarray) -> Any:
    """Return the algorithm's state with the ``rows`` of the clients in training alone."""
    if len(rows) == len(setup.federation.hosted):
        return state.algorithm
    return states.select(state.algorithm, torch.from_numpy(rows), setup.exchange.shared_is_rows)
