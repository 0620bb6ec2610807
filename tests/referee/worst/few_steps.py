"""Sessions cut to a few steps: `make judged ARGS="--steps 1"`.

The steps are consecutive, anywhere in the session, and the truth is computed for them alone. Causes
that change from step to step are left out, because few steps do not show them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.random_sessions import CAUSES as OWN_CAUSES
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from benchmarks.score import draw_kind, slowdown_of
from tests.oracles.physics.draw import FAULTS, draw_worlds, run_job
from tests.oracles.physics.execute import execute
from tests.referee.judging import NONE, STRAGGLING, trace_of
from tests.referee.table import CAUSES as INDEPENDENT_CAUSES
from tests.referee.table import is_near
from tests.referee.worst.draw import Judged, Physics

# Largest headline of a healthy job.
_HEALTHY: Final = 1.03
# The first step number of the second physics.
_FIRST: Final = 100


def physics_of(steps: int) -> dict[str, Physics]:
    """Return both physics, with sessions cut to a number of steps."""
    return {
        "own": Physics("own", _shown(OWN_CAUSES), partial(_judge_own, steps=steps)),
        "independent": Physics(
            "independent", _shown(INDEPENDENT_CAUSES), partial(_judge_independent, steps=steps)
        ),
    }


def _shown(causes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(cause for cause in causes if not KINDS[cause].over_steps)


def _judge_own(seed: int, cause: str, steps: int) -> Judged:
    session = draw_kind(seed, None if cause == NONE else cause).session
    truth, trace = session.truth, session.trace
    numbers = np.unique(trace.step)
    first = _first(seed, len(truth.step_times_s), steps)
    mine = slice(first, first + steps)
    # Warm-up and evaluation steps have no times.
    known = np.array(getattr(truth, "steps", numbers))
    taken, healthy = (
        np.array(times)[mine].sum() for times in (truth.step_times_s, truth.healthy_step_times_s)
    )
    # The reference of a heavy stage has the same total work.
    held = slowdown_of(session) / truth.slowdown if truth.stage is not None else 1.0
    slowdown = float(taken / healthy) * held
    return _judged(seed, cause, slowdown, _cut(trace, known[mine]), truth.workers)


def _judge_independent(seed: int, cause: str, steps: int) -> Judged:
    faults = [name for name, fault in FAULTS.items() if fault.cause == cause]
    drawn = draw_worlds(seed, faults[seed % len(faults)] if faults else None)
    job = run_job(drawn)
    without = job.execution if drawn.fault is None else execute(drawn.without)
    first = _first(seed, drawn.shape.steps, steps)
    mine = slice(first, first + steps)
    slowdown = float(job.execution.step_s[mine].sum() / without.step_s[mine].sum())
    if cause != NONE and slowdown < STRAGGLING:
        return Judged(seed, cause, NONE, slow=False, near=False, worker_right=None)
    numbers = np.arange(_FIRST + first, _FIRST + first + steps)
    return _judged(
        seed, cause, slowdown, _cut(trace_of(job.recording()), numbers), tuple(job.workers)
    )


def _first(seed: int, count: int, steps: int) -> int:
    return int(np.random.default_rng([seed, 0xC07]).integers(max(count - steps, 0) + 1))


def _cut(trace: Trace, steps: NDArray[np.int64]) -> Trace:
    return trace.of_rows(np.flatnonzero(np.isin(trace.step, steps)))


def _judged(
    seed: int, cause: str, slowdown: float, trace: Trace, at_fault: tuple[tuple[int, int], ...]
) -> Judged:
    judged = Judged(seed, cause, NONE, slow=False, near=False, worker_right=None)
    if cause != NONE and slowdown < STRAGGLING:
        return judged
    try:
        report = analyze(trace).report
    except UnanalyzableError as refused:
        return replace(judged, lead=refused.stable_code, slow=True)
    shown = report.headline.slowdown
    near = shown <= _HEALTHY if cause == NONE else is_near(shown, slowdown)
    lead = report.causes[0].cause if report.causes else NONE
    return replace(
        judged, lead=lead, slow=True, near=near, worker_right=_worker_right(report, at_fault)
    )


def _worker_right(report: Report, at_fault: tuple[tuple[int, int], ...]) -> bool | None:
    first = next((cause for cause in report.causes if cause.cause != UNKNOWN), None)
    if first is None or not first.where.workers or not at_fault:
        return None
    return tuple(first.where.workers[0]) in {tuple(worker) for worker in at_fault}
