"""What is sent and answered about what is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.inputs.retention import RetentionRules

MAX_AT_ONCE: Final = 1000
_NEW: Final = RetentionRules()


class SelectionBody(BaseModel):
    """Which sessions are analyzed again: those in these states, of one job or of all."""

    model_config = ConfigDict(extra="forbid")

    states: Annotated[
        list[Literal["failed", "discarded", "no_verdict", "analyzed"]], Field(min_length=1)
    ] = ["failed"]
    job: str | None = Field(default=None, description="Null: of all jobs.")
    before: datetime | None = Field(
        default=None,
        description="Only those whose state is older: the time of an update. Null: now.",
    )
    limit: Annotated[int, Field(ge=1, le=MAX_AT_ONCE)] = 100


class JobChangeBody(BaseModel):
    """What changes of a job; what is not named stays."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, description="Another name.")
    archived: bool | None = Field(
        default=None, description="Whether the fleet leaves it out, until it sends again."
    )


class UseBody(BaseModel):
    """What there is of a kind."""

    model_config = ConfigDict(from_attributes=True)

    count: int
    bytes: int
    oldest: datetime | None


class KeepBody(BaseModel):
    """How much of a kind is kept, the oldest going first; null is no limit."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    days: int | None = None
    bytes: int | None = None


class KeepRowsBody(BaseModel):
    """The same of what comes every second: parts of a day count, an hour at least."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    days: float | None = None
    bytes: int | None = None


class RetentionBody(BaseModel):
    """What a project keeps; a kind that is not named is kept as in a new project."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    traces: KeepBody = KeepBody()
    heatmaps: KeepBody = KeepBody()
    reports: KeepBody = KeepBody()
    hangs: KeepBody = KeepBody(days=_NEW.hangs.days)
    pulse_rows: KeepRowsBody = KeepRowsBody(days=_NEW.pulse_rows.days)
    pulse_spans: KeepBody = KeepBody(days=_NEW.pulse_spans.days)
    probes: KeepBody = KeepBody(days=_NEW.probes.days)
    task_runs: KeepBody = KeepBody(days=_NEW.task_runs.days)
    deliveries: KeepBody = KeepBody(days=_NEW.deliveries.days)
    audit: KeepBody = KeepBody(days=_NEW.audit.days)


class LossesBody(BaseModel):
    """How many of each kind rules would take away now; a kind that loses none is not in it."""

    losses: dict[str, int]


class RetentionStateBody(BaseModel):
    """What a project keeps, and what there is of each kind."""

    rules: RetentionBody
    uses: dict[str, UseBody]
