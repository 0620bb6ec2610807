"""Counted layers of PyTorch and of JAX against times measured on this machine's processor.

As in `benchmarks.cost_model`: peak from a matrix product, bandwidth from a copy, efficiency from
one measured block; the whole small model and a block of another shape are predicted and measured,
forward and backward. What is not installed is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.analysis.planning.transformer import EFFICIENCY, Accelerator, roofline_ms
from benchmarks.timing import Held, measured_ms

if TYPE_CHECKING:
    from app.plans.roofline import CountedLayer

_HIDDEN: Final = 640
_TOKENS: Final = 384
_VOCABULARY: Final = 8000
_BLOCKS: Final = 4
_OTHER: Final = 896
_HEAD_SIZE: Final = 64

Measured = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Counted:
    """Layers as they were counted, and what they took: forward and backward, ms.

    The model is `_BLOCKS` blocks and a head; the first of `blocks` calibrates.
    """

    name: str
    processor: Accelerator
    blocks: Sequence[CountedLayer]
    head: CountedLayer
    other: CountedLayer
    block_ms: Measured
    whole_ms: Measured
    other_ms: Measured

    def lines(self) -> Iterator[Held]:
        """Yield predicted against measured times."""
        ahead = self.block_ms[0] / roofline_ms(self.blocks[0].forward, self.processor)
        back = self.block_ms[1] / roofline_ms(self.blocks[0].backward, self.processor)
        whole = (*self.blocks, self.head)
        for what, layers, taken in (
            ("four blocks and a head", whole, self.whole_ms),
            (f"block of {_OTHER}", (self.other,), self.other_ms),
        ):
            small = layers is whole
            forward = ahead * sum(roofline_ms(one.forward, self.processor) for one in layers)
            backward = back * sum(roofline_ms(one.backward, self.processor) for one in layers)
            yield Held(f"{self.name}, {what}, forward", forward, taken[0], small)
            yield Held(f"{self.name}, {what}, backward", backward, taken[1], small)


def processor(product: Callable[[], object], flops: float, copy: Callable[[], object], size: float,
              ) -> Accelerator:  # fmt: skip
    """Return this machine's processor, by a matrix product and a copy of `size` bytes."""
    return Accelerator(
        "processor",
        peak_flops=flops / (measured_ms(product) / 1e3),
        bytes_per_s=2 * size / (measured_ms(copy) / 1e3),
        memory_bytes=None,
        efficiency=EFFICIENCY,
    )


def measure_torch() -> Iterator[Held]:
    """Yield the lines of PyTorch, counted on the meta device; none where it is not installed."""
    try:
        import torch  # noqa: PLC0415 - optional, and gigabytes

        from app.plans.torch_cost import count_torch  # noqa: PLC0415 - it imports torch
    except ImportError:
        return
    torch.set_num_threads(1)

    def block(hidden: int) -> Any:  # noqa: ANN401 - torch's
        return torch.nn.TransformerEncoderLayer(
            hidden, hidden // _HEAD_SIZE, 4 * hidden, dropout=0.0, batch_first=True
        )

    def taken(layers: Any, x: Any) -> Measured:  # noqa: ANN401 - torch's
        model = torch.nn.Sequential(*layers)
        forward = measured_ms(lambda: model(x))
        output = model(x)
        gradient = torch.ones_like(output)
        backward = measured_ms(lambda: output.backward(gradient, retain_graph=True))
        return forward, backward

    def given(hidden: int) -> Any:  # noqa: ANN401 - torch's
        return torch.randn(1, _TOKENS, hidden, requires_grad=True)

    blocks = [block(_HIDDEN) for _ in range(_BLOCKS)]
    head = torch.nn.Linear(_HIDDEN, _VOCABULARY, bias=False)
    other = block(_OTHER)
    counted = count_torch([*blocks, head], given(_HIDDEN))
    a, large = torch.randn(1024, 1024), torch.ones(32 * 2**20)
    device = processor(lambda: a @ a, 2 * 1024**3, large.clone, 4 * 32 * 2**20)
    yield from Counted(
        "PyTorch",
        device,
        counted[:-1],
        counted[-1],
        count_torch([other], given(_OTHER))[0],
        taken(blocks[:1], given(_HIDDEN)),
        taken([*blocks, head], given(_HIDDEN)),
        taken([other], given(_OTHER)),
    ).lines()


def measure_jax() -> Iterator[Held]:
    """Yield the lines of JAX, counted by XLA; none where it is not installed."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    try:
        import jax  # noqa: PLC0415 - optional

        from app.plans.xla_cost import count_xla  # noqa: PLC0415 - it imports jax
    except ImportError:
        return
    draw = np.random.default_rng(1)

    def weights(rows: int, columns: int) -> Any:  # noqa: ANN401 - JAX's
        return jax.numpy.asarray(draw.standard_normal((rows, columns), dtype=np.float32) / rows)

    def tree(hidden: int) -> Any:  # noqa: ANN401 - JAX's
        return {
            "qkv": weights(hidden, 3 * hidden),
            "project": weights(hidden, hidden),
            "up": weights(hidden, 4 * hidden),
            "down": weights(4 * hidden, hidden),
        }

    def block(p: Any, x: Any) -> Any:  # noqa: ANN401 - JAX's
        tokens, hidden = x.shape
        heads = hidden // _HEAD_SIZE
        q, k, v = (
            part.reshape(tokens, heads, _HEAD_SIZE).transpose(1, 0, 2)
            for part in jax.numpy.split(x @ p["qkv"], 3, axis=1)
        )
        mixed = (jax.nn.softmax(q @ k.transpose(0, 2, 1)) @ v).transpose(1, 0, 2)
        x = x + mixed.reshape(tokens, hidden) @ p["project"]
        return x + jax.nn.relu(x @ p["up"]) @ p["down"]

    def taken(functions: Sequence[Any], parameters: Sequence[Any], x: Any) -> Measured:  # noqa: ANN401 - JAX's
        def forward(trees: Any, value: Any) -> Any:  # noqa: ANN401 - JAX's
            for function, one in zip(functions, trees, strict=True):
                value = function(one, value)
            return value

        ahead = jax.jit(forward)
        output, pull_back = jax.vjp(ahead, parameters, x)
        back = jax.jit(pull_back)
        gradient = jax.numpy.ones_like(output)
        return (
            measured_ms(lambda: ahead(parameters, x).block_until_ready()),
            measured_ms(lambda: jax.block_until_ready(back(gradient))),
        )

    def given(hidden: int) -> Any:  # noqa: ANN401 - JAX's
        return jax.numpy.asarray(draw.standard_normal((_TOKENS, hidden), dtype=np.float32))

    def head(p: Any, x: Any) -> Any:  # noqa: ANN401 - JAX's
        return x @ p

    trees = [tree(_HIDDEN) for _ in range(_BLOCKS)]
    last, wide = weights(_HIDDEN, _VOCABULARY), tree(_OTHER)
    layers = [*((f"block {i}", block, one) for i, one in enumerate(trees)), ("head", head, last)]
    counted = count_xla(layers, given(_HIDDEN))
    product, copy = jax.jit(lambda a: a @ a), jax.jit(lambda a: a + 1)
    a, large = weights(1024, 1024), jax.numpy.ones(32 * 2**20)
    device = processor(
        partial(_ready, product, a), 2 * 1024**3, partial(_ready, copy, large), 4 * 32 * 2**20
    )
    yield from Counted(
        "JAX",
        device,
        counted[:-1],
        counted[-1],
        count_xla([("other", block, wide)], given(_OTHER))[0],
        taken([block], trees[:1], given(_HIDDEN)),
        taken([*[block] * _BLOCKS, head], [*trees, last], given(_HIDDEN)),
        taken([block], [wide], given(_OTHER)),
    ).lines()


def _ready(function: Callable[[Any], Any], value: Any) -> None:  # noqa: ANN401 - JAX's
    function(value).block_until_ready()
