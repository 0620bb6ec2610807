"""A small model whose computations take the time that a scenario requires."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from tests.real_jobs.worker.recording import Label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real_jobs.faults import Pace
    from tests.real_jobs.worker.recording import Recorder

HIDDEN: Final = 64
SEQUENCE: Final = 16
MICROBATCH_SIZE: Final = 1
FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"


class Run:
    """The current step of a worker; set by the scenario, read by model and instrumentation."""

    def __init__(self, pace: Pace, recorder: Recorder) -> None:
        self.pace = pace
        self.recorder = recorder
        self.microbatch = 0
        self.enabled = True

    @contextmanager
    def computing(self, op: str, microbatch: int, chunk: int | None) -> Iterator[None]:
        """Record a computation on a microbatch."""
        self.microbatch = microbatch
        with self.recorder.timed(Label(op, microbatch, chunk)):
            yield

    def compute(self, share: float, *, backward: bool) -> None:
        """Take the time of a share of a chunk's computation."""
        if self.enabled:
            step = self.recorder.step
            time.sleep(share * self.pace.computation_s(step, self.microbatch, backward=backward))

    def pause(self, chunk: int) -> None:
        """Stall in the garbage collector, if the scenario has a stall here."""
        seconds = self.pace.pause_s(self.recorder.step, self.microbatch, chunk)
        if self.enabled and seconds:
            collect_for(seconds)


def collect_for(seconds: float) -> None:
    """Run the garbage collector for a given time, as with a large heap."""

    def dawdle(phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "stop":
            time.sleep(seconds)

    # First in the list, so that other callbacks measure the whole collection.
    gc.callbacks.insert(0, dawdle)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(dawdle)


class _PacedBackward(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, run: Run, share: float) -> torch.Tensor:  # noqa: ANN401
        ctx.run, ctx.share = run, share
        # A copy, because the schedules detach outputs in place, which a view does not allow.
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        ctx.run.compute(ctx.share, backward=True)
        return gradient, None, None


class Block(nn.Module):  # type: ignore[misc]
    """A feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Chunk(nn.Module):  # type: ignore[misc]
    """The layers of one virtual stage; it sleeps for the rest of its planned time."""

    def __init__(self, run: Run, layers: int, index: int) -> None:
        super().__init__()
        self.run = run
        self.index = index
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the chunk's output, of the shape of its input."""
        share = 1 / len(self.blocks)
        self.run.pause(self.index)
        for block in self.blocks:
            # The forward sleeps after the layer, the backward before it.
            x = _PacedBackward.apply(block(x), self.run, share)
            self.run.compute(share, backward=False)
        return x


def microbatch_input() -> torch.Tensor:
    """Return the input of the first stage."""
    return torch.randn(SEQUENCE, MICROBATCH_SIZE, HIDDEN)
