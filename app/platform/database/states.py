"""States of sessions, task runs and plans, and named sets of these states.

The states of incidents and deliveries are in `app.incidents.models.tables`. Sets of states are
tuples, for use with SQL's IN.
"""

from __future__ import annotations

from enum import StrEnum, nonmember
from typing import Literal

# Event that sealed a session: a request, the last chunk of the last producer, or no chunk for too
# long.
SealedBy = Literal["request", "final", "silence"]


class SessionState(StrEnum):
    """State of a session."""

    OPEN = "open"  # its chunks arrive
    QUEUED = "queued"
    ANALYZING = "analyzing"
    ANALYZED = "analyzed"
    NO_VERDICT = "no_verdict"  # analyzed, but the replay is too far from the recording
    DISCARDED = "discarded"  # not analyzable
    FAILED = "failed"  # its analysis is given up

    # States that change without a request.
    UNDERWAY = nonmember((OPEN, QUEUED, ANALYZING))
    # States after an analysis that stored a report.
    REPORTED = nonmember((ANALYZED, NO_VERDICT))
    # Final states without a report.
    UNREPORTED = nonmember((DISCARDED, FAILED))

    @property
    def underway(self) -> bool:
        """Return whether the state will change without a request."""
        return self in self.UNDERWAY


class InboxKind(StrEnum):
    """Kind of a body in the inbox."""

    CHUNK = "chunk"  # of a session
    PULSE = "pulse"  # of an attempt of a job


class TaskState(StrEnum):
    """State of a task run."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"  # given up

    # At most one run of a kind and a subject is in these states.
    OPEN = nonmember((QUEUED, RUNNING))
    OVER = nonmember((DONE, DEAD))


class UploadState(StrEnum):
    """State of an uploaded archive of a hang's diagnostics."""

    QUEUED = "queued"
    READING = "reading"
    READ = "read"
    REFUSED = "refused"  # it is no archive of a hang
    FAILED = "failed"  # its reading is given up


class PlanState(StrEnum):
    """State of a plan."""

    QUEUED = "queued"
    PLANNING = "planning"
    PLANNED = "planned"
    INFEASIBLE = "infeasible"  # no template fits
    CANCELED = "canceled"
    FAILED = "failed"

    UNDERWAY = nonmember((QUEUED, PLANNING))
    # States in which the same request plans again.
    REPEATABLE = nonmember((CANCELED, FAILED))

    @property
    def underway(self) -> bool:
        """Return whether the state will change without a request."""
        return self in self.UNDERWAY

    @property
    def repeatable(self) -> bool:
        """Return whether the same request plans again."""
        return self in self.REPEATABLE


class TensorPlanState(StrEnum):
    """State of a version of a tensor-parallel group's plan."""

    ADVISED = "advised"  # not to be applied: the job or the switch says so
    OFFERED = "offered"  # not every rank has acknowledged it
    IN_FORCE = "in_force"
    REFUSED = "refused"  # a rank could not apply it
    WITHDRAWN = "withdrawn"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"

    # States of a valid version, which a later version or the version's last step ends.
    ACTIVE = nonmember((ADVISED, OFFERED, IN_FORCE))

    @property
    def active(self) -> bool:
        """Return whether the version is valid: no later version, and its last step not reached."""
        return self in self.ACTIVE


class TensorMode(StrEnum):
    """The server's switch for a job's tensor-parallel plans."""

    ADVISE = "advise"  # nothing in the job changes
    APPLY = "apply"  # where the job's own code allows it too


class FixSource(StrEnum):
    """Source of the information that a fix was applied."""

    PERSON = "person"  # a person said so
    METADATA = "metadata"  # a later session's metadata show it


class NoteKind(StrEnum):
    """Kind of a note on a job's time axis."""

    NOTE = "note"
    DEPLOYMENT = "deployment"  # other code, image or libraries
    CONFIG_CHANGE = "config_change"
    CHECKPOINT = "checkpoint"
    MAINTENANCE = "maintenance"  # of machines or network
