"""FedAvg of FedJAX, by its backend that compiles a client's step."""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from fedjax.algorithms import fed_avg
from jax import lax, nn
from workload import BATCH, RATE, asked

federation, module, rounds = asked()
names = list(module.state_dict())


def outputs(parameters, x):
    """Return the logits of images (B, 28, 28); kernels lie as in torch."""
    *convolutions, (weight, bias) = zip(parameters[::2], parameters[1::2], strict=True)
    h = x[:, None]
    for kernel, shift in convolutions:
        h = nn.relu(lax.conv_general_dilated(h, kernel, (1, 1), "SAME") + shift[:, None, None])
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return h.reshape(len(h), -1) @ weight.T + bias


def loss(parameters, batch, random):
    """Return the mean cross-entropy of a minibatch."""
    logs = nn.log_softmax(outputs(parameters, batch["x"]))
    return -jnp.take_along_axis(logs, batch["y"][:, None], 1).mean()


clients = [
    fedjax.ClientDataset({"x": x.numpy(), "y": y.numpy().astype(np.int32)})
    for x, y in federation.clients
]
algorithm = fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.sgd(RATE),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
)
state = algorithm.init([jnp.asarray(value.numpy()) for value in module.state_dict().values()])
keys = jax.random.split(jax.random.PRNGKey(0), len(clients))
for _ in range(rounds):
    taking_part = list(zip(map(str, range(len(clients))), clients, keys, strict=True))
    state, _ = algorithm.apply(state, taking_part)
trained = [torch.from_numpy(np.array(value)) for value in state.params]
module.load_state_dict(dict(zip(names, trained, strict=True)))
print(f"accuracy {federation.accuracy(module):.4f}")
