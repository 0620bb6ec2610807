"""Tables of actions on machines: policies, the kill switch, and the actions with their states."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum, nonmember
from typing import Any

from sqlalchemy import Double, Index, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.hosts.models import HANG_FACTS
from app.incidents.models.facts import HangFacts
from app.platform.database.columns import Base, OfProject, StateColumn, in_project, one_of


class ActionMode(StrEnum):
    """The mode of a policy."""

    OFF = "off"
    DRY_RUN = "dry_run"  # only recorded
    ASK = "ask"  # each needs approval
    AUTOMATIC = "automatic"  # within every limit

    # Orders are executed.
    ACTING = nonmember((ASK, AUTOMATIC))


class ActionState(StrEnum):
    """The state of an action."""

    DRY_RUN = "dry_run"  # only recorded
    ASKED = "asked"  # waits for approval
    HELD = "held"  # by a limit, which a person may override unless it is hard
    WAITING = "waiting"  # is being done
    DONE = "done"
    FAILED = "failed"  # given up
    DECLINED = "declined"  # a person said no
    WITHDRAWN = "withdrawn"  # its incident ended before anything was done
    RELEASING = "releasing"  # is being undone
    RELEASED = "released"

    # Sets are tuples, as SQL's IN takes.
    # Nothing was done: decided again as long as the incident lasts.
    UNDECIDED = nonmember((DRY_RUN, ASKED, HELD))
    # A worker has to act.
    UNDERWAY = nonmember((WAITING, RELEASING))
    # The machine is out, or about to be.
    OUT = nonmember((WAITING, DONE, RELEASING))
    # At most one such action of each kind on a machine.
    OPEN = nonmember((DRY_RUN, ASKED, HELD, WAITING, DONE, RELEASING))
    # A person may approve it.
    ALLOWABLE = nonmember((ASKED, HELD, FAILED))
    DECLINABLE = nonmember((ASKED, HELD))


class ActionPolicy(OfProject, Base):
    """The policy of a project for a kind of action; without a row it is off."""

    __tablename__ = "action_policy"
    __table_args__ = (one_of("mode", ActionMode), in_project())

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(primary_key=True)
    mode: Mapped[ActionMode] = mapped_column(StateColumn(ActionMode))
    # the configuration without secrets, and the secrets, encrypted
    config: Mapped[dict[str, Any]]
    secrets: Mapped[bytes]
    # the secrets that are set, with the host of an address
    secret_hints: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    changed_by: Mapped[str]


class ActionSwitch(OfProject, Base):
    """The kill switch of a project; its row is the lock under which actions are decided."""

    __tablename__ = "action_switch"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # null while actions are executed
    stopped_at: Mapped[datetime | None]
    stopped_by: Mapped[str | None]
    reason: Mapped[str | None]


class MachineAction(OfProject, Base):
    """An action on a machine, or the report of a job that hangs, in any state.

    No foreign key to its incident: retention deletes incidents, but never forgets a machine that is
    out.
    """

    __tablename__ = "machine_action"
    __table_args__ = (
        one_of("state", ActionState),
        in_project(),
        # A machine is taken out once, by whatever number of incidents and servers.
        Index(
            "uq_machine_action_open",
            "project_id",
            "kind",
            "host",
            unique=True,
            postgresql_where=text(
                "state IN ('dry_run', 'asked', 'held', 'waiting', 'done', 'releasing')"
                " AND hang IS NULL"
            ),
        ),
        Index("uq_machine_action_incident", "incident_id", "kind", "host", unique=True),
        Index("ix_machine_action_project_id_created_at", "project_id", "created_at"),
        Index(
            "ix_machine_action_due",
            "next_attempt_at",
            postgresql_where=text("state IN ('waiting', 'releasing')"),
        ),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    kind: Mapped[str]
    incident_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    host: Mapped[str]
    # of the incident
    job: Mapped[str]
    # of a report about a hang, whose `host` is empty
    hang: Mapped[HangFacts | None] = mapped_column(HANG_FACTS)
    cause: Mapped[str]
    gpus: Mapped[list[str]] = mapped_column(JSONB)
    confidence: Mapped[float | None] = mapped_column(Double)
    sessions: Mapped[int]
    lost_each_hour: Mapped[float | None] = mapped_column(Double)
    state: Mapped[ActionState] = mapped_column(StateColumn(ActionState))
    # `app.actions.kinds.kind.Limit` values that held it at the last decision
    limits: Mapped[list[str]] = mapped_column(JSONB)
    # the action as a command
    command: Mapped[str]
    attempt: Mapped[int]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # when it was ordered, and by which person; null for an automatic action
    ordered_at: Mapped[datetime | None]
    ordered_by: Mapped[str | None]
    done_at: Mapped[datetime | None]
    # when its release was ordered, and by which person; null after a repair
    release_ordered_at: Mapped[datetime | None]
    released_by: Mapped[str | None]
    released_at: Mapped[datetime | None]
    # when it was declined, withdrawn, released or given up
    ended_at: Mapped[datetime | None]
    # of the last attempt
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    answer: Mapped[str | None]
