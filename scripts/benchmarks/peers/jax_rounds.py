"""Rounds of FedAvg and FedEM as a page of JAX: ``jit`` of all clients, ``scan`` over local steps.

``python jax_rounds.py WORK RESULT MODEL BATCH WAY``: the file WORK has x (clients, samples, ...), y
(clients, samples), the first components (M, P) and mixture weights (clients, M), WAY is how clients
follow each other, ``vmap`` or ``map``. For a number on a line of standard input the program runs so
many rounds and prints their CPU seconds; at the end it writes the components to RESULT.
"""

import os
import resource
import sys
from itertools import pairwise

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

RATE = 0.05
work, (result, model, batch, way) = np.load(sys.argv[1]), sys.argv[2:]
widths = [] if model == "cnn" else list(map(int, model.split("-")))
shapes = [(b, a) for a, b in pairwise(widths)] or [
    *((8, 5, 5, 1), (16, 5, 5, 8), (10, 784))  # kernels as mpifed stores them
]


def tensors(flat):
    """Return weight and bias of each layer, of components (M, P)."""
    sizes = [size for shape in shapes for size in (np.prod(shape), shape[0])]
    parts = np.split(flat, np.cumsum(sizes)[:-1], axis=1)
    weights = [part.reshape(-1, *shape) for part, shape in zip(parts[::2], shapes, strict=True)]
    return jax.tree.map(jnp.asarray, list(zip(weights, parts[1::2], strict=True)))


def pooled(h, weight, bias):
    """Return a convolution's outputs (B, C, H, W) behind ReLU and the maxima over 2 x 2."""
    axes = ("NCHW", "OHWI", "NCHW")
    h = lax.conv_general_dilated(h, weight, (1, 1), "SAME", dimension_numbers=axes)
    h = nn.relu(h + bias[:, None, None])
    return lax.reduce_window(h, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def losses(layers, x, y):
    """Return the loss of each sample; two labels have one logit."""
    *hidden, (weight, bias) = layers
    h = x.reshape(-1, 1, 28, 28) if model == "cnn" else x
    for layer in hidden:
        h = pooled(h, *layer) if model == "cnn" else nn.relu(h @ layer[0].T + layer[1])
    z = h.reshape(len(h), -1) @ weight.T + bias
    if z.shape[1] == 1:
        return jnp.logaddexp(0, z[:, 0]) - y * z[:, 0]
    return -jnp.take_along_axis(nn.log_softmax(z), y[:, None], 1)[:, 0]


def epoch(layers, x, y, weights, order):
    """Return the layers after an epoch of SGD on weighted losses."""
    gradient = jax.grad(
        lambda layers, rows: (weights[rows] * losses(layers, x[rows], y[rows])).mean()
    )

    def step(layers, rows):
        slopes = gradient(layers, rows)
        return jax.tree.map(lambda each, slope: each - RATE * slope, layers, slopes), None

    return lax.scan(step, layers, order.reshape(-1, min(int(batch), len(x))))[0]


@jax.jit
def advance(components, mixture, x, y, orders):
    """Return components and mixture weights after a round; with one component it is FedAvg."""

    def client(mixture, x, y, orders):
        if len(mixture) == 1:
            share = jnp.ones((1, len(x)), x.dtype)
        else:
            by_component = jax.vmap(lambda layers: losses(layers, x, y))(components)
            share = nn.softmax(jnp.log(mixture)[:, None] - by_component, 0)
        trained = jax.vmap(lambda layers, q, order: epoch(layers, x, y, q, order))
        return trained(components, share, orders), share.mean(1)

    rows = (mixture, x, y, orders)
    trained, mixture = (
        jax.vmap(client)(*rows) if way == "vmap" else lax.map(lambda row: client(*row), rows)
    )
    return jax.tree.map(lambda each: each.mean(0), trained), mixture


x, y = jnp.asarray(work["x"]), jnp.asarray(work["y"])
state = tensors(work["components"]), jnp.asarray(work["mixture"])
random = np.random.default_rng(0)
numbers = np.broadcast_to(np.arange(x.shape[1], dtype=np.int32), (*state[1].shape, x.shape[1]))
for line in sys.stdin:
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(int(line)):
        state = advance(*state, x, y, random.permuted(numbers, axis=-1))
    jax.block_until_ready(state)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, flush=True)
parts = [np.asarray(each).reshape(len(each), -1) for layer in state[0] for each in layer]
np.save(result, np.concatenate(parts, 1))
