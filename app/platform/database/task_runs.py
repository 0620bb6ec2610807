"""Table of task runs (durable tasks), and the kinds of task runs."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

from sqlalchemy import CheckConstraint, Index, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.platform.database.columns import Base, Needs, OfProject, StateColumn, in_project, one_of
from app.platform.database.states import TaskState

# Kinds of task runs. The subject of a run is a session, a delivery of an alert, a plan, an archive
# of a hang, an action on a machine, or the inventory of a scheduler.
ACT_ON_MACHINE: Final = "act_on_machine"
ANALYZE_SESSION: Final = "analyze_session"
DELIVER_ALERT: Final = "deliver_alert"
PLAN_TEMPLATE: Final = "plan_template"
READ_HANG: Final = "read_hang"
READ_SCHEDULER: Final = "read_scheduler"
REQUEST_RECORDING: Final = "request_recording"
SEND_SUMMARY: Final = "send_summary"
TASK_KINDS = (
    ACT_ON_MACHINE,
    ANALYZE_SESSION,
    DELIVER_ALERT,
    PLAN_TEMPLATE,
    READ_HANG,
    READ_SCHEDULER,
    REQUEST_RECORDING,
    SEND_SUMMARY,
)


class TaskRun(OfProject, Base):
    """A durable task; a message of the broker holds only the id of its row."""

    __tablename__ = "task_run"
    __table_args__ = (
        one_of("state", TaskState),
        in_project(),
        # A running task run without a claim could neither finish nor expire.
        CheckConstraint(
            "(state = 'running') = (claim_token IS NOT NULL) "
            "AND (claim_token IS NULL) = (lease_until IS NULL)",
            name="claim",
        ),
        # at most one open task run for each kind and subject
        Index(
            "uq_task_run_open",
            "kind",
            "subject_id",
            unique=True,
            postgresql_where=text("state IN ('queued', 'running')"),
        ),
        Index(
            "ix_task_run_due",
            "state",
            "lease_until",
            postgresql_where=text("state IN ('queued', 'running')"),
        ),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    kind: Mapped[str]
    subject_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    state: Mapped[TaskState] = mapped_column(StateColumn(TaskState))
    attempt: Mapped[int]
    claim_token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    lease_until: Mapped[datetime | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    published_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    # The span that caused the task run, as a `traceparent` header; null without tracing.
    traceparent: Mapped[str | None]
    needs: Mapped[Needs]
