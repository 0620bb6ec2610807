"""Tables of actions on machines: policies, kill switch, schedulers' inventories, and actions."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum, nonmember
from typing import Any

from sqlalchemy import Double, Index, UniqueConstraint, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.hosts.models import HANG_FACTS
from app.incidents.models.facts import HangFacts
from app.platform.database.columns import Base, OfProject, StateColumn, in_project, one_of


class ActionMode(StrEnum):
    """The mode of a policy."""

    OFF = "off"
    DRY_RUN = "dry_run"  # actions are only recorded
    ASK = "ask"  # each action needs approval
    AUTOMATIC = "automatic"  # actions within every limit are executed without approval

    # Modes in which orders are executed.
    ACTING = nonmember((ASK, AUTOMATIC))


class ActionState(StrEnum):
    """The state of an action."""

    DRY_RUN = "dry_run"  # only recorded
    ASKED = "asked"  # waits for approval
    HELD = "held"  # held by a limit, which a user may override unless it is a hard limit
    WAITING = "waiting"  # a worker executes it
    DONE = "done"
    FAILED = "failed"  # no further attempt is made
    DECLINED = "declined"  # a user declined it
    WITHDRAWN = "withdrawn"  # its incident ended before anything was done
    RELEASING = "releasing"  # a worker undoes it
    RELEASED = "released"

    # States in which nothing was done; the decision is repeated as long as the incident is open.
    # Sets of states are tuples, because SQL's IN takes tuples.
    UNDECIDED = nonmember((DRY_RUN, ASKED, HELD))
    # States in which a worker has to act.
    UNDERWAY = nonmember((WAITING, RELEASING))
    # States in which the machine is out of service, or will be soon.
    OUT = nonmember((WAITING, DONE, RELEASING))
    # States of which a machine has at most one action of each kind.
    OPEN = nonmember((DRY_RUN, ASKED, HELD, WAITING, DONE, RELEASING))
    # States in which a user may approve the action.
    ALLOWABLE = nonmember((ASKED, HELD, FAILED))
    DECLINABLE = nonmember((ASKED, HELD))


class ActionPolicy(OfProject, Base):
    """The policy of a project for a kind of action; a kind without a row is off."""

    __tablename__ = "action_policy"
    __table_args__ = (one_of("mode", ActionMode), in_project())

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(primary_key=True)
    mode: Mapped[ActionMode] = mapped_column(StateColumn(ActionMode))
    # config, secrets: the configuration without secrets, and the encrypted secrets
    config: Mapped[dict[str, Any]]
    secrets: Mapped[bytes]
    # names of the secrets that are set, with the host of each secret that is an address
    secret_hints: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    changed_by: Mapped[str]


class ActionSwitch(OfProject, Base):
    """The kill switch of a project; its row is locked while actions are decided."""

    __tablename__ = "action_switch"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # Null if actions are executed
    stopped_at: Mapped[datetime | None]
    stopped_by: Mapped[str | None]
    reason: Mapped[str | None]


class SchedulerInventory(OfProject, Base):
    """The inventory of a policy's scheduler: when it is read next, and the last outcome."""

    __tablename__ = "scheduler_inventory"
    __table_args__ = (in_project(), UniqueConstraint("project_id", "kind"))

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # Kind of action whose policy names the scheduler
    kind: Mapped[str]
    next_at: Mapped[datetime]
    # Number of failed attempts since the last answer
    failures: Mapped[int]
    answered_at: Mapped[datetime | None]
    # error_code, error: outcome of the last attempt; null after an answer
    error_code: Mapped[str | None]
    error: Mapped[str | None]


class ScheduledNode(OfProject, Base):
    """A node on which a scheduler ran a job of the project, according to the scheduler itself.

    Only inventories of schedulers write these rows: no sender of sessions can create one.
    """

    __tablename__ = "scheduled_node"
    __table_args__ = (
        in_project(),
        Index("ix_scheduled_node_node_id", "node_id"),
        Index("ix_scheduled_node_node", "node"),
    )

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    node: Mapped[str] = mapped_column(primary_key=True)
    # Name of the job as in `HostReading.launched_as`
    job: Mapped[str] = mapped_column(primary_key=True)
    # Kind of action whose scheduler it is
    kind: Mapped[str]
    # Identifies the node among those of all policies of the kind
    node_id: Mapped[str]
    first_seen_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]


class MachineAction(OfProject, Base):
    """An action on a machine, or a report of a job that hangs, in any state.

    There is no foreign key to the incident, because retention deletes incidents but must keep the
    actions on machines that are out of service.
    """

    __tablename__ = "machine_action"
    __table_args__ = (
        one_of("state", ActionState),
        in_project(),
        # A machine is taken out once, however many incidents and servers order it.
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
    # Name of the incident's job
    job: Mapped[str]
    # The reported hang; null unless this is a report about a hang, whose `host` is empty
    hang: Mapped[HangFacts | None] = mapped_column(HANG_FACTS)
    cause: Mapped[str]
    gpus: Mapped[list[str]] = mapped_column(JSONB)
    confidence: Mapped[float | None] = mapped_column(Double)
    sessions: Mapped[int]
    lost_each_hour: Mapped[float | None] = mapped_column(Double)
    state: Mapped[ActionState] = mapped_column(StateColumn(ActionState))
    # `app.actions.kinds.kind.Limit` values that held the action at the last decision
    limits: Mapped[list[str]] = mapped_column(JSONB)
    # The equivalent command of the action
    command: Mapped[str]
    attempt: Mapped[int]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # ordered_at, ordered_by: time of the order, and the user; the user is null for an automatic
    # action
    ordered_at: Mapped[datetime | None]
    ordered_by: Mapped[str | None]
    done_at: Mapped[datetime | None]
    # release_ordered_at, released_by: time of the release's order, and the user; the user is
    # null after a repair
    release_ordered_at: Mapped[datetime | None]
    released_by: Mapped[str | None]
    released_at: Mapped[datetime | None]
    # Time at which the action was declined, withdrawn, released or given up
    ended_at: Mapped[datetime | None]
    # error_code, error, answer: outcome of the last attempt
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    answer: Mapped[str | None]
