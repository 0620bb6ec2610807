"""The slowdown S as the paper defines it, of a job that is executed instead of replayed.

An analysis of the job's trace finds about the same; it differs from the true slowdown because its
ideal durations contain the straggler, and late launches do not count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from app.analysis.synthesis.costs import COMPUTATION, healthy_work
from app.analysis.synthesis.execution import StepWork, execute
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.synthesize import inject, step_numbers
from app.analysis.trace.model import GC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.analysis.synthesis.injections.base import Injection
    from app.analysis.synthesis.job import JobModel


def published_slowdown(job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
    """Return T over T_ideal (paper, section 3.3), both without launch delays and contention."""
    work = healthy_work(job, build_program(job), seed)
    work.numbers = step_numbers(job, seed)
    inject(work, job, injections, seed)
    recorded = execute(replace(work, delay_ns=np.zeros_like(work.delay_ns)))
    # All ideal steps and DP ranks are the same: one is enough.
    ideal = execute(_ideal(work))
    return float(recorded.step_times_ns().mean() / ideal.step_times_ns().mean())


def _ideal(work: StepWork) -> StepWork:
    """Return one step of one DP rank: computations take their type's mean, transfers its median."""
    program = work.program
    duration = np.empty((len(program), 1, 1))
    computes = program.of_types(*COMPUTATION, GC)
    for code in np.unique(program.op):
        alike = program.op == code
        average = np.mean if computes[alike].all() else np.median
        duration[alike] = average(work.duration_ns[alike])
    nothing = np.zeros_like(duration)
    return replace(work, duration_ns=duration, delay_ns=nothing)
