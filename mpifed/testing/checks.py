"""Common checks that every item passes, a shipped one and a user's own.

Each raises ``AssertionError`` with one sentence that says what does not hold, and where. An error
that the item's own code or a run raises passes through. An item is passed as its name, as
``module:Class``, as its class, as a mapping with ``name`` and options, or as an object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import networkx as nx
import numpy as np
import torch
from torch import Tensor

import topologies
from mpifed import state as states
from mpifed.components.registry import (
    find,
    is_component,
    make,
    name_of,
    named,
)
from mpifed.config.configuration import resolve
from mpifed.data.base import SPLITS, Dataset, Description, Split
from mpifed.errors import InputError, RunError
from mpifed.exchange.aggregation import Aggregator, ByCoordinates, ByProducts
from mpifed.exchange.attacks import Attack
from mpifed.exchange.base import LastingMemory
from mpifed.exchange.compression import PURPOSE, Compressor, message_sizes
from mpifed.exchange.correction import Correction
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.server_optimizers import ServerOptimizer
from mpifed.federation.clients import Draws
from mpifed.method import Algorithm
from mpifed.models.base import Model
from mpifed.mpi.communicator import Alone
from mpifed.surrogate import Surrogate
from mpifed.testing.rounds import DATA, Rounds, run_rounds
from mpifed.testing.surrogates import make_surrogate
from mpifed.training import exchanging

SIZES = (1, 2, 8, 33)
"""Numbers in the messages on which a compressor is checked, a power of two among them."""

DRAWS = 1000
"""Messages of which means are taken, where an expected value is checked."""

MESSAGE = "compression 0"
"""The random stream of the first message of a round."""

SPOILT = 16
"""Messages in which each coordinate is not finite, so that random ones are lost for certain."""

RING = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}

MATCHING = {"name": "gossip", "topology": "complete", "schedule": "random_matching"}

STEP = 1e-6
"""Share of the way to another theta at which slopes are compared."""

DEVIATIONS = 5.0
"""Standard errors by which a mean may differ from the expected value."""


def check_method(
    method: Any,
    data: Any = None,
    *,
    exchanges: Sequence[str] = ("server", "gossip"),
    ranks: Sequence[int] = (3,),
    **options: Any,
) -> None:
    """Check that a method keeps the promises of every run.

    Its numbers are the same bit for bit on any number of ranks, also where each client is computed
    alone, and after a checkpoint; a round changes no tensor of the state, and of what the exchange
    remembers, in place, and is a function of the state; what it deploys has the shape of a
    predictor; the columns that it declares have numbers; and bits are booked if and only if it
    communicates.

    Parameters
    ----------
    method : str, type or mapping
        As in ``run_rounds``.
    data : optional
        As in ``run_rounds``.
    exchanges : sequence of str
        The exchanges on which it is checked, if it supports them.
    ranks : sequence of int
        Numbers of ranks that are compared with one.
    **options
        As in ``run_rounds``.

    Raises
    ------
    AssertionError
        Where one of these does not hold.

    Examples
    --------
    >>> check_method("ditto")
    >>> check_method({"name": "fedem", "n_components": 2}, participation=0.5)
    """
    kind = _class_of(method, "algorithm")
    for exchange in exchanges:
        if kind.exchanges is None or exchange in kind.exchanges:
            chosen = {**_scarce(data), **options}
            if "exchange" not in options:
                chosen["exchange"] = RING if exchange == "gossip" else exchange
            _check_rounds(method, data, f"{_called(method)} under {exchange}", ranks, chosen)


def _scarce(data: Any) -> dict[str, Any]:
    """Return local steps on small batches, for which the order of samples matters."""
    return {"local": {"batch_size": 16}} if data is None else {}


def _check_rounds(
    method: Any, data: Any, who: str, ranks: Sequence[int], options: dict[str, Any]
) -> None:
    options = {"rounds": 3, **options}
    alone = Rounds(method, data, **options)
    changes = watched_changes(alone.algorithm)
    alone.advance(2)
    _check_deployed(alone, who)
    again = alone.resumed()
    alone.advance()
    again.advance()
    assert not changes, f"{who}: a round changes {', '.join(changes)} of the state in place"
    assert again.digest == alone.digest, (
        f"{who}: round 3 differs after a resume from round 2, so that something is remembered "
        "outside the state"
    )
    _check_columns(alone, who)
    for size in ranks:
        others = Rounds(method, data, ranks=size, **options).advance(2)
        others = others.resumed(1 + size % 2).advance()
        assert others.digest == alone.digest, (
            f"{who}: the state after 3 rounds on {size} ranks differs from that on one, so that a "
            "client's numbers depend on which clients are computed with it"
        )
        assert others.metrics == alone.metrics, (
            f"{who}: metrics on {size} ranks differ from those on one in "
            f"{_differing(others.metrics, alone.metrics)}"
        )


def _differing(some: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    return ", ".join(key for key in {*some, *others} if some.get(key) != others.get(key))


def watched_changes(algorithm: Algorithm) -> list[str]:
    """Have a method's rounds noted that change their state, or what the exchange remembers, in
    place; return the list of what they change.
    """
    changes: list[str] = []
    play = algorithm.round

    def watched(state: Any, clients: Any, channel: Any, draws: Draws) -> Any:
        # Values kept for others are in one memory of all rounds.
        lasts = isinstance(channel.memory, LastingMemory)
        memory = states.Nothing() if lasts else channel.memory
        watched_state = states.RunState(state, memory)
        before = {name: tensor.clone() for name, tensor, _ in states.tensors(watched_state, False)}
        moved = play(state, clients, channel, draws)
        for name, tensor, _ in states.tensors(watched_state, False):
            if not torch.equal(tensor, before[name]) and name not in changes:
                changes.append(name)
        return moved

    vars(algorithm)["round"] = watched
    return changes


def _check_deployed(rounds: Rounds, who: str) -> None:
    deployed = rounds.deployed
    if deployed.parameters is None:
        assert not rounds.algorithm.uses_model() or not isinstance(rounds.model, Model), (
            f"{who}: deploy() returns no parameters, although it trains a model that predicts"
        )
        return
    model = rounds.model
    shape = deployed.parameters.shape
    assert len(shape) == 3 and shape[2] == model.n_parameters, (
        f"{who}: deploy() returns parameters of shape {shape}; they must be (clients, M, "
        f"{model.n_parameters}) or (M, {model.n_parameters})"
    )
    if deployed.mixture is None:
        assert shape[1] == 1, f"{who}: deploy() returns {shape[1]} models, and no weights"
        return
    assert (deployed.mixture >= 0).all() and np.allclose(deployed.mixture.sum(1), 1), (
        f"{who}: the weights that deploy() returns are negative or do not add up to one"
    )


def _check_columns(rounds: Rounds, who: str) -> None:
    metrics, algorithm = rounds.metrics, rounds.algorithm
    missing = sorted({*algorithm.columns} - {*metrics, "nll"})
    assert not missing, f"{who}: measure() has no number of its column {', '.join(missing)}"
    sent, exchanges = metrics["up_bits"], algorithm.exchanges
    assert sent or not algorithm.communicates, (
        f"{who}: round() has sent nothing, as by channel.average; a method that means not to "
        "send has exchanges = ()"
    )
    assert algorithm.communicates or not sent, (
        f"{who}: exchanges are {exchanges}, but clients have sent {sent} bits"
    )
    assert algorithm.payload() >= 0, f"{who}: payload() is {algorithm.payload()}"


def check_compressor(compressor: Any, sizes: Sequence[int] = SIZES) -> None:
    """Check that a compressor is what it declares.

    A message keeps its shape and type, a row does not depend on the other rows, and the same draws
    give the same message; rows are not changed in place; a number that is not finite arrives as
    such, whatever its coordinate and the draw; where ``coordinates`` names those that are sent,
    they are what arrives, times ``scale``; the bits are whole numbers for each client; means over
    draws are the row itself where it is unbiased, with variance within omega; and the error is
    within the contraction. Under a server, the bits that a run books are those of ``bits``.

    Parameters
    ----------
    compressor : str, type, mapping or Compressor
        The compressor.
    sizes : sequence of int
        Numbers in a message; it is not checked on those that it refuses.

    Raises
    ------
    AssertionError
        Where one of these does not hold.

    Examples
    --------
    >>> check_compressor({"name": "rand_k", "k": 1})
    >>> check_compressor("sign")
    """
    who = _called(compressor)
    operator: Compressor = _made("compression", compressor)
    for size in sizes:
        try:
            operator.contraction(size)
        except InputError:  # k is larger
            continue
        for dtype in (torch.float32, torch.float64):
            _check_messages(operator, who, size, dtype)
        _check_spoilt(operator, who, size)
        _check_losses(operator, who, size)
    if not isinstance(compressor, Compressor):
        _check_booked(operator, compressor, who)


def _rows(clients: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(size).normal(size=(clients, size))).to(dtype)


def _check_messages(operator: Compressor, who: str, size: int, dtype: torch.dtype) -> None:
    ids, draws = np.array([0, 3, 4, 11]), Draws(0, 7)
    rows = _rows(len(ids), size, dtype)
    before = rows.clone()
    arrived = operator(rows, draws, ids)
    at = f"{who}, messages of {size} numbers"
    assert torch.equal(rows, before), f"{at}: the call changes the rows that it is given"
    assert isinstance(arrived, Tensor) and (arrived.shape, arrived.dtype) == (
        rows.shape,
        rows.dtype,
    ), f"{at}: what arrives is not of the shape and type of the rows, {dtype}"
    assert torch.equal(operator(rows, draws, ids), arrived), (
        f"{at}: the same draws give two messages; random numbers must come from draws"
    )
    for i in range(len(ids)):
        assert torch.equal(operator(rows[i : i + 1], draws, ids[i : i + 1])[0], arrived[i]), (
            f"{at}: a client's message depends on which clients are compressed with it"
        )
    try:
        sizes, counts = message_sizes(operator, size, rows.element_size(), draws, ids, PURPOSE)
    except RunError as error:
        raise AssertionError(f"{at}: {error}") from None
    assert (sizes >= 0).all(), f"{at}: bits() must not be negative"
    assert (counts <= size).all(), f"{at}: floats() must be at most the numbers in a row"
    assert not operator(torch.zeros_like(rows), draws, ids).any(), f"{at}: zeros do not stay zeros"
    columns = operator.coordinates(size, draws, ids, PURPOSE)
    if columns is not None:
        chosen = torch.zeros_like(rows).scatter_(1, torch.from_numpy(columns), 1.0)
        assert torch.equal(rows * chosen * operator.scale(size), arrived), (
            f"{at}: what arrives is not the coordinates of coordinates() times scale()"
        )


def _check_spoilt(operator: Compressor, who: str, size: int) -> None:
    """Check that a number that is not finite, at any coordinate, in any draw, arrives as such."""
    # Of a long message some coordinates, so that all messages together stay in memory.
    columns = np.linspace(0, size - 1, min(size, 64)).astype(np.int64)
    ids = np.arange(SPOILT * len(columns))
    for wrong in (torch.nan, torch.inf, -torch.inf):
        spoilt = _rows(len(ids), size)
        spoilt[ids, np.resize(columns, len(ids))] = wrong
        arrived, counts = (
            operator(spoilt, Draws(0, 7), ids),
            operator.floats(size, Draws(0, 7), ids),
        )
        lost = torch.isfinite(arrived).all(1).numpy() & (counts > 0)
        assert not lost.any(), (
            f"{who}, messages of {size} numbers: {wrong} is lost in {lost.sum()} of {len(ids)} "
            "messages, so that divergence is not seen; multiply by a mask, as torch.where(mask, "
            "rows, 0) loses it"
        )


def _check_losses(operator: Compressor, who: str, size: int) -> None:
    """Check means over draws against what the class declares."""
    row = _rows(1, size)
    total = row.square().sum().item()
    rows = row.repeat(DRAWS, 1)
    errors = operator(rows, Draws(0, 1), np.arange(DRAWS)) - rows
    losses = errors.square().sum(1).numpy()
    loss = losses.mean() - DEVIATIONS * losses.std() / DRAWS**0.5 - 1e-9 * total
    at = f"{who}, messages of {size} numbers"
    if operator.unbiased:
        omega = operator.omega(size)
        off = errors.mean(0).square().sum().item() ** 0.5
        allowed = DEVIATIONS * (omega * total / DRAWS) ** 0.5 + 1e-6 * total**0.5
        assert off <= allowed, (
            f"{at}: it is declared unbiased, but the mean of {DRAWS} messages is {off:.3g} away "
            f"from the row, and chance would allow {allowed:.3g}"
        )
        assert loss <= omega * total, (
            f"{at}: E|C(v) - v|^2 is {losses.mean() / total:.4g} |v|^2, above omega = {omega:.4g}"
        )
    elif operator.contraction(size):
        left = 1 - operator.contraction(size)
        assert loss <= left * total, (
            f"{at}: E|C(v) - v|^2 is {losses.mean() / total:.4g} |v|^2, above 1 - delta = "
            f"{left:.4g}"
        )


def _check_booked(operator: Compressor, compressor: Any, who: str) -> None:
    rounds = run_rounds("fedavg", compression=compressor, rounds=2)
    ids, size = np.arange(rounds.configuration.clients), rounds.algorithm.payload()
    itemsize = 8 if rounds.configuration.dtype == "float64" else 4
    expected = sum(
        int(operator.bits(size, itemsize, Draws(0, k), ids, MESSAGE).sum()) for k in (1, 2)
    )
    booked = rounds.metrics["up_bits"]
    assert booked == expected, f"{who}: a run books {booked} bits, and bits() says {expected}"


def check_dataset(dataset: Any, n_clients: int = 5, seed: int = 0) -> None:
    """Check that a data set is what it describes.

    Every split has the shapes, types, numbers of samples and labels of the description; a client
    has the same samples alone, beside others and when it is made again; the test samples of
    training clients are finite numbers.

    Parameters
    ----------
    dataset : str, type, mapping or Dataset
        The data set.
    n_clients : int
        Clients that it is made for.
    seed : int
        Seed of the run.

    Raises
    ------
    AssertionError
        Where one of these does not hold.

    Examples
    --------
    >>> check_dataset({"name": "synthetic", "n_test": 10, "dimension": 3})
    """
    who = _called(dataset)

    def build() -> Dataset:
        if isinstance(dataset, Dataset):
            return dataset
        keys = {"data": _section(dataset, "data"), "clients": n_clients, "seed": seed}
        section = resolve(keys).data
        build = cast(Callable[..., Dataset], find("data", section.name))
        return build(n_clients, seed, Alone(), **section.options)

    some, again = build(), build()
    description = some.description
    n = description.n_clients
    everyone = some.load(np.arange(n), torch.float64)
    others = again.load(np.arange(n), torch.float64)
    alone = build().load(np.array([n - 1]), torch.float64)
    for name in SPLITS:
        split: Split = getattr(everyone, name)
        at = f"{who}, split {name}"
        counts = np.asarray(getattr(description, f"n_{name}"))
        assert np.array_equal(split.counts, counts), (
            f"{at}: clients have {split.counts.tolist()} samples, but the description says "
            f"{counts.tolist()}"
        )
        total = int(counts.sum())
        expected = (total, *description.input_shape), (total, *description.target_shape)
        assert (tuple(split.x.shape), tuple(split.y.shape)) == expected, (
            f"{at}: x and y have the shapes {tuple(split.x.shape)} and {tuple(split.y.shape)}, but "
            f"the description says {expected[0]} and {expected[1]}"
        )
        assert split.x.dtype == torch.float64, f"{at}: x is {split.x.dtype}, not float64"
        integers = description.target_type(torch.float64) == torch.int64
        assert split.y.is_floating_point() != integers, f"{at}: y is {split.y.dtype}"
        assert torch.isfinite(split.x).all(), f"{at}: x has numbers that are not finite"
        if integers and total:
            assert split.y.min() >= 0 and split.y.max() < description.n_classes, (
                f"{at}: labels are from {split.y.min()} to {split.y.max()}, outside 0 to "
                f"{description.n_classes - 1}"
            )
        repeated, single = getattr(others, name), getattr(alone, name)
        assert torch.equal(repeated.x, split.x) and torch.equal(repeated.y, split.y), (
            f"{at}: the same seed gives other samples when the data set is made again"
        )
        last = split.of_client(n - 1)
        assert torch.equal(single.x, last.x) and torch.equal(single.y, last.y), (
            f"{at}: a client has other samples where its rank hosts no other client"
        )


def check_model(model: Any, data: Any = None, rows: int = 3, **options: Any) -> None:
    """Check that a model computes what training and evaluation ask of it.

    First parameters depend on the seed alone; outputs have the shape of the data; a row of
    parameters gives the same outputs beside others; the gradient is that of the loss, by
    differences; and the torch module of a row gives the same outputs.

    Parameters
    ----------
    model : str, type, callable or mapping
        The model.
    data : optional
        As in ``run_rounds``; the model must take its samples.
    rows : int
        Rows of parameters that are computed together.
    **options
        Keys of the configuration.

    Raises
    ------
    AssertionError
        Where one of these does not hold.

    Examples
    --------
    >>> check_model("linear")
    >>> check_model({"name": "mlp", "hidden": [4]})
    """
    who = _called(model)
    data = _first_samples(data)
    keys = {"model": model, "dtype": "float64", "local": {"batch_size": 16}, **options}
    first, second = (run_rounds("fedavg", data, rounds=0, **keys) for _ in range(2))
    network = cast(Model, first.model)
    description: Description = first._engines[0].setup.dataset.description
    samples = first._engines[0].everyone.shards.train
    assert torch.equal(first.state.model, second.state.model), (
        f"{who}: the same seed gives other first parameters when the model is made again"
    )
    start = first.state.model.reshape(-1, network.n_parameters)[:1].double()
    noise = np.random.default_rng(0).normal(scale=0.01, size=(rows, network.n_parameters))
    parameters = start + torch.from_numpy(noise)
    if network.n_buffers:
        parameters[:, network.n_parameters - network.n_buffers :] = start[:, -network.n_buffers :]
    x = samples.x[:4].expand(rows, *samples.x[:4].shape)
    y = samples.y[:4].expand(rows, *samples.y[:4].shape)
    with torch.no_grad():
        outputs = network.logits(parameters, x)
        expected = (rows, x.shape[1], *description.output_shape)
        assert tuple(outputs.shape) == expected, (
            f"{who}: outputs have the shape {tuple(outputs.shape)} in place of {expected}"
        )
        for i in range(rows):
            single = network.logits(parameters[i : i + 1], x[i : i + 1])[0]
            assert torch.allclose(single, outputs[i], rtol=1e-9, atol=1e-12), (
                f"{who}: outputs of a row of parameters depend on the other rows"
            )
            module = network.module(parameters[i])
            assert torch.allclose(module(x[i]).double(), outputs[i], rtol=1e-5, atol=1e-6), (
                f"{who}: the torch module of a row has other outputs than the row"
            )
    if network.deterministic:
        _check_gradient(network, who, parameters, x, y)


def _check_gradient(model: Model, who: str, parameters: Tensor, x: Tensor, y: Tensor) -> None:
    weights = torch.full(x.shape[:2], 1 / x.shape[1], dtype=torch.float64)
    gradient = model.gradient(parameters, x, y, weights)
    rng = np.random.default_rng(1)
    direction = torch.from_numpy(rng.normal(size=parameters.shape))
    direction[:, model.n_parameters - model.n_buffers :] = 0

    def risk(at: Tensor) -> Tensor:
        with torch.no_grad():
            outputs = model.logits(at, x)
        losses = [model.loss.samples(out, of) for out, of in zip(outputs, y, strict=True)]
        return (torch.stack(losses) * weights).sum(1)

    step = 1e-6
    slope = (risk(parameters + step * direction) - risk(parameters - step * direction)) / (2 * step)
    along = (gradient * direction).sum(1)
    assert torch.allclose(along, slope, rtol=1e-3, atol=1e-6), (
        f"{who}: along a direction the gradient is {along.tolist()}, but differences of the loss "
        f"are {slope.tolist()}"
    )


def _first_samples(data: Any) -> Any:
    return DATA if data is None else data


def check_aggregator(aggregator: Any, n: int = 9, size: int = 6, *, symmetric: bool = True) -> None:
    """Check that an aggregator is a mean of updates of some kind.

    The aggregate has the shape of an update, that of equal updates is this update, it is the same
    in any order of the clients and on any number of ranks, and is finite and within the updates
    where these are.

    Parameters
    ----------
    aggregator : str, type, mapping or Aggregator
        The aggregator.
    n : int
        Clients.
    size : int
        Numbers in an update.
    symmetric : bool
        Whether the order of the clients must not matter; false where one of them is trusted.

    Raises
    ------
    AssertionError
        Where one of these does not hold.

    Examples
    --------
    >>> check_aggregator("median")
    """
    who = _called(aggregator)
    rule: Aggregator = _made("aggregator", aggregator)
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(n, size))
    same = np.repeat(updates[:1], n, axis=0)
    try:
        of_same = aggregated(rule, same)
    except RunError as error:
        raise AssertionError(str(error)) from None
    assert np.allclose(of_same, updates[0], rtol=1e-6, atol=1e-9), (
        f"{who}: the aggregate of {n} equal updates is another one"
    )
    first = aggregated(rule, updates)
    shuffled = aggregated(rule, updates[rng.permutation(n)])
    assert not symmetric or np.allclose(first, shuffled, rtol=1e-6, atol=1e-9), (
        f"{who}: the aggregate depends on the order of the clients"
    )
    assert np.isfinite(first).all(), f"{who}: the aggregate of finite updates is not finite"
    assert (first >= updates.min(0) - 1e-9).all() and (first <= updates.max(0) + 1e-9).all(), (
        f"{who}: a coordinate of the aggregate is outside those of all updates"
    )
    if not isinstance(aggregator, Aggregator):
        exchange = {"name": "server", "aggregator": _section(aggregator, "aggregator")}
        keys = {"exchange": exchange, "clients": n, "local": {"batch_size": 16}}
        digests = {run_rounds("fedavg", rounds=2, ranks=r, **keys).digest for r in (1, 3)}
        assert len(digests) == 1, f"{who}: the aggregate depends on the number of ranks"


def aggregated(aggregator: Aggregator, updates: np.ndarray) -> np.ndarray:
    """Return the aggregate of updates (n, numbers) of clients with as many samples each."""
    if isinstance(aggregator, ByCoordinates):
        combined = aggregator.combine(updates.copy())
        states.check_result(combined, updates[0], aggregator, "combine")
        return combined
    if isinstance(aggregator, ByProducts):
        shares = aggregator.weighted_shares(updates @ updates.T, np.ones(len(updates)))
        states.check_result(shares, updates[:, 0], aggregator, "shares")
        return np.asarray(shares @ updates)
    return np.asarray(updates.mean(0))


def check_attack(attack: Any) -> None:
    """Check that an attack replaces updates or labels by others of their kind.

    Parameters
    ----------
    attack : str, type, mapping or Attack
        The attack; without ``clients`` or ``fraction`` client 1 attacks.

    Raises
    ------
    AssertionError
        Where shapes or types change, arguments are changed in place, a label is none, or a run
        depends on the number of ranks.

    Examples
    --------
    >>> check_attack("sign_flip")
    """
    who = _called(attack)
    section = attack
    if not isinstance(attack, Attack):
        section = {**_mapping(attack, "attack")}
        if not {"clients", "fraction"} & {*section}:
            section["clients"] = [1]
    hostile: Attack = _made("attack", section)
    assert hostile.changes_labels or hostile.changes_updates, (
        f"{who}: it has neither relabelled() nor sent(), and attacks nothing"
    )
    if hostile.changes_labels:
        labels = torch.arange(12) % 4
        before = labels.clone()
        changed = hostile.relabelled(labels, 4)
        assert torch.equal(labels, before), f"{who}: relabelled() changes the labels in place"
        assert changed.shape == labels.shape and changed.dtype == labels.dtype, (
            f"{who}: relabelled() must return int64 labels of the shape that it is given"
        )
        assert changed.min() >= 0 and changed.max() < 4, f"{who}: relabelled() gives no label"
    if hostile.changes_updates and not hostile.colludes:
        updates = _rows(3, 8).view(3, 2, 4)
        before = updates.clone()
        sent = hostile.sent(updates, 3, 9)
        assert torch.equal(updates, before), f"{who}: sent() changes the updates in place"
        assert (sent.shape, sent.dtype) == (updates.shape, updates.dtype), (
            f"{who}: sent() must return updates of the shape and type that it is given"
        )
        assert torch.equal(hostile.sent(updates[1:2], 3, 9)[0], sent[1]), (
            f"{who}: what a client sends depends on which clients are on its rank"
        )
    if not isinstance(attack, Attack):
        keys = {"attack": section, "clients": 7, "local": {"batch_size": 16}}
        digests = {run_rounds("fedavg", rounds=2, ranks=r, **keys).digest for r in (1, 3)}
        assert len(digests) == 1, f"{who}: what is sent depends on the number of ranks"


def check_server_optimizer(optimizer: Any) -> None:
    """Check that a server's optimizer steps along means of updates.

    Parameters
    ----------
    optimizer : str, type, mapping or ServerOptimizer
        The optimizer.

    Raises
    ------
    AssertionError
        Where a step has another shape than the mean, a mean or a state is changed in place, zero
        means move the server from rest, or a resumed run differs.

    Examples
    --------
    >>> check_server_optimizer("adam")
    """
    who = _called(optimizer)
    server: ServerOptimizer = _made("server_optimizer", optimizer)
    mean = _rows(2, 5)
    state = server.init(mean)
    step, _ = server.step(torch.zeros_like(mean), state)
    assert not step.any(), f"{who}: it moves at a mean of zero, before any other"
    before, copies = mean.clone(), [tensor.clone() for _, tensor, _ in states.tensors(state, False)]
    step, moved = server.step(mean, state)
    assert torch.equal(mean, before), f"{who}: step() changes the mean in place"
    assert all(
        torch.equal(tensor, copy)
        for (_, tensor, _), copy in zip(states.tensors(state, False), copies, strict=True)
    ), f"{who}: step() changes its state in place"
    assert (step.shape, step.dtype) == (mean.shape, mean.dtype), (
        f"{who}: a step must have the shape and the type of the mean"
    )
    assert type(moved) is type(state), f"{who}: step() returns a state of another class"
    if not isinstance(optimizer, ServerOptimizer):
        check_method("fedavg", exchanges=("server",), server_optimizer=optimizer)


def check_topology(topology: Any, sizes: Sequence[int] = (4, 9), **options: Any) -> None:
    """Check that a graph can be gossiped over.

    Parameters
    ----------
    topology : str, callable or mapping
        A family, or a function of n.
    sizes : sequence of int
        Numbers of nodes.
    **options
        Options of the family.

    Raises
    ------
    AssertionError
        Where the graph does not have the nodes 0 ... n - 1, is directed or unconnected, differs
        when it is made again, or its mixing matrix is not doubly stochastic.

    Examples
    --------
    >>> check_topology("ring")
    """
    who = _called(topology)
    for n in sizes:
        graphs = [_graph(topology, n, options) for _ in range(2)]
        graph = graphs[0]
        assert sorted(graph) == list(range(n)), f"{who}, n = {n}: nodes are not 0 to {n - 1}"
        assert not graph.is_directed(), f"{who}, n = {n}: the graph is directed"
        assert nx.is_connected(graph), f"{who}, n = {n}: the graph is not connected"
        edges = [{frozenset(edge) for edge in each.edges} for each in graphs]
        assert edges[0] == edges[1], f"{who}, n = {n}: the graph differs when it is made again"
        check_schedule(lambda n, round, graph=graph: graph, n, rounds=1, name=who)


def _graph(topology: Any, n: int, options: Mapping[str, Any]) -> nx.Graph:
    if callable(topology):
        takes_seed = "seed" in inspect.signature(topology).parameters
        return topology(n, **({"seed": 0} if takes_seed else {}), **options)
    name, parameters = named(topology, "topology")
    return topologies.build_graph(name, n, 0, **parameters, **options)


def check_schedule(
    schedule: Callable[..., Any], n: int = 7, rounds: int = 20, name: str | None = None
) -> None:
    """Check that the matrices of a schedule are doubly stochastic.

    Parameters
    ----------
    schedule : callable
        ``schedule(n, round)`` returns W^k, (n, n), or a graph.
    n : int
        Nodes.
    rounds : int
        Rounds that are looked at, from 1.
    name : str, optional
        What messages call it.

    Raises
    ------
    AssertionError
        Where rows or columns do not add up to one, or the same round gives two matrices.

    Examples
    --------
    >>> check_schedule(lambda n, round: np.full((n, n), 1 / n))
    """
    who = name or _called(schedule)
    for round in range(1, rounds + 1):
        matrices = [schedule(n, round) for _ in range(2)]
        if isinstance(matrices[0], nx.Graph):
            matrices = [
                topologies.mixing_matrix(each, "metropolis_hastings").to_dense()
                for each in matrices
            ]
        w = np.asarray(matrices[0], float)
        assert w.shape == (n, n), f"{who}, round {round}: the matrix is {w.shape}, not ({n}, {n})"
        assert np.array_equal(w, matrices[1]), f"{who}, round {round}: it differs when asked again"
        assert (w >= 0).all(), f"{who}, round {round}: a weight is negative"
        assert np.allclose(w.sum(0), 1) and np.allclose(w.sum(1), 1), (
            f"{who}, round {round}: rows or columns do not add up to one"
        )


def check_correction(correction: Any, **options: Any) -> None:
    """Check that a correction of gossip keeps the promises of every run; see ``check_method``.

    Clients mix on a ring and, unless it needs a static W, in pairs that change from round to round.
    A client sends each neighbour at most the numbers that ``numbers`` says.

    Parameters
    ----------
    correction : str, type or mapping
        The correction, with FedAvg.
    **options
        As in ``run_rounds``. What ``exchange`` names takes the place of the ring, and of the pairs.

    Raises
    ------
    AssertionError
        Where one of these does not hold.

    Examples
    --------
    >>> check_correction("tracking")
    """
    section, passed = _section(correction, "correction"), options.pop("exchange", {})
    kind: Correction = _made("correction", correction)
    graphs = [{**RING, **passed}]
    if not passed and not kind.chooses and kind.needs not in ("static", "tree"):
        graphs.append(MATCHING)
    for graph in graphs:
        exchange = {**graph, "correction": section}
        _check_numbers(_called(correction), exchange, **options)
        check_method("fedavg", exchanges=("gossip",), exchange=exchange, **options)


def _check_numbers(
    who: str, exchange: Any, data: Any = None, ranks: Any = None, **options: Any
) -> None:
    rounds = run_rounds("fedavg", data, **{**options, "rounds": 0, "exchange": exchange})
    gossip, size = cast(Gossip, rounds.exchange), rounds.algorithm.payload()
    exchanging.remarks(gossip, size, 3)
    correction = gossip.correction
    if correction is None or correction.chooses or gossip.routing.cliques is not None:
        return
    for round in (1, 2):
        active = np.isin(np.arange(rounds.configuration.clients), rounds.participants)
        messages, before = len(gossip.routing.arcs(round, active)), gossip.ledger.up_floats
        sent = rounds.advance().exchange.ledger.up_floats - before
        assert sent <= messages * correction.numbers(size), (
            f"{who}: in round {round}, step() sends {sent / messages:.6g} numbers for a value of "
            f"{size}, but numbers({size}) returns {correction.numbers(size)}; override numbers"
        )


def check_surrogate(
    surrogate: Any,
    samples: Any,
    *,
    psi: Callable[[Tensor], Tensor] | None = None,
    phi: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Check that a surrogate has the properties that MM rests on.

    Each theta is T of its own s; S holds the statistics; those of clients average to those of all
    samples, and a client's do not depend on the others; a step of MM never increases the mean loss
    and penalty. With psi and phi, the surrogate lies above the mean loss, and touches it at tau.

    Parameters
    ----------
    surrogate : str, callable, mapping or Surrogate
        The surrogate.
    samples : array_like
        Samples z, (samples, dim), at least four.
    psi, phi : callable, optional
        Functions of one theta, as MM-1 of ``mpifed.surrogate`` has them: a number, and (size,).

    Raises
    ------
    AssertionError
        Where one of these does not hold.

    Examples
    --------
    >>> check_surrogate("remark_one", [[0.5], [1.0], [3.0], [5.0]],
    ...                 psi=lambda theta: 1 / theta[0], phi=lambda theta: -theta)
    """
    who = _called(surrogate)
    z = torch.as_tensor(np.asarray(samples, float))
    problem = _problem(surrogate, z)
    everyone, cuts = np.array([0, len(z)]), np.array([0, 1, len(z) // 2, len(z)])

    def objective(theta: Tensor) -> float:
        return float(problem.losses(z, theta).mean()) + problem.penalty(theta)

    def statistic(theta: Tensor) -> Tensor:
        return problem.statistics(z, theta, everyone)[0]

    starts = [torch.from_numpy(problem.init(np.random.default_rng(seed))) for seed in range(4)]
    for theta in starts:
        assert theta.shape == (problem.n_parameters,), f"{who}: theta has shape {theta.shape}"
        s = problem.surrogate_of(theta)
        assert s.shape == (problem.size,) and torch.allclose(problem.minimiser(s), theta, 1e-8), (
            f"{who}: T of surrogate_of(theta) is not theta"
        )
        means = problem.statistics(z, theta, cuts)
        mean = torch.from_numpy(np.diff(cuts) / len(z)) @ means
        assert torch.allclose(mean, statistic(theta), 1e-10, 1e-12), (
            f"{who}: the statistics of clients do not average to those of all samples"
        )
        alone = problem.statistics(z[1 : cuts[2]], theta, np.array([0, cuts[2] - 1]))
        assert torch.equal(alone[0], means[1]), (
            f"{who}: a client's statistics depend on the other clients"
        )
        assert torch.allclose(problem.project(mean), mean, 1e-9, 1e-12), (
            f"{who}: statistics lie outside of S"
        )
    reached = [problem.minimiser(statistic(theta)) for theta in starts]
    for before, after in zip(starts, reached, strict=True):
        old, new = objective(before), objective(after)
        assert new <= old + 1e-7 * (1 + abs(old)), (
            f"{who}: a step of MM increases the mean loss and penalty from {old:.9g} to {new:.9g}"
        )
    if psi is None or phi is None:
        return
    thetas = starts + reached
    for tau, theta in zip(thetas, thetas[1:] + thetas[:1], strict=True):
        s = statistic(tau)

        def above(at: Tensor, tau: Tensor = tau, s: Tensor = s) -> float:
            loss = problem.losses(z, at).mean() - problem.losses(z, tau).mean()
            return float(psi(at) - psi(tau) - s @ (phi(at) - phi(tau)) - loss)

        far, near = above(theta), above(tau + STEP * (theta - tau)) / STEP
        assert far >= -1e-8 * (1 + abs(objective(tau))), (
            f"{who}: the surrogate at tau lies {-far:.3g} below the mean loss at another theta"
        )
        assert near <= 1e-2 * (1 + far), (
            f"{who}: the surrogate and the mean loss have slopes at tau that differ by {near:.3g}"
        )


def _problem(surrogate: Any, z: Tensor) -> Surrogate:
    """Return a surrogate of samples, which knows their facts."""
    counts = np.array([len(z)])
    data = Description("samples", (z.shape[1],), 0, counts, counts, counts, "unlabelled")
    problem = surrogate if isinstance(surrogate, Surrogate) else make_surrogate(surrogate, data)
    if problem.waits:
        blocks = [problem.facts(z, block) for block in range(len(problem.fact_blocks))]
        problem = problem.knowing(problem.conclude(torch.cat(blocks)))
    return problem


def _class_of(method: Any, kind: str) -> type[Algorithm]:
    name, _ = named(_section(method, kind), kind)
    return cast(type[Algorithm], find(kind, name))


def _section(item: Any, kind: str) -> Any:
    """Return an item of a shelf as the section of a configuration."""
    if is_component(item):
        return name_of(item, kind)
    if isinstance(item, Mapping) and is_component(item.get("name")):
        return {**item, "name": name_of(item["name"], kind)}
    return item


def _mapping(item: Any, kind: str) -> dict[str, Any]:
    name, options = named(_section(item, kind), kind)
    return {"name": name, **options}


def _made(kind: str, item: Any) -> Any:
    """Return the object that an item stands for."""
    if isinstance(item, (str, Mapping)) or is_component(item):
        return make(kind, _section(item, kind), kind)
    return item


def _called(item: Any) -> str:
    """Return how messages call an item."""
    if isinstance(item, Mapping):
        return _called(item["name"])
    if isinstance(item, str):
        return item
    return str(getattr(item, "__name__", type(item).__name__))
