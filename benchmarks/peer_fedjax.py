"""A workload in FedJAX: prints the CPU seconds of each round as one JSON line. Runs in the peers' environment."""

from __future__ import annotations

import argparse
import json
import time

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms.fed_avg import federated_averaging
from workloads import WORKLOADS

Params = dict[str, jax.Array]
jax.tree_map = jax.tree_util.tree_map  # FedJAX's last release calls it by the name that jax has dropped since


def dense(params: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def convolved(params: Params, name: str, x: jax.Array) -> jax.Array:
    """(n, channels, height, width), as torch lays pictures out."""
    numbers = ("NCHW", "OIHW", "NCHW")
    moved = jax.lax.conv_general_dilated(x, params[f"{name}.weight"], (1, 1), "VALID", dimension_numbers=numbers)
    return moved + params[f"{name}.bias"][:, None, None]


def mlp(params: Params, x: jax.Array) -> jax.Array:
    return dense(params, "2", jax.nn.relu(dense(params, "0", x)))


def regression(params: Params, x: jax.Array) -> jax.Array:
    return x @ params["weight"].T + params["bias"]


def cnn(params: Params, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(convolved(params, "2", jax.nn.relu(convolved(params, "0", x))))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return dense(params, "8", jax.nn.relu(dense(params, "6", x.reshape(len(x), -1))))


FORWARD = {"mlp": mlp, "lr": regression, "cnn": cnn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("rounds", type=int)
    options = parser.parse_args()
    work, forward = WORKLOADS[options.workload], FORWARD[options.workload]

    def loss(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
        chances = jax.nn.log_softmax(forward(params, batch["x"]))
        return -jnp.take_along_axis(chances, batch["y"][:, None], 1).mean()

    x, y = (part.numpy() for part in work.data())
    clients = [fedjax.ClientDataset({"x": own, "y": labels}) for own, labels in zip(x, y, strict=True)]
    algorithm = federated_averaging(
        lambda params, batch, rng: jax.grad(loss)(params, batch),
        fedjax.optimizers.sgd(work.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=1),
    )
    start = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in work.model().named_parameters()}
    state, order = algorithm.init(start), np.random.default_rng(0)
    seconds = []
    for number in range(options.rounds + 1):
        began = time.process_time()
        chosen = order.permutation(work.clients)[: work.cohort]
        keys = jax.random.split(jax.random.PRNGKey(number), work.cohort)
        taking_part = [(index, clients[index], key) for index, key in zip(chosen, keys, strict=True)]
        state, _ = algorithm.apply(state, taking_part)
        jax.block_until_ready(state.params)
        seconds.append(time.process_time() - began)
    assert all(bool(jnp.isfinite(tensor).all()) for tensor in state.params.values())
    print(json.dumps({"seconds": seconds[1:]}))  # the first round compiles


if __name__ == "__main__":
    main()
