"""Costs of PyTorch layers, counted on the meta device, if PyTorch is installed."""

from __future__ import annotations

from typing import Any

from tests.support.extras import of_extra

torch = of_extra("torch", "torch")

from app.plans.torch_cost import count_torch  # noqa: E402 - it imports torch

TOKENS, WIDTH, INNER = 64, 128, 512


def block() -> Any:  # noqa: ANN401 - torch may not be installed
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, INNER, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(INNER, WIDTH, bias=False),
    )


def test_counts_the_work_of_both_passes() -> None:
    (layer,) = count_torch([block()], torch.empty(TOKENS, WIDTH))
    products = 2 * 2 * TOKENS * WIDTH * INNER
    assert layer.forward.flops == products
    assert layer.backward.flops == 2 * products
    assert layer.forward.parameter_bytes == 2 * WIDTH * INNER * 4
    assert layer.forward.output_bytes == TOKENS * WIDTH * 4
    # The inputs of both products; the ReLU stores its output, which is one of them.
    assert layer.forward.stored_bytes == (TOKENS * WIDTH + TOKENS * INNER) * 4
    # Reads and writes of three operations.
    numbers = 2 * WIDTH * INNER + 2 * TOKENS * WIDTH + 4 * TOKENS * INNER
    assert layer.forward.traffic_bytes == numbers * 4


def test_embedding_takes_whole_numbers_and_feeds_the_next() -> None:
    layers = [torch.nn.Embedding(1000, WIDTH), block(), block()]
    counted = count_torch(layers, torch.zeros(TOKENS, dtype=torch.long))
    assert [layer.name for layer in counted] == ["0 Embedding", "1 Sequential", "2 Sequential"]
    assert counted[0].forward.output_bytes == TOKENS * WIDTH * 4
    assert counted[1].forward == counted[2].forward


def test_the_model_keeps_its_numbers() -> None:
    module = block()
    before = [parameter.clone() for parameter in module.parameters()]
    count_torch([module], torch.empty(TOKENS, WIDTH))
    after = list(module.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(parameter.device.type == "cpu" for parameter in after)
