"""The cost model of transformers against times measured on this machine's processor.

The processor is a device like any other: its peak comes from a matrix product, its bandwidth from
a copy, its efficiency from one measured block. The head, the whole small model and blocks of
other shapes are then predicted and measured. Layers counted with PyTorch and with JAX follow, where
they are installed. ``make cost-model``, which keeps BLAS to one thread: others would only wait.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.planning.transformer import (
    EFFICIENCY,
    Accelerator,
    Measured,
    Transformer,
    roofline_ms,
)
from benchmarks.counted_layers import measure_jax, measure_torch
from benchmarks.timing import Held, measured_ms

FloatArray = NDArray[np.float32]

_NUMBER_BYTES: Final = 4
_WITHIN: Final = 0.25


@dataclass(frozen=True, slots=True)
class Block:
    """The weights of a block, and how many heads it has."""

    qkv: FloatArray
    project: FloatArray
    up: FloatArray
    down: FloatArray
    heads: int

    @classmethod
    def random(cls, model: Transformer, draw: np.random.Generator) -> Block:
        """Return a block of a model's shape."""

        def weights(rows: int, columns: int) -> FloatArray:
            return draw.standard_normal((rows, columns), dtype=np.float32) / np.float32(rows)

        h = model.hidden
        return cls(
            weights(h, 3 * h), weights(h, h), weights(h, 4 * h), weights(4 * h, h), model.heads
        )

    def forward(self, x: FloatArray) -> FloatArray:
        """Return what the block makes of the tokens of one sequence."""
        tokens, h = x.shape
        q, k, v = (
            part.reshape(tokens, self.heads, h // self.heads).transpose(1, 0, 2)
            for part in np.split(x @ self.qkv, 3, axis=1)
        )
        scores = q @ k.transpose(0, 2, 1)
        np.exp(scores - scores.max(axis=2, keepdims=True), out=scores)
        scores /= scores.sum(axis=2, keepdims=True)
        mixed = (scores @ v).transpose(1, 0, 2).reshape(tokens, h)
        x = x + mixed @ self.project
        result: FloatArray = x + np.maximum(x @ self.up, 0) @ self.down
        return result


def this_processor() -> Accelerator:
    """Return this machine's processor as a device, at full efficiency."""
    size = 1024
    draw = np.random.default_rng(0)
    a = draw.standard_normal((size, size), dtype=np.float32)
    product_ms = measured_ms(lambda: a @ a)
    large = np.ones(32 * 2**20, dtype=np.float32)
    copy_ms = measured_ms(large.copy)
    return Accelerator(
        "processor",
        peak_flops=2 * size**3 / (product_ms / 1e3),
        bytes_per_s=2 * large.nbytes / (copy_ms / 1e3),
        memory_bytes=None,
        efficiency=EFFICIENCY,
    )


def shape(hidden: int, sequence: int) -> Transformer:
    """Return a small model."""
    return Transformer(
        layers_count=4,
        hidden=hidden,
        heads=hidden // 64,
        vocabulary=8000,
        sequence=sequence,
        microbatch=1,
        intermediate=4 * hidden,
        kv_heads=hidden // 64,
        number_bytes=_NUMBER_BYTES,
    )


def measure_cost_model() -> Iterator[Held]:
    """Yield predicted against measured forward times."""
    processor = this_processor()
    model = shape(640, 384)
    draw = np.random.default_rng(1)
    blocks = [Block.random(model, draw) for _ in range(model.layers_count)]
    head = draw.standard_normal((model.hidden, model.vocabulary), dtype=np.float32)
    x = draw.standard_normal((model.sequence, model.hidden), dtype=np.float32)

    def whole() -> FloatArray:
        value = x
        for block in blocks:
            value = block.forward(value)
        return value @ head

    one = Measured(processor.name, 1, measured_ms(lambda: blocks[0].forward(x)), None)
    calibrated = replace(model, measured=(one,))
    predicted = calibrated.times_on(processor).forward_ms
    yield Held("its head", predicted[-1], measured_ms(lambda: x @ head))
    yield Held("four blocks and the head", sum(predicted[1:]), measured_ms(whole), whole=True)
    factor = one.forward_ms / roofline_ms(model.work()[1], processor)
    for other in (shape(640, 768), shape(768, 384), shape(1024, 512)):
        block = Block.random(other, draw)
        y = draw.standard_normal((other.sequence, other.hidden), dtype=np.float32)
        ms = roofline_ms(other.work()[1], processor) * factor
        what = f"block of {other.hidden}, {other.sequence} tokens"
        yield Held(what, ms, measured_ms(partial(block.forward, y)))


def main() -> None:
    """Print every prediction; fail where one of a whole model is too far off."""
    far = []
    for held in chain(measure_cost_model(), measure_torch(), measure_jax()):
        print(held, flush=True)
        if held.whole and abs(held.off) > _WITHIN:
            far.append(held.what)
    if far:
        sys.exit(f"off by more than {_WITHIN:.0%}: {', '.join(far)}".replace("%", " %"))


if __name__ == "__main__":
    main()
