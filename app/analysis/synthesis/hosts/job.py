"""A job as its hosts run it, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from app.analysis.trace.model import Sizes

Worker = tuple[int, int]
_MS: Final = 1e6
V_CHUNKS: Final = 2


class Posting(StrEnum):
    """When a host posts its transfers, and when it waits for them."""

    BLOCKING = "blocking"  # what is posted together is waited for at once
    WINDOWED = "windowed"  # a receive follows an earlier computation of its direction


@dataclass(frozen=True, slots=True)
class HostJob:
    """A job of 1F1B pipelines, or of a V of two chunks a stage, and how it runs and is recorded.

    Raises
    ------
    ValueError
        The sizes or the ways to run contradict each other.
    """

    dp: int = 2
    pp: int = 2
    microbatches: int = 6
    steps: int = 6
    # forward_ns, backward_ns: of a stage's chunks together
    forward_ns: float = 60 * _MS
    backward_ns: float = 120 * _MS
    wire_ns: float = 0.3 * _MS  # what a transfer takes
    noise: float = 0.004  # relative scatter of computations
    # worker_noise, wire_noise: relative scatter of workers' speeds, and of transfers
    worker_noise: float = 0.0
    wire_noise: float = 0.0
    # mapping of (dp, pp) to float: how many times as long workers compute
    factors: Mapping[Worker, float] = field(default_factory=dict)
    # mapping of (dp, pp) to float: how many times as long transfers between a stage and the next
    # one take
    links: Mapping[Worker, float] = field(default_factory=dict)
    # A collective over all ranks ends the step; without it steps of stages overlap.
    barrier: bool = True
    posting: Posting = Posting.BLOCKING
    # With windowed posting: a receive is posted after the computation of its direction that is
    # that many before its own.
    window: int = 1
    # With windowed posting: whether a host waits for its sends; else it does at the step's end.
    sends_block: bool = False
    # Parameters are gathered within each computation, and the computation waits.
    gathers: bool = False
    # pause_ns, pauses: recorded garbage collections inside of forwards: how long, and in which
    # share of them
    pause_ns: float = 0.0
    pauses: float = 0.0
    late_ends: bool = False  # ends of sends are taken at the end of the step
    handover_ns: float = 0.0  # what passes before a computation is launched, without being recorded
    transfers: bool = True  # whether transfers are recorded
    v_shaped: bool = False  # two chunks a stage; the last stage goes on with its second one
    layers: tuple[int, ...] = ()
    seed: int = 0
    name: str = "hosts"

    def __post_init__(self) -> None:
        if min(self.dp, self.pp, self.microbatches, self.steps, self.window) < 1:
            raise ValueError("sizes, microbatches, steps and windows start at 1")
        if self.v_shaped and self.posting is Posting.WINDOWED:
            raise ValueError("a V posts its transfers when it needs them")

    @property
    def sizes(self) -> Sizes:
        """Return the job's parallel sizes."""
        return Sizes(dp=self.dp, pp=self.pp, vpp=V_CHUNKS if self.v_shaped else 1)

    @property
    def healthy(self) -> HostJob:
        """Return the job with nothing wrong."""
        return replace(self, factors={}, links={}, pauses=0.0)
