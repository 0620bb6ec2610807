"""States of sessions, task runs and plans, and the sets of them that code asks for.

Incidents and deliveries have theirs in `app.alerts.states`. Sets are tuples, as SQL's IN takes.
"""

from __future__ import annotations

from enum import StrEnum, nonmember
from typing import Literal

# A request, the last chunk of the last producer, or no chunk for too long.
SealedBy = Literal["request", "final", "silence"]


class SessionState(StrEnum):
    """Where a session stands."""

    OPEN = "open"  # its chunks arrive
    QUEUED = "queued"
    ANALYZING = "analyzing"
    ANALYZED = "analyzed"
    NO_VERDICT = "no_verdict"  # analyzed, but the replay is too far from the recording
    DISCARDED = "discarded"  # not analyzable
    FAILED = "failed"  # its analysis is given up

    # Will become something else.
    UNDERWAY = nonmember((OPEN, QUEUED, ANALYZING))
    # The latest analysis left a report.
    REPORTED = nonmember((ANALYZED, NO_VERDICT))
    # Through, without a report.
    UNREPORTED = nonmember((DISCARDED, FAILED))

    @property
    def underway(self) -> bool:
        """Return whether it will become something else by itself."""
        return self in self.UNDERWAY


class TaskState(StrEnum):
    """Where a task run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"  # given up

    # At most one of a kind and a subject.
    OPEN = nonmember((QUEUED, RUNNING))
    OVER = nonmember((DONE, DEAD))


class PlanState(StrEnum):
    """Where a plan stands."""

    QUEUED = "queued"
    PLANNING = "planning"
    PLANNED = "planned"
    INFEASIBLE = "infeasible"  # no template fits
    CANCELED = "canceled"
    FAILED = "failed"

    UNDERWAY = nonmember((QUEUED, PLANNING))
    # Asked for again, it is planned again.
    REPEATABLE = nonmember((CANCELED, FAILED))

    @property
    def underway(self) -> bool:
        """Return whether it will become something else by itself."""
        return self in self.UNDERWAY

    @property
    def repeatable(self) -> bool:
        """Return whether it is planned again when it is asked for again."""
        return self in self.REPEATABLE
