"""The plan of a session's whole job in a sentence, on pages of sessions, jobs and incidents."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.dashboard.ui.format import listing, percent, seconds
from app.db.states import PlanState

if TYPE_CHECKING:
    from app.services.plans.of_job import WholeJob

_S_PER_MS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class WholeJobLine:
    """What is said of the whole job; `url` is its plan's, `session` has none to be asked for."""

    title: str
    note: str
    url: str
    session: uuid.UUID
    asks: bool


def whole_job_line(found: WholeJob | None) -> WholeJobLine | None:
    """Return what is said of the plan of a whole job; None where it cannot be planned."""
    if found is None or not found.answerable:
        return None
    return WholeJobLine(
        title=_title(found),
        note="Data, pipeline and tensor parallel sizes for these nodes, with layers and slow nodes "
        f"as session {found.number} measured them",
        url="" if found.plan is None else f"/plans/{found.plan}",
        session=found.session,
        asks=found.state is None or found.state.repeatable,
    )


def lacking_text(found: WholeJob | None) -> str:
    """Return why a whole job cannot be planned; empty where it can."""
    if found is None or found.answerable:
        return ""
    if found.unfit:
        return found.unfit
    return f"The whole job cannot be planned: the metadata lack {listing(list(found.lacking))}."


def _title(found: WholeJob) -> str:
    if found.state is None or found.state.repeatable:
        return "Other sizes for the whole job"
    if found.state is PlanState.INFEASIBLE:
        return "No sizes fit the whole job"
    if found.iteration_ms is None or not found.running_ms:
        return "The whole job is being planned"
    now_s, best_s = found.running_ms * _S_PER_MS, found.iteration_ms * _S_PER_MS
    if best_s >= now_s:
        return f"The whole job runs as well as it can: {seconds(now_s)} an iteration"
    return (
        f"Planned as a whole, the job would take {seconds(best_s)} an iteration instead of "
        f"{seconds(now_s)}, {percent(1 - best_s / now_s)} less"
    )
