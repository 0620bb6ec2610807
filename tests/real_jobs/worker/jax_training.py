"""A training step of JAX on all of its devices, profiled as in JAX's documentation.

Run as a program: ``jax_training.py FOLDER FIRST_STEP STEPS``.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROWS, WIDTH, LAYERS = 16, 128, 3


def _loss(weights: Any, rows: Any) -> Any:  # noqa: ANN401 - JAX's arrays
    for _ in range(LAYERS):
        rows = jnp.tanh(rows @ weights)
    return (rows**2).mean()


@partial(jax.jit, donate_argnums=0)
def _step(weights: Any, rows: Any) -> Any:  # noqa: ANN401 - JAX's arrays
    return weights - 0.1 * jax.grad(_loss)(weights, rows)


def train(folder: str, first: int, steps: int) -> None:
    """Train, and profile some steps."""
    mesh = Mesh(jax.devices(), ("data",))
    shared = NamedSharding(mesh, PartitionSpec())
    rows = jax.device_put(
        jnp.ones((ROWS * len(jax.devices()), WIDTH)), NamedSharding(mesh, PartitionSpec("data"))
    )
    weights = _step(jax.device_put(jnp.eye(WIDTH), shared), rows).block_until_ready()
    jax.profiler.start_trace(folder)
    for number in range(first, first + steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            weights = _step(weights, rows).block_until_ready()
    jax.profiler.stop_trace()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
