"""Incidents that blame machines, and the actions that follow, driven step by step by a test."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select, update

from app.actions.kinds.kind import Placement
from app.actions.listed import ActionRow, list_actions
from app.actions.models import (
    ActionMode,
    ActionState,
    MachineAction,
    ScheduledNode,
    SchedulerInventory,
)
from app.actions.perform import sweep_actions
from app.actions.policies import inventory_of, set_policy
from app.actions.scheduled import write_placements
from app.analysis.report.session_verdict import BlamedGpu
from app.hosts.models import HostReading
from app.incidents.models.tables import AlertIncident
from app.platform.container import Container
from app.platform.database.task_runs import ACT_ON_MACHINE, READ_SCHEDULER, TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.models.tables import Session
from tests.support.alerting import SLOW_NODE, Alerting
from tests.support.receiver import Receiver

SECRET: Final = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="  # noqa: S105 - of tests
# The name that the scheduler has for the job of sessions here.
LAUNCHED_AS: Final = "slurm/81"
TIMES: Final = ("ordered_at", "done_at", "release_ordered_at", "released_at", "ended_at")


def machine_action(incident: uuid.UUID, host: str, now: datetime) -> MachineAction:
    """Return an action that waits for a person, as a row."""
    return MachineAction(
        id=uuid.uuid4(),
        kind="event",
        incident_id=incident,
        host=host,
        job="llm",
        cause="slow_worker",
        gpus=[],
        confidence=0.97,
        sessions=2,
        lost_each_hour=None,
        state=ActionState.ASKED,
        limits=[],
        command=f"dev.paceline.machine.confirmed about {host}",
        attempt=0,
        next_attempt_at=now,
    )


@dataclass
class Acting:
    """A container, with shortcuts that blame machines and read the actions."""

    container: Container

    @property
    def alerting(self) -> Alerting:
        return Alerting(self.container)

    def blame(
        self,
        host: str = "node-7",
        *,
        job: str = "llm",
        sessions: int = 2,
        confidence: float = 0.97,
        guessed: bool = False,
        cause: str = "slow_worker",
        launched_as: str | None = LAUNCHED_AS,
        scheduled: bool = True,
    ) -> None:
        """Store sessions that blame a host, and the readings that their analysis would store.

        If `scheduled`, the scheduler says that their job runs on the host.
        """
        if scheduled:
            self.schedule((host, LAUNCHED_AS))
        gpu = BlamedGpu(3, host, "3", guessed=guessed, uuid=f"GPU-{host[:40]}-3")
        found = replace(SLOW_NODE, cause=cause, where=(host,), confidence=confidence, gpus=(gpu,))
        for _ in range(sessions):
            session = self.alerting.session(1.3, found, job=job)
            self.reading(session, host, cause, guessed=guessed, launched_as=launched_as)

    def schedule(self, *jobs: tuple[str, str], kind: str = "slurm") -> None:
        """Let a scheduler say on which nodes which jobs of the project run."""
        with self.container.uow() as tx:
            inventory = inventory_of(tx, kind)
            if inventory is None:
                inventory = SchedulerInventory(
                    id=uuid.uuid4(), kind=kind, next_at=tx.now, failures=0
                )
                tx.session.add(inventory)
            write_placements(tx, inventory, [Placement(node, node, job) for node, job in jobs])

    def make_inventories_due(self) -> None:
        """Let the next pass read every scheduler."""
        with self.container.uow() as tx:
            tx.session.execute(update(SchedulerInventory).values(next_at=tx.now))

    def scheduler_is_silent_for(self, span: timedelta) -> None:
        """Let the last answers of schedulers lie so much further back."""
        with self.container.uow() as tx:
            tx.session.execute(
                update(SchedulerInventory).values(answered_at=SchedulerInventory.answered_at - span)
            )

    def schedule_over_days(self, *nodes: str) -> None:
        """Let the scheduler have seen nodes yesterday and now, so that they count."""
        jobs = [(node, LAUNCHED_AS) for node in nodes]
        self.schedule(*jobs)
        with self.container.uow() as tx:
            tx.session.execute(
                update(ScheduledNode)
                .where(ScheduledNode.node.in_(nodes))
                .values(first_seen_at=ScheduledNode.first_seen_at - timedelta(days=1))
            )
        self.schedule(*jobs)

    def reading(
        self,
        session: uuid.UUID,
        host: str,
        cause: str | None,
        *,
        guessed: bool = False,
        launched_as: str | None = LAUNCHED_AS,
    ) -> None:
        """Store a session's reading of a host in the ledger; without a cause, it is healthy."""
        with self.container.uow() as tx:
            row = tx.session.get_one(Session, session)
            tx.session.add(
                HostReading(
                    session_id=session,
                    host=host,
                    job_id=row.job_id,
                    received_at=row.received_at,
                    ranks=8,
                    workers=1,
                    slowdown=1.3 if cause else 1.0,
                    computing=None,
                    cause=cause,
                    lost_each_hour=0.5,
                    measured_s=10.0,
                    gpus=[],
                    guessed=guessed,
                    launched_as=None if launched_as is None else [launched_as],
                )
            )

    def well(
        self,
        host: str = "node-7",
        *,
        job: str = "llm",
        sessions: int = 2,
        launched_as: str | None = LAUNCHED_AS,
    ) -> None:
        """Store fast sessions on a host."""
        for _ in range(sessions):
            session = self.alerting.session(1.0, job=job)
            self.reading(session, host, None, launched_as=launched_as)

    def events(
        self,
        receiver: Receiver,
        mode: ActionMode = ActionMode.AUTOMATIC,
        **changes: Any,  # noqa: ANN401 - of a configuration
    ) -> None:
        """Send the events of actions to a receiver."""
        config = {"url": receiver.url, "signing_secrets": [SECRET]} | changes
        set_policy(self.container, "event", mode=mode, config=config)

    def time_passes(self, span: timedelta) -> None:
        """Move the times of actions and readings back by `span`, as if that time had passed."""
        with self.container.uow() as tx:
            for row in tx.session.execute(select(MachineAction)).scalars():
                for name in (
                    "ordered_at",
                    "done_at",
                    "release_ordered_at",
                    "released_at",
                    "ended_at",
                ):
                    at = getattr(row, name)
                    setattr(row, name, None if at is None else at - span)
                row.next_attempt_at -= span
            tx.session.execute(
                update(HostReading).values(received_at=HostReading.received_at - span)
            )
            tx.session.execute(
                update(ScheduledNode).values(
                    first_seen_at=ScheduledNode.first_seen_at - span,
                    last_seen_at=ScheduledNode.last_seen_at - span,
                )
            )

    def evidence_ages(self, span: timedelta) -> None:
        """Move back the times of the sessions that incidents refer to by `span`."""
        with self.container.uow() as tx:
            for row in tx.session.execute(select(AlertIncident)).scalars():
                [found] = [one for one in self.alerting.incidents() if one.id == row.id]
                assert found.facts is not None
                older = found.facts.received_at - span
                row.document = {
                    **row.document,
                    "facts": {**row.document["facts"], "received_at": older.isoformat()},
                }

    def look(self) -> None:
        """Run one pass of the sweeper over actions."""
        sweep_actions(self.container)

    def work(self) -> None:
        """Run the sweeper and the queued actions until none is queued."""
        keeper = LeaseKeeper(self.container)
        while True:
            self.look()
            with self.container.uow() as tx:
                runs = list(
                    tx.session.execute(
                        select(TaskRun.id).where(
                            TaskRun.state == "queued",
                            TaskRun.kind.in_((ACT_ON_MACHINE, READ_SCHEDULER)),
                        )
                    ).scalars()
                )
            if not runs:
                break
            for run_id in runs:
                execute(self.container, keeper, run_id)
        keeper.stop()

    def actions(self) -> list[ActionRow]:
        """Return the actions, oldest first."""
        with self.container.reading() as tx:
            return list_actions(tx, 1000)[::-1]

    def action(self) -> ActionRow:
        [found] = self.actions()
        return found

    def action_of(self, host: str) -> ActionRow:
        [found] = [one for one in self.actions() if one.host == host]
        return found

    def states(self) -> dict[str, list[str]]:
        """Return the states of the actions of each host."""
        found: dict[str, list[str]] = {}
        for one in self.actions():
            found.setdefault(one.host, []).append(str(one.state))
        return found
