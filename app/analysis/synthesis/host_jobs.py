"""Synthetic jobs executed host by host as sequences of blocking calls, with injected faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from app.analysis.synthesis.job import MS, stream
from app.analysis.trace import model as ops
from app.analysis.trace.model import ABSENT, Sizes

Worker = tuple[int, int]
V_CHUNKS: Final = 2


class Posting(StrEnum):
    """When a host posts its transfers, and when it waits for them."""

    BLOCKING = "blocking"  # what is posted together is waited for at once
    WINDOWED = "windowed"  # a receive follows an earlier computation of its direction


@dataclass(frozen=True, slots=True)
class HostJob:
    """A job with a 1F1B or V-shaped pipeline: sizes, durations, faults, and ways to run and record.

    Raises
    ------
    ValueError
        The sizes or the ways to run contradict each other.
    """

    dp: int = 2
    pp: int = 2
    microbatches: int = 6
    steps: int = 6
    # forward_ns, backward_ns: time of all chunks of a stage together
    forward_ns: float = 60 * MS
    backward_ns: float = 120 * MS
    wire_ns: float = 0.3 * MS  # duration of a transfer
    noise: float = 0.004  # relative scatter of computations
    # worker_noise, wire_noise: relative scatter of the speeds of workers, and of transfers
    worker_noise: float = 0.0
    wire_noise: float = 0.0
    # mapping of (dp, pp) to float: factor of a worker's computing time
    factors: Mapping[Worker, float] = field(default_factory=dict)
    # mapping of (dp, pp) to float: factor of the duration of transfers between a stage and the next
    links: Mapping[Worker, float] = field(default_factory=dict)
    # A collective over all ranks ends the step; without the collective, steps of different stages
    # overlap.
    barrier: bool = True
    posting: Posting = Posting.BLOCKING
    # With windowed posting: a receive is posted while this many computations of the same direction
    # are still to run before it is needed.
    window: int = 1
    # With windowed posting: whether a host waits for each send at once, or for all sends at the end
    # of the step.
    sends_block: bool = False
    # Whether parameters are gathered within each computation, which waits for them.
    gathers: bool = False
    # pause_ns, pauses: duration of garbage collections recorded inside of forwards, and the share
    # of forwards that have one
    pause_ns: float = 0.0
    pauses: float = 0.0
    late_ends: bool = False  # ends of sends are taken at the end of the step
    handover_ns: float = 0.0  # unrecorded delay before each computation
    transfers: bool = True  # whether transfers are recorded
    v_shaped: bool = False  # two chunks a stage; the second ones run from the last stage back
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
        """Return the job without faults."""
        return replace(self, factors={}, links={}, pauses=0.0)


@dataclass(frozen=True, slots=True)
class Part:
    """One side of a transfer: type, other stage, and the (microbatch, chunk) of the data."""

    op: str
    other: int
    of: tuple[int, int]


class When(StrEnum):
    """Whether a call posts its transfers, waits for them, or does both."""

    EXCHANGE = "exchange"  # posts them and waits for all
    POST = "post"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a host: a computation, some transfers, or a collective of a named group."""

    op: str
    mb: int = ABSENT
    mc: int = ABSENT
    parts: tuple[Part, ...] = ()
    when: When = When.EXCHANGE
    group: str = ""


def calls_of_step(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield the calls that a host of a stage makes in one step."""
    if job.v_shaped:
        yield from _v_shaped(job, stage)
    elif job.posting is Posting.WINDOWED:
        yield from _windowed(job, stage)
    else:
        yield from _one_forward_one_backward(job, stage)
    yield Call(ops.GRADS_REDUCE_SCATTER, group=f"grads {stage}")
    if job.barrier:
        yield Call(ops.OPTIMIZER_CLIP, group="clip")
    yield Call(ops.OPTIMIZER)


class _Sides:
    """The transfers of a stage by microbatch; none beyond the ends of the pipeline."""

    def __init__(self, job: HostJob, stage: int) -> None:
        self._job, self._stage = job, stage

    def _with(self, op: str, other: int, mb: int) -> tuple[Part, ...]:
        there = 0 <= other < self._job.pp and mb < self._job.microbatches
        return (Part(op, other, (mb, 0)),) if there else ()

    def take(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.FORWARD_RECV, self._stage - 1, mb)

    def give(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.FORWARD_SEND, self._stage + 1, mb)

    def take_back(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.BACKWARD_RECV, self._stage + 1, mb)

    def give_back(self, mb: int) -> tuple[Part, ...]:
        return self._with(ops.BACKWARD_SEND, self._stage - 1, mb)


def _transferring(when: When, *parts: tuple[Part, ...]) -> Iterator[Call]:
    joint = tuple(part for some in parts for part in some)
    if joint:
        yield Call("", parts=joint, when=when)


def _one_forward_one_backward(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield the calls of 1F1B as Megatron-LM makes them: each one posts transfers and waits."""
    count = job.microbatches
    warm = min(job.pp - 1 - stage, count)
    sides = _Sides(job, stage)
    for mb in range(warm):
        yield from _transferring(When.EXCHANGE, sides.take(mb))
        yield Call(ops.FORWARD_COMPUTE, mb, 0)
        yield from _transferring(When.EXCHANGE, sides.give(mb))
    yield from _transferring(When.EXCHANGE, sides.take(warm))
    for i in range(count - warm):
        yield Call(ops.FORWARD_COMPUTE, warm + i, 0)
        yield from _transferring(When.EXCHANGE, sides.give(warm + i), sides.take_back(i))
        yield Call(ops.BACKWARD_COMPUTE, i, 0)
        yield from _transferring(When.EXCHANGE, sides.give_back(i), sides.take(warm + i + 1))
    for mb in range(count - warm, count):
        yield from _transferring(When.EXCHANGE, sides.take_back(mb))
        yield Call(ops.BACKWARD_COMPUTE, mb, 0)
        yield from _transferring(When.EXCHANGE, sides.give_back(mb))


def _windowed(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield the calls of 1F1B with receives posted ahead and awaited before computations."""
    count, window = job.microbatches, job.window
    warm = min(job.pp - 1 - stage, count)
    sides = _Sides(job, stage)
    sending = When.EXCHANGE if job.sends_block else When.POST
    for mb in range(window):
        yield from _transferring(When.POST, sides.take(mb))
        yield from _transferring(When.POST, sides.take_back(mb))
    for slot in range(count + warm):
        if slot < count:
            yield from _transferring(When.WAIT, sides.take(slot))
            yield Call(ops.FORWARD_COMPUTE, slot, 0)
            yield from _transferring(When.POST, sides.take(slot + window))
            yield from _transferring(sending, sides.give(slot))
        back = slot - warm
        if back >= 0:
            yield from _transferring(When.WAIT, sides.take_back(back))
            yield Call(ops.BACKWARD_COMPUTE, back, 0)
            yield from _transferring(When.POST, sides.take_back(back + window))
            yield from _transferring(sending, sides.give_back(back))
    if not job.sends_block:
        every = [side(mb) for mb in range(count) for side in (sides.give, sides.give_back)]
        yield from _transferring(When.WAIT, *every)


def _v_shaped(job: HostJob, stage: int) -> Iterator[Call]:
    """Yield the calls of a V: forwards to the last stage and back, then backwards likewise."""
    last = job.pp - 1
    for forward, chunks in ((True, (0, 1)), (False, (1, 0))):
        compute = ops.FORWARD_COMPUTE if forward else ops.BACKWARD_COMPUTE
        receive = ops.FORWARD_RECV if forward else ops.BACKWARD_RECV
        send = ops.FORWARD_SEND if forward else ops.BACKWARD_SEND
        for chunk in chunks:
            # forwards of chunk 0 and backwards of chunk 1 run from the first stage to the last
            down = (chunk == 0) == forward
            source, target = (stage - 1, stage + 1) if down else (stage + 1, stage - 1)
            for mb in range(job.microbatches):
                if 0 <= source <= last:
                    yield Call("", parts=(Part(receive, source, (mb, chunk)),))
                yield Call(compute, mb, chunk)
                if 0 <= target <= last:
                    yield Call("", parts=(Part(send, target, (mb, chunk)),))


# Time that a host needs to record an operation.
RECORDED_NS: Final = 30_000
# Number of first forwards of a step in which FSDP2 gathers parameters.
_GATHERING_FORWARDS: Final = 2
_TRANSFERS_DRAWN: Final = 4096


@dataclass(slots=True)
class Row:
    """One recorded operation; times in nanoseconds since the start of the first step."""

    worker: Worker
    step: int
    op: str
    mb: int
    mc: int
    start: float
    end: float


# (DP rank, step, stage, whether forward, other stage, (microbatch, chunk) of the data)
_Side = tuple[int, int, int, bool, int, tuple[int, int]]


class Running:
    """Execution of all hosts, each of which makes its next call as soon as possible.

    Random draws do not depend on when an operation runs, so that runs with and without a fault can
    be compared.
    """

    def __init__(self, job: HostJob) -> None:
        self._job = job
        self._now = {(dp, pp): 0.0 for dp in range(job.dp) for pp in range(job.pp)}
        self._rng = {worker: stream(job.seed, "host", *worker) for worker in self._now}
        self._speed = {
            worker: 1 + job.worker_noise * float(rng.normal()) for worker, rng in self._rng.items()
        }
        wires = stream(job.seed, "wires").normal(size=_TRANSFERS_DRAWN)
        self._wires: list[float] = np.exp(job.wire_noise * wires).tolist()
        # time at which each side of a transfer was ready, and time at which each member entered a
        # collective
        self._ready: dict[_Side, float] = {}
        self._came: dict[tuple[int, str, int], dict[Worker, float]] = {}
        self._found: list[Row] = []

    def rows(self) -> list[Row]:
        """Execute all steps; return the recorded operations."""
        flows = {worker: self._host(worker) for worker in self._now}
        waiting: dict[Worker, Callable[[], bool]] = dict.fromkeys(flows, lambda: True)
        remaining = dict(flows)
        while remaining:
            moved = False
            for worker in list(remaining):
                while worker in remaining and waiting[worker]():
                    moved = True
                    condition = next(remaining[worker], None)
                    if condition is None:
                        del remaining[worker]
                    else:
                        waiting[worker] = condition
            assert moved or not remaining, "hosts wait for one another"  # noqa: S101 - a fault of ours
        return self._found

    def _host(self, worker: Worker) -> Iterator[Callable[[], bool]]:
        """Make all calls of a host; yield each condition for which the host waits."""
        number = 0
        for step in range(self._job.steps):
            for call in calls_of_step(self._job, worker[1]):
                number += 1
                if call.parts:
                    yield from self._transfer(worker, step, call)
                elif call.group:
                    yield from self._collective(worker, step, call.op, call.group, -1)
                elif call.op == ops.OPTIMIZER:
                    self._note(worker, step, call, self._now[worker], 1 * MS)
                else:
                    yield from self._compute(worker, step, call, number)

    def _compute(
        self, worker: Worker, step: int, call: Call, number: int
    ) -> Iterator[Callable[[], bool]]:
        job, rng = self._job, self._rng[worker]
        self._now[worker] += job.handover_ns
        forward = call.op == ops.FORWARD_COMPUTE
        length = (job.forward_ns if forward else job.backward_ns) / (
            V_CHUNKS if job.v_shaped else 1
        )
        length *= self._speed[worker] * (1 + job.noise * float(rng.normal()))
        length *= job.factors.get(worker, 1.0)
        start = self._now[worker]
        if forward and rng.random() < job.pauses:
            self._note(worker, step, Call(ops.GC), start + 0.1 * length, job.pause_ns)
            self._now[worker] = start + job.pause_ns
        # As in FSDP2, the first forwards gather at their start, and backwards at their end.
        gathering = call.mb < (_GATHERING_FORWARDS if forward else job.microbatches - 1)
        if job.gathers and gathering:
            before = 0.01 if forward else 0.99
            self._now[worker] += before * length
            group = f"{call.op} {call.mb} {worker[1]}"
            yield from self._collective(worker, step, ops.PARAMS_ALL_GATHER, group, number)
            length *= 1 - before
        end = self._now[worker] + length
        self._found.append(Row(worker, step, call.op, call.mb, call.mc, start, end))
        self._now[worker] = end + RECORDED_NS

    def _sides(self, worker: Worker, step: int, part: Part) -> tuple[_Side, _Side]:
        """Return a worker's side of a transfer, and the other side."""
        dp, stage = worker
        forward = part.op in {ops.FORWARD_SEND, ops.FORWARD_RECV}
        mine = (dp, step, stage, forward, part.other, part.of)
        return mine, (dp, step, part.other, forward, stage, part.of)

    def _wire_ns(self, mine: _Side) -> float:
        """Return the duration of a transfer, nanoseconds; it is equal for both sides."""
        dp, step, stage, forward, other, of = mine
        first = min(stage, other)
        drawn = self._wires[hash((dp, step, first, forward, of)) % _TRANSFERS_DRAWN]
        return self._job.wire_ns * self._job.links.get((dp, first), 1.0) * drawn

    def _transfer(self, worker: Worker, step: int, call: Call) -> Iterator[Callable[[], bool]]:
        sides = [self._sides(worker, step, part) for part in call.parts]
        if call.when is not When.WAIT:
            for number, (mine, _) in enumerate(sides):
                self._ready[mine] = self._now[worker] + number * RECORDED_NS / 10
        if call.when is When.POST:
            return
        yield lambda: all(theirs in self._ready for _, theirs in sides)
        for part, (mine, theirs) in zip(call.parts, sides, strict=True):
            begin = self._ready[mine]
            end = max(begin, self._ready[theirs]) + self._wire_ns(mine)
            if self._job.transfers:
                self._found.append(Row(worker, step, part.op, *part.of, begin, end))
            self._now[worker] = max(self._now[worker], end + RECORDED_NS)

    def _collective(
        self, worker: Worker, step: int, op: str, group: str, number: int
    ) -> Iterator[Callable[[], bool]]:
        came = self._came.setdefault((step, group, number), {})
        came[worker] = self._now[worker]
        size = self._job.dp * (self._job.pp if group == "clip" else 1)
        yield lambda: len(came) == size
        end = max(came.values()) + 0.5 * MS
        self._found.append(Row(worker, step, op, ABSENT, ABSENT, came[worker], end))
        self._now[worker] = end + RECORDED_NS

    def _note(self, worker: Worker, step: int, call: Call, start: float, length: float) -> None:
        self._found.append(Row(worker, step, call.op, call.mb, call.mc, start, start + length))
        self._now[worker] = start + length
