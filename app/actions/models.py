"""Tables of hosts: what sessions say of each, what was repaired, and what actions did to it."""

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

# ---- Where actions stand, and what a project's policy lets them do -----------------------------
# Sets are tuples, as SQL's IN takes.


class ActionMode(StrEnum):
    """What a policy lets happen by itself."""

    OFF = "off"
    DRY_RUN = "dry_run"  # it is written down what would have been done
    ASK = "ask"  # a person says yes to each
    AUTOMATIC = "automatic"  # within every limit

    # What was ordered is done, and a person may order it.
    ACTING = nonmember((ASK, AUTOMATIC))


class ActionState(StrEnum):
    """Where an action stands."""

    DRY_RUN = "dry_run"  # what would have been done
    ASKED = "asked"  # waits for a person
    HELD = "held"  # a limit forbids it; a person may allow it where the limit lets them
    WAITING = "waiting"  # is being done
    DONE = "done"
    FAILED = "failed"  # given up
    DECLINED = "declined"  # a person said no
    WITHDRAWN = "withdrawn"  # its reason ended before anything was done
    RELEASING = "releasing"  # is being undone
    RELEASED = "released"

    # Nothing was done yet: looked at again as long as its incident lasts.
    UNDECIDED = nonmember((DRY_RUN, ASKED, HELD))
    # A worker has something to do.
    UNDERWAY = nonmember((WAITING, RELEASING))
    # The machine is out, or about to be.
    OUT = nonmember((WAITING, DONE, RELEASING))
    # Of a machine at most one of each kind.
    OPEN = nonmember((DRY_RUN, ASKED, HELD, WAITING, DONE, RELEASING))
    # A person may say yes.
    ALLOWABLE = nonmember((ASKED, HELD, FAILED))
    DECLINABLE = nonmember((ASKED, HELD))


class ActionPolicy(OfProject, Base):
    """What a project lets a kind of action do; without a row it is off."""

    __tablename__ = "action_policy"
    __table_args__ = (one_of("mode", ActionMode), in_project())

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(primary_key=True)
    mode: Mapped[ActionMode] = mapped_column(StateColumn(ActionMode))
    # what may be shown of its configuration, and all that may not, encrypted
    config: Mapped[dict[str, Any]]
    secrets: Mapped[bytes]
    # which secrets are set, with the host of an address
    secret_hints: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    changed_by: Mapped[str]


class ActionSwitch(OfProject, Base):
    """The kill switch of a project; its row is the lock under which actions are decided."""

    __tablename__ = "action_switch"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # null as long as actions go on
    stopped_at: Mapped[datetime | None]
    stopped_by: Mapped[str | None]
    reason: Mapped[str | None]


class MachineAction(OfProject, Base):
    """Something that is done to a machine, or would be, or is said about a job that hangs.

    Without a reference to its incident, which retention deletes: no machine that is out is
    forgotten.
    """

    __tablename__ = "machine_action"
    __table_args__ = (
        one_of("state", ActionState),
        in_project(),
        # A machine is taken out once, however many incidents blame it and servers look.
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
    # of the incident: what a receiver is told
    job: Mapped[str]
    # where it tells of a job that hangs; `host` is empty then
    hang: Mapped[HangFacts | None] = mapped_column(HANG_FACTS)
    cause: Mapped[str]
    gpus: Mapped[list[str]] = mapped_column(JSONB)
    confidence: Mapped[float | None] = mapped_column(Double)
    sessions: Mapped[int]
    lost_each_hour: Mapped[float | None] = mapped_column(Double)
    state: Mapped[ActionState] = mapped_column(StateColumn(ActionState))
    # app.actions.kinds.kind.Limit: what kept it from being done when it was last looked at
    limits: Mapped[list[str]] = mapped_column(JSONB)
    # what is done, as a command
    command: Mapped[str]
    attempt: Mapped[int]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # when it was to be done, by which person; null where every limit let it pass
    ordered_at: Mapped[datetime | None]
    ordered_by: Mapped[str | None]
    done_at: Mapped[datetime | None]
    # when it was to be undone, by which person; null where a repair helped
    release_ordered_at: Mapped[datetime | None]
    released_by: Mapped[str | None]
    released_at: Mapped[datetime | None]
    # when it was declined, withdrawn, released or given up
    ended_at: Mapped[datetime | None]
    # of the last attempt
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    answer: Mapped[str | None]
