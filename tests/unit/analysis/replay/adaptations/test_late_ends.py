"""Sends whose recorded end is the point at which the job waits for all sends together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from app.analysis.replay.adaptations.kind import Name
from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import Trace

MS = 1_000_000
FORWARD, BACKWARD, WIRE = 10 * MS, 20 * MS, MS // 2
MICROBATCHES, STEPS = 4, 6


@dataclass
class GPipe:
    """Two stages that run all forward passes first, like `ScheduleGPipe` of PyTorch.

    Sends are asynchronous, and the job waits for them after all sends of their direction; no
    collective of all stages ends a step. With two data-parallel pipelines, stage 0 of the second
    may be slow.
    """

    factor: float = 1.0
    rows: list[dict[str, int | str]] = field(default_factory=list)

    def trace(self) -> Trace:
        free = [0, 0]
        for step in range(STEPS):
            ends = [self._step(dp, step, free, self.factor if dp else 1.0) for dp in range(2)]
            free = [max(of_stage) + WIRE for of_stage in zip(*ends, strict=True)]
            for dp, of_dp in enumerate(ends):
                for stage, (start, end) in enumerate(zip(of_dp, free, strict=True)):
                    self._add("grads-reduce-scatter", (dp, stage, step), start, end)
        sizes = {"dp": 2, "pp": 2, "tp": 1, "cp": 1, "vpp": 1, "world": 4}
        lines = [{"schema": "paceline.trace/1", "meta": sizes}, *self.rows]
        body = "\n".join(map(json.dumps, lines)).encode()
        return decode(body, None, limits=Limits()).trace

    def _add(self, op: str, place: tuple[int, int, int], start: int, end: int, **tags: int) -> None:
        dp, stage, step = place
        where: dict[str, int | str] = {
            "rank": 2 * stage + dp,
            "dp": dp,
            "pp": stage,
            "step": step,
            **tags,
        }
        where |= {**tags, "op": op, "start_ns": start + MS, "dur_ns": end - start}
        self.rows.append(where)

    def _step(self, dp: int, step: int, free: list[int], own: float) -> list[int]:
        first, last = free

        def add(op: str, stage: int, mb: int, start: int, end: int) -> None:
            self._add(op, (dp, stage, step), start, end, mb=mb)

        computed, received = [], []
        for mb in range(MICROBATCHES):
            first += int(FORWARD * own)
            computed.append(first)
            add("forward-compute", 0, mb, first - int(FORWARD * own), first)
        for mb, sent in enumerate(computed):
            there = max(sent, last) + WIRE
            add("forward-recv", 1, mb, last, there)
            add("forward-compute", 1, mb, there, there + FORWARD)
            received.append(there)
            last = there + FORWARD
        waited = max(first, *received)
        for mb, sent in enumerate(computed):
            add("forward-send", 0, mb, sent, waited)
        first, gradients = waited, []
        for mb in range(MICROBATCHES):
            add("backward-compute", 1, mb, last, last + BACKWARD)
            last += BACKWARD
            gradients.append(last)
        received = []
        for mb, sent in enumerate(gradients):
            there = max(sent, first) + WIRE
            add("backward-recv", 0, mb, first, there)
            first = there + int(BACKWARD * own)
            add("backward-compute", 0, mb, there, first)
            received.append(there)
        last = max(last, *received)
        for mb, sent in enumerate(gradients):
            add("backward-send", 1, mb, sent, last)
        return [first, last]


@pytest.mark.parametrize("factor", [1.0, 1.6])
def test_sends_that_are_waited_for_together_end_with_their_receives(factor: float) -> None:
    trace = GPipe(factor).trace()

    report = analyze(trace).report
    without = analyze(trace, {Name.LATE_ENDS}).report

    assert "late_ends" in {made.adaptation for made in report.fidelity.adaptations}
    assert report.fidelity.discrepancy < 0.01
    assert without.fidelity.discrepancy > report.fidelity.discrepancy + 0.01


def test_a_slow_worker_is_named_behind_sends_that_are_waited_for_together() -> None:
    report = analyze(GPipe(1.6).trace()).report

    assert report.fidelity.verdict
    assert report.causes[0].cause == "slow_worker"
    assert report.causes[0].where.workers == ((1, 0),)
