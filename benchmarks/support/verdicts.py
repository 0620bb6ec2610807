"""Verdicts of sessions that were never analyzed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.document import JobSizes
from app.analysis.report.session_verdict import (
    KINDS,
    QUANTILES,
    PaperMeasures,
    SessionVerdict,
    Slowdown,
    VerdictCause,
    VerdictWorker,
)

if TYPE_CHECKING:
    from app.incidents.models.facts import Facts

SIZES = JobSizes(dp=2, pp=2, tp=1, cp=1, vpp=1, world=4)


def made_verdict(slowdown: float | None = 1.0, **changes: Any) -> SessionVerdict:  # noqa: ANN401 - fields
    """Return a verdict of this slowdown, by S and without its causes; None: without numbers."""
    made = SessionVerdict(
        sentence="It has no verdict" if slowdown is None else f"{slowdown:.2f}× slower than ideal",
        level="none" if slowdown is None else "slow" if slowdown >= STRAGGLING else "ok",
        sizes=SIZES,
        discrepancy=0.01,
        headline=None,
        published=None,
        step_time_s=None,
        measured_s=None,
        causes=(),
        lost_by_cause={},
        worst=(VerdictWorker(0, 0, None, slowdown or 1.0),),
        worst_rank=0,
        worst_step=None,
        top_optype="forward-compute",
        fix=None,
        measures=PaperMeasures(None, None, None, None, {}, ()),
    )
    if slowdown is not None:
        made = replace(
            made,
            headline=Slowdown(slowdown, None, 1.0, HeadlineKind.CAUSES),
            published=Slowdown(slowdown, None, 1.0, HeadlineKind.PUBLISHED),
            step_time_s=10.0,
            measured_s=60.0,
            measures=PaperMeasures(
                0.1, 0.2, 0.3, None, dict.fromkeys(KINDS, 0.01), (1.0,) * QUANTILES
            ),
        )
    return replace(made, **changes)


def verdict_with(facts: Facts) -> SessionVerdict:
    """Return a verdict that these facts are of; without a headline of their own that is S."""
    published = None
    if facts.slowdown is not None:
        lost = facts.gpu_hours_lost or 0.0
        published = Slowdown(facts.slowdown, facts.slowdown_ci95, lost, HeadlineKind.PUBLISHED)
    return made_verdict(
        facts.slowdown,
        headline=facts.headline or published,
        published=published,
        discrepancy=facts.discrepancy or 0.0,
        step_time_s=facts.step_time_s,
        causes=tuple(
            VerdictCause(
                one.cause, one.where, one.confidence, one.contribution, one.evidence, one.gpus
            )
            for one in facts.causes
        ),
        worst=facts.worst or made_verdict().worst,
        worst_step=facts.worst_step,
        fix=facts.fix,
    )
