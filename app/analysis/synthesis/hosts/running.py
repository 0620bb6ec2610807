"""Hosts that make their calls, each as soon as it can; what is recorded is what hooks see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.synthesis.hosts.calls import Call, Part, When, calls_of_step
from app.analysis.synthesis.hosts.job import V_CHUNKS, HostJob, Worker
from app.analysis.synthesis.randomness import stream
from app.analysis.trace import model as ops
from app.analysis.trace.model import ABSENT

_MS: Final = 1e6
RECORDED_NS: Final = 30_000
# FSDP2 gathers parameters within the first forwards of a step.
_GATHERING_FORWARDS: Final = 2
_TRANSFERS_DRAWN: Final = 4096


@dataclass(slots=True)
class Row:
    """One recorded operation; times in ns since the first step's start."""

    worker: Worker
    step: int
    op: str
    mb: int
    mc: int
    start: float
    end: float


# (DP rank, step, stage, whether forward, the other stage, what of)
_Side = tuple[int, int, int, bool, int, tuple[int, int]]


class Running:
    """Lets all hosts make their calls, each as soon as it can.

    What is drawn for an operation does not depend on when it runs, so that two runs of a job, with
    and without a fault, can be compared.
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
        # when a side of a transfer was ready, and when members of a collective came to it
        self._ready: dict[_Side, float] = {}
        self._came: dict[tuple[int, str, int], dict[Worker, float]] = {}
        self._found: list[Row] = []

    def rows(self) -> list[Row]:
        """Return what is recorded of all steps."""
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
        """Make the calls of a host; yields what it waits for."""
        number = 0
        for step in range(self._job.steps):
            for call in calls_of_step(self._job, worker[1]):
                number += 1
                if call.parts:
                    yield from self._transfer(worker, step, call)
                elif call.group:
                    yield from self._collective(worker, step, call.op, call.group, -1)
                elif call.op == ops.OPTIMIZER:
                    self._note(worker, step, call, self._now[worker], 1 * _MS)
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
        # as FSDP2 does: the first forwards gather as they begin, backwards for what comes next
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
        """Return this side of a transfer and the other one."""
        dp, stage = worker
        forward = part.op in {ops.FORWARD_SEND, ops.FORWARD_RECV}
        mine = (dp, step, stage, forward, part.other, part.of)
        return mine, (dp, step, part.other, forward, stage, part.of)

    def _wire_ns(self, mine: _Side) -> float:
        """Return what a transfer takes; both of its sides ask."""
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
        end = max(came.values()) + 0.5 * _MS
        self._found.append(Row(worker, step, op, ABSENT, ABSENT, came[worker], end))
        self._now[worker] = end + RECORDED_NS

    def _note(self, worker: Worker, step: int, call: Call, start: float, length: float) -> None:
        self._found.append(Row(worker, step, call.op, call.mb, call.mc, start, start + length))
        self._now[worker] = start + length
