"""Jobs as their hosts run them: calls that block, steps that overlap, collectives inside.

The other jobs of the synthesiser follow the paper's dependency model. Here each rank is a host that
makes one call after the other: a computation, an exchange with its neighbors that returns when all
of it has been transferred, a collective. What is recorded is what hooks around those calls see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from app.analysis.trace import model as ops
from app.analysis.trace.model import ABSENT, KNOWN_OP_TYPES, SessionMeta, Sizes, Trace

Worker = tuple[int, int]
_MS: Final = 1e6
# Starts of recordings: a clock's reading.
_BEGIN_NS: Final = 1_760_000_000_000_000_000
_RECORDED_NS: Final = 30_000


@dataclass(frozen=True, slots=True)
class HostJob:
    """A job of 1F1B pipelines, or of a V of two chunks a stage, and how it runs and is recorded.

    Parameters
    ----------
    dp, pp, microbatches, steps : int
    forward_ns, backward_ns : float
        Of a stage's chunks together.
    wire_ns : float
        What a transfer takes.
    noise : float
        Relative scatter of computations.
    factors : mapping of (dp, pp) to float
        How many times as long workers compute.
    barrier : bool
        A collective over all ranks ends the step; without it steps of stages overlap.
    gathers : bool
        Parameters are gathered within each computation, and the computation waits.
    pause_ns, pauses : float, float
        Recorded garbage collections inside of forwards: how long, and in which share of them.
    late_ends : bool
        Ends of sends are taken at the end of the step.
    handover_ns : float
        What passes before a computation is launched, without being recorded.
    transfers : bool
        Whether transfers are recorded.
    v_shaped : bool
        Two chunks a stage; the last stage goes on with its second one.
    layers : tuple of int
    seed : int
    """

    dp: int = 2
    pp: int = 2
    microbatches: int = 6
    steps: int = 6
    forward_ns: float = 60 * _MS
    backward_ns: float = 120 * _MS
    wire_ns: float = 0.3 * _MS
    noise: float = 0.004
    factors: Mapping[Worker, float] = field(default_factory=dict)
    barrier: bool = True
    gathers: bool = False
    pause_ns: float = 0.0
    pauses: float = 0.0
    late_ends: bool = False
    handover_ns: float = 0.0
    transfers: bool = True
    v_shaped: bool = False
    layers: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class HostSession:
    """A recording, and how long its steps took on average, seconds, from end to end."""

    trace: Trace
    step_time_s: float


# (kind, stage it goes to or comes from, what of)
_Part = tuple[str, int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a host: a computation, an exchange, or a collective (with a group's name)."""

    op: str
    mb: int = ABSENT
    mc: int = ABSENT
    parts: tuple[_Part, ...] = ()
    group: str = ""


@dataclass(slots=True)
class _Row:
    worker: Worker
    step: int
    op: str
    mb: int
    mc: int
    start: float
    end: float


def run(job: HostJob) -> HostSession:
    """Run a job and record it."""
    rows = _Run(job).rows()
    if job.late_ends:
        _take_late(rows)
    ends = [max(r.end for r in rows if r.step == step) for step in range(job.steps)]
    trace = _trace(job, rows)
    # the first step has no step before whose end could be its begin
    return HostSession(trace, (ends[-1] - ends[0]) / (job.steps - 1) * 1e-9)


def _program(job: HostJob, stage: int) -> Iterator[_Call]:
    """Yield the calls of one step."""
    yield from _v_shaped(job, stage) if job.v_shaped else _one_forward_one_backward(job, stage)
    yield _Call(ops.GRADS_REDUCE_SCATTER, group=f"grads {stage}")
    if job.barrier:
        yield _Call(ops.OPTIMIZER_CLIP, group="clip")
    yield _Call(ops.OPTIMIZER)


def _one_forward_one_backward(  # noqa: C901 - four kinds of transfers
    job: HostJob, stage: int
) -> Iterator[_Call]:
    last, count = job.pp - 1, job.microbatches
    warm = min(last - stage, count)

    def take(mb: int) -> list[_Part]:
        return [(ops.FORWARD_RECV, stage - 1, (mb, 0))] if stage > 0 else []

    def give(mb: int) -> list[_Part]:
        return [(ops.FORWARD_SEND, stage + 1, (mb, 0))] if stage < last else []

    def take_back(mb: int) -> list[_Part]:
        return [(ops.BACKWARD_RECV, stage + 1, (mb, 0))] if stage < last else []

    def give_back(mb: int) -> list[_Part]:
        return [(ops.BACKWARD_SEND, stage - 1, (mb, 0))] if stage > 0 else []

    def exchange(*parts: list[_Part]) -> Iterator[_Call]:
        joint = tuple(part for some in parts for part in some)
        if joint:
            yield _Call("", parts=joint)

    for mb in range(warm):
        yield from exchange(take(mb))
        yield _Call(ops.FORWARD_COMPUTE, mb, 0)
        yield from exchange(give(mb))
    if warm < count:
        yield from exchange(take(warm))
    for i in range(count - warm):
        yield _Call(ops.FORWARD_COMPUTE, warm + i, 0)
        yield from exchange(give(warm + i), take_back(i))
        yield _Call(ops.BACKWARD_COMPUTE, i, 0)
        more = warm + i + 1 < count
        yield from exchange(give_back(i), take(warm + i + 1) if more else [])
    for mb in range(count - warm, count):
        yield from exchange(take_back(mb))
        yield _Call(ops.BACKWARD_COMPUTE, mb, 0)
        yield from exchange(give_back(mb))


def _v_shaped(job: HostJob, stage: int) -> Iterator[_Call]:
    """Yield all forwards down one side of the V and up the other, then all backwards."""
    last = job.pp - 1
    for forward, chunks in ((True, (0, 1)), (False, (1, 0))):
        compute = ops.FORWARD_COMPUTE if forward else ops.BACKWARD_COMPUTE
        receive = ops.FORWARD_RECV if forward else ops.BACKWARD_RECV
        send = ops.FORWARD_SEND if forward else ops.BACKWARD_SEND
        for chunk in chunks:
            # forwards of chunk 0 go to the last stage, and so do backwards of chunk 1
            down = (chunk == 0) == forward
            source, target = (stage - 1, stage + 1) if down else (stage + 1, stage - 1)
            for mb in range(job.microbatches):
                if 0 <= source <= last:
                    yield _Call("", parts=((receive, source, (mb, chunk)),))
                yield _Call(compute, mb, chunk)
                if 0 <= target <= last:
                    yield _Call("", parts=((send, target, (mb, chunk)),))


class _Run:
    """Lets all hosts make their calls, each as soon as it can."""

    def __init__(self, job: HostJob) -> None:
        self.job = job
        self.rng = np.random.default_rng(job.seed)
        self.now = {(dp, pp): 0.0 for dp in range(job.dp) for pp in range(job.pp)}
        # when a side of a transfer was ready, and when members of a collective came to it
        self.ready: dict[tuple[int, int, int, str, int, tuple[int, int]], float] = {}
        self.came: dict[tuple[int, str, int], dict[Worker, float]] = {}
        self.found: list[_Row] = []

    def rows(self) -> list[_Row]:
        calls = {
            worker: [
                (step, c) for step in range(self.job.steps) for c in _program(self.job, worker[1])
            ]
            for worker in self.now
        }
        flows = {worker: self._host(worker, calls[worker]) for worker in self.now}
        waiting = dict.fromkeys(flows, lambda: True)
        left = dict(flows)
        while left:
            moved = False
            for worker in list(left):
                while worker in left and waiting[worker]():
                    moved = True
                    condition = next(left[worker], None)
                    if condition is None:
                        del left[worker]
                    else:
                        waiting[worker] = condition
            assert moved or not left, "hosts wait for one another"  # noqa: S101 - a fault of ours
        return self.found

    def _host(self, worker: Worker, calls: list[tuple[int, _Call]]) -> Iterator[Callable[[], bool]]:
        """Make the calls of a host; yields what it waits for."""
        for number, (step, call) in enumerate(calls):
            if call.parts:
                yield from self._exchange(worker, step, call)
            elif call.group:
                yield from self._collective(worker, step, call.op, call.group, -1)
            elif call.op == ops.OPTIMIZER:
                self._note(worker, step, call, self.now[worker], 1 * _MS)
            else:
                yield from self._compute(worker, step, call, number)

    def _compute(
        self, worker: Worker, step: int, call: _Call, number: int
    ) -> Iterator[Callable[[], bool]]:
        job = self.job
        self.now[worker] += job.handover_ns
        forward = call.op == ops.FORWARD_COMPUTE
        length = (job.forward_ns if forward else job.backward_ns) / (2 if job.v_shaped else 1)
        length *= job.factors.get(worker, 1.0) * (1 + job.noise * self.rng.normal())
        start = self.now[worker]
        if forward and self.rng.random() < job.pauses:
            self._note(worker, step, _Call(ops.GC), start + 0.1 * length, job.pause_ns)
            self.now[worker] = start + job.pause_ns
        # as FSDP2 does: the first forwards gather as they begin, backwards for what comes next
        if job.gathers and (call.mb < 2 if forward else call.mb < job.microbatches - 1):  # noqa: PLR2004
            before = 0.01 if forward else 0.99
            self.now[worker] += before * length
            group = f"{call.op} {call.mb} {worker[1]}"
            yield from self._collective(worker, step, ops.PARAMS_ALL_GATHER, group, number)
            length *= 1 - before
        end = self.now[worker] + length
        self.found.append(_Row(worker, step, call.op, call.mb, call.mc, start, end))
        self.now[worker] = end + _RECORDED_NS

    def _exchange(self, worker: Worker, step: int, call: _Call) -> Iterator[Callable[[], bool]]:
        dp, stage = worker
        begin = self.now[worker]
        sides = []
        for kind, other, of in call.parts:
            direction = kind.rsplit("-", 1)[0]
            mine = (dp, step, stage, direction, other, of)
            theirs = (dp, step, other, direction, stage, of)
            self.ready[mine] = begin
            sides.append((kind, of, theirs))
        yield lambda: all(theirs in self.ready for _, _, theirs in sides)
        ends = []
        for kind, (mb, mc), theirs in sides:
            end = max(begin, self.ready[theirs]) + self.job.wire_ns
            ends.append(end)
            if self.job.transfers:
                self.found.append(_Row(worker, step, kind, mb, mc, begin, end))
            begin += _RECORDED_NS / 10
        self.now[worker] = max(ends) + _RECORDED_NS

    def _collective(
        self, worker: Worker, step: int, op: str, group: str, number: int
    ) -> Iterator[Callable[[], bool]]:
        came = self.came.setdefault((step, group, number), {})
        came[worker] = self.now[worker]
        size = self.job.dp * (self.job.pp if group == "clip" else 1)
        yield lambda: len(came) == size
        end = max(came.values()) + 0.5 * _MS
        self.found.append(_Row(worker, step, op, ABSENT, ABSENT, came[worker], end))
        self.now[worker] = end + _RECORDED_NS

    def _note(self, worker: Worker, step: int, call: _Call, start: float, length: float) -> None:
        self.found.append(_Row(worker, step, call.op, call.mb, call.mc, start, start + length))
        self.now[worker] = start + length


def _take_late(rows: list[_Row]) -> None:
    """End every send where its rank has computed all of its step."""
    done: dict[tuple[Worker, int], float] = {}
    for row in rows:
        if row.op == ops.BACKWARD_COMPUTE:
            key = (row.worker, row.step)
            done[key] = max(done.get(key, 0.0), row.end)
    for row in rows:
        if row.op in {ops.FORWARD_SEND, ops.BACKWARD_SEND}:
            row.end = max(row.end, done[row.worker, row.step] + 1000.0)


def _trace(job: HostJob, rows: list[_Row]) -> Trace:
    codes = {name: code for code, name in enumerate(KNOWN_OP_TYPES)}
    rows = sorted(rows, key=lambda r: (r.worker[1], r.worker[0], r.step, codes[r.op], r.start))
    order: list[int] = []
    for number, row in enumerate(rows):
        before = rows[number - 1]
        alike = number and (before.worker, before.step, before.op) == (row.worker, row.step, row.op)
        order.append(order[-1] + 1 if alike else 0)

    def column(dtype: Any, values: Iterator[float]) -> Any:  # noqa: ANN401 - NumPy's own types
        return np.array(list(values), dtype=dtype)

    sizes = Sizes(dp=job.dp, pp=job.pp, vpp=2 if job.v_shaped else 1)
    return Trace(
        meta=SessionMeta(sizes, extra={"layers": list(job.layers)} if job.layers else {}),
        op_names=KNOWN_OP_TYPES,
        rank=column(np.int32, (r.worker[1] * job.dp + r.worker[0] for r in rows)),
        dp=column(np.int32, (r.worker[0] for r in rows)),
        pp=column(np.int32, (r.worker[1] for r in rows)),
        step=column(np.int64, (r.step + 1 for r in rows)),
        op=column(np.int16, (codes[r.op] for r in rows)),
        mb=column(np.int32, (r.mb for r in rows)),
        mc=column(np.int32, (r.mc for r in rows)),
        order=np.array(order, dtype=np.int32),
        start_ns=column(np.int64, (_BEGIN_NS + round(r.start) for r in rows)),
        duration_ns=column(np.int64, (round(r.end - r.start) for r in rows)),
        step_relative=False,
    )
