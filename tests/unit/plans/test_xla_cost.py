"""XLA's cost analysis of small layers, if JAX is installed."""

from __future__ import annotations

from typing import Any

import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.transformer import Accelerator
from app.plans.roofline import layer_documents
from app.plans.specs.spec import parse_spec
from tests.support.extras import of_extra

jax = of_extra("jax", "xla")

from app.plans.xla_cost import count_xla  # noqa: E402 - it imports jax

TOKENS, WIDTH, INNER = 64, 128, 512


def feed_forward(parameters: Any, value: Any) -> Any:  # noqa: ANN401 - JAX's arrays
    return jax.nn.relu(value @ parameters["up"]) @ parameters["down"]


def layers(count: int) -> list[Any]:
    parameters = {
        "up": jax.numpy.ones((WIDTH, INNER), "float32"),
        "down": jax.numpy.ones((INNER, WIDTH), "float32"),
    }
    return [(f"block {i}", feed_forward, parameters) for i in range(count)]


def test_counts_the_work_of_both_passes() -> None:
    value = jax.numpy.ones((TOKENS, WIDTH), "float32")
    (layer,) = count_xla(layers(1), value)
    products = 2 * 2 * TOKENS * WIDTH * INNER
    assert layer.forward.flops == pytest.approx(products, rel=0.05)
    # The backward pass has two products for each product of the forward pass.
    assert layer.backward.flops == pytest.approx(2 * products, rel=0.1)
    assert layer.forward.parameter_bytes == 2 * WIDTH * INNER * 4
    assert layer.forward.output_bytes == TOKENS * WIDTH * 4
    assert layer.forward.traffic_bytes > layer.forward.parameter_bytes
    assert layer.forward.stored_bytes > 0


def test_counted_layers_can_be_planned() -> None:
    counted = count_xla(layers(4), jax.numpy.ones((TOKENS, WIDTH), "float32"))
    device = Accelerator("fast", 1e12, 1e11, None)
    found = plan(
        parse_spec(
            {
                "model": {"layers": layer_documents(counted, device)},
                "profiled_on": {"type": "fast"},
                "devices": [
                    {"type": "fast", "nodes": 1, "gpus_per_node": 1, "speed": 3.0},
                    {"type": "slow", "nodes": 1, "gpus_per_node": 1},
                ],
                "microbatches": 8,
            }
        ),
        compare=False,
    )
    assert [stage.end - stage.first for stage in found.template] in ([3, 1], [1, 3])
