"""Receives that a host posts just before their computations, after some time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest

from app.analysis.replay.adaptations.kind import Name
from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import Trace
from app.analysis.trace.recordings.profiler.unlabelled_pipeline import (
    INTERLEAVED,
    Computation,
    Schedule,
)

MS = 1_000_000
FORWARD, WIRE = 10 * MS, MS // 3
STEPS, DP, NOISE = 6, 2, 0.02
SLOW = (1, 1)


@dataclass
class OnDemand:
    """A pipeline with virtual stages, whose steps do not overlap.

    Parameters
    ----------
    posting_ns : int
        Time between the end of a computation and the posting of the next computation's receive.
    factor : float
        Factor on the computing time of the worker `SLOW`.
    irregular : float
        Standard deviation of the logarithm of the posting times.
    """

    schedule: Schedule
    posting_ns: int
    factor: float = 1.0
    irregular: float = 0.0
    rows: list[dict[str, int | str]] = field(default_factory=list)
    step_ns: int = 0

    def trace(self) -> Trace:
        """Simulate all steps; `step_ns` becomes the duration of a step."""
        noise = np.random.default_rng(3)
        free = 0
        for step in range(STEPS):
            ends = [self._step(dp, step, free, noise) for dp in range(DP)]
            reduced = [max(of_stage) + WIRE for of_stage in zip(*ends, strict=True)]
            free = max(reduced) + MS
            for dp, of_dp in enumerate(ends):
                for stage, (end, done) in enumerate(zip(of_dp, reduced, strict=True)):
                    self._add("grads-reduce-scatter", (dp, stage, step), end, done)
                    self._add("optimizer-clip-main-grad", (dp, stage, step), done, free)
        self.step_ns = free // STEPS
        pp, vpp = self.schedule.stages, self.schedule.chunks
        sizes = {"dp": DP, "pp": pp, "tp": 1, "cp": 1, "vpp": vpp, "world": DP * pp}
        lines = [{"schema": "paceline.trace/1", "meta": sizes}, *self.rows]
        return decode("\n".join(map(json.dumps, lines)).encode(), None, limits=Limits()).trace

    def _step(self, dp: int, step: int, begin: int, noise: np.random.Generator) -> list[int]:
        stages = range(self.schedule.stages)
        left = [list(self.schedule.order(stage)) for stage in stages]
        free = [begin for _ in stages]
        sent: dict[tuple[int, Computation], tuple[int, Computation, int]] = {}
        while any(left):
            for stage in stages:
                while left[stage]:
                    one = left[stage][0]
                    if self.schedule.receives(one, stage):
                        if (stage, one) not in sent:
                            break
                        source, output, ready = sent[stage, one]
                        posted = free[stage] + self._posting(dp, step, stage, one)
                        free[stage] = max(posted, ready) + WIRE
                        way = "backward" if one.backward else "forward"
                        mine, its = (dp, stage, step), (dp, source, step)
                        self._add(f"{way}-recv", mine, posted, free[stage], one)
                        self._add(f"{way}-send", its, ready, free[stage], output)
                    left[stage].pop(0)
                    self._compute((dp, stage, step), one, free, noise)
                    if self.schedule.sends(one, stage):
                        at = one.chunk * len(stages) + stage + (-1 if one.backward else 1)
                        next_one = Computation(one.backward, at // len(stages), one.mb)
                        sent[at % len(stages), next_one] = (stage, one, free[stage])
        return free

    def _posting(self, dp: int, step: int, stage: int, one: Computation) -> int:
        """Return a posting time, the same with and without a slow worker."""
        random = np.random.default_rng((dp, step, stage, one.chunk, one.mb, one.backward))
        return int(self.posting_ns * np.exp(self.irregular * random.normal()))

    def _compute(
        self,
        place: tuple[int, int, int],
        one: Computation,
        free: list[int],
        noise: np.random.Generator,
    ) -> None:
        took = FORWARD * (2 if one.backward else 1) / self.schedule.chunks
        took *= (self.factor if place[:2] == SLOW else 1.0) * (1 + NOISE * noise.normal())
        stage = place[1]
        way = "backward" if one.backward else "forward"
        self._add(f"{way}-compute", place, free[stage], free[stage] + int(took), one)
        free[stage] += int(took)

    def _add(
        self,
        op: str,
        place: tuple[int, int, int],
        start: int,
        end: int,
        one: Computation | None = None,
    ) -> None:
        dp, stage, step = place
        row: dict[str, int | str] = {"rank": stage * DP + dp, "dp": dp, "pp": stage, "step": step}
        row |= {} if one is None else {"mb": one.mb, "mc": one.chunk}
        self.rows.append(row | {"op": op, "start_ns": start + MS, "dur_ns": end - start})


@pytest.mark.parametrize("chunks", [2, 4])
def test_the_time_that_posting_takes_is_replayed(chunks: int) -> None:
    schedule = Schedule(INTERLEAVED, 4, chunks, 8)
    slow, healthy = OnDemand(schedule, MS // 3, 1.8), OnDemand(schedule, MS // 3)
    trace = slow.trace()
    healthy.trace()

    report = analyze(trace).report
    without = analyze(trace, {Name.REGULAR_DELAYS}).report

    made = {item.adaptation for item in report.fidelity.adaptations}
    assert {"posted_in_turn", "regular_delays"} <= made
    assert report.fidelity.discrepancy < 0.005
    assert without.fidelity.discrepancy > 0.015
    assert report.causes[0].cause == "slow_worker"
    assert report.causes[0].where.workers == (SLOW,)
    assert report.headline.slowdown == pytest.approx(slow.step_ns / healthy.step_ns, rel=0.01)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("posting_ns", [MS // 10, MS // 6])
def test_posting_that_takes_now_less_and_now_more_time_is_replayed(
    stages: int, posting_ns: int
) -> None:
    schedule = Schedule(INTERLEAVED, stages, 4, 8)
    slow, healthy = (OnDemand(schedule, posting_ns, factor, irregular=1.0) for factor in (1.8, 1.0))
    trace = slow.trace()
    healthy.trace()
    report = analyze(trace).report

    assert report.fidelity.discrepancy < 0.01
    assert report.causes[0].where.workers == (SLOW,)
    assert report.headline.slowdown == pytest.approx(slow.step_ns / healthy.step_ns, rel=0.03)


@pytest.mark.parametrize(("posting_ns", "irregular"), [(MS // 3, 0.0), (MS // 6, 1.0)])
def test_a_healthy_job_that_posts_late_is_called_healthy(posting_ns: int, irregular: float) -> None:
    job = OnDemand(Schedule(INTERLEAVED, 4, 4, 8), posting_ns, irregular=irregular)
    report = analyze(job.trace()).report

    assert report.fidelity.verdict
    assert report.headline.slowdown < 1.03
    assert not report.causes
