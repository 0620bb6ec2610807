"""Jobs of consecutive steps, and the diagnosis of the time between steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.delays import Standstill
from app.analysis.synthesis.job import CostModel, JobModel
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import PARAMS_ALL_GATHER, Sizes

if TYPE_CHECKING:
    from app.analysis.report.document import Report
    from app.analysis.synthesis.injections.base import Injection

S: Final = 1e9
GATHERING: Final = JobModel(
    sizes=Sizes(dp=8, pp=1),
    microbatches=4,
    steps=40,
    consecutive=True,
    costs=CostModel(step_gap_ns=20e6),
)
FLAT: Final = replace(GATHERING, op_types=GATHERING.op_types - {PARAMS_ALL_GATHER})
DEEP: Final = replace(FLAT, sizes=Sizes(dp=4, pp=3))
# Stalls before two of forty steps; the first recorded step has the number 10.
TWICE: Final = Standstill(17, 5 * S, 18)


def stalled(*injections: Injection, job: JobModel = FLAT, seed: int = 3) -> SyntheticSession:
    return synthesize(job, injections, seed=seed)


def report_of(*injections: Injection, job: JobModel = FLAT, seed: int = 3) -> Report:
    return analyze(stalled(*injections, job=job, seed=seed).trace).report


def true_share(session: SyntheticSession) -> float:
    """Return the lost share of the time, without the unrecorded time before the first step."""
    turns, healthy = session.truth.turns_s[1:], session.truth.healthy_turns_s[1:]
    return 1 - sum(healthy) / sum(turns)


def said_share(report: Report) -> float:
    return sum(cause.cost_s or 0.0 for cause in report.causes) / report.diagnosis.turn_s
