"""Alerts of a container, driven step by step by a test instead of by the clock."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, text, update

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import (
    BlamedGpu,
    Slowdown,
    SuspectedCause,
    VerdictFix,
    VerdictWorker,
)
from app.incidents.channel_writes import create_channel
from app.incidents.lifecycle import INCIDENT, Incident
from app.incidents.models.facts import Facts
from app.incidents.models.tables import AlertChannel, AlertDelivery, AlertGroup, AlertIncident
from app.incidents.store import incident_of
from app.incidents.sweep import sweep_alerts
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.task_runs import TaskRun
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.models.tables import Session
from benchmarks.support.stored import evaluate_session
from tests.support.receiver import Receiver

LOOPBACK = ("127.0.0.0/8", "::1/128")
SLOW_NODE = SuspectedCause(
    "slow_worker",
    ("node-7",),
    confidence=0.95,
    contribution=0.8,
    evidence=("Idealizing 1 of 4 workers recovers 80.0 % of the lost time.",),
)


@dataclass
class Alerting:
    """A container, with shortcuts that store sessions and read incidents and deliveries."""

    container: Container

    def session(
        self,
        slowdown: float | None = 1.3,
        *causes: SuspectedCause,
        job: str = "llm",
        labels: Mapping[str, str] | None = None,
    ) -> uuid.UUID:
        """Evaluate the alert rules for a session, without running its analysis."""
        session_id = uuid.uuid4()
        with self.container.uow() as tx:
            job_id = self._job(tx, job)
            number = tx.session.execute(
                select(Session.number)
                .where(Session.job_id == job_id)
                .order_by(Session.number.desc())
                .limit(1)
            ).scalar()
            number = (number or 0) + 1
            found = facts(session_id, job, number, tx.now, slowdown, *(causes or (SLOW_NODE,)))
            found = replace(found, labels=labels or {})
            evaluate_session(self.container, tx, job_id, found)
        return session_id

    def slow(self, job: str = "llm", host: str = "") -> None:
        """Store two slow sessions in a row; slow jobs on one host are one incident.

        The host is node-7 for the default job, and a separate one for each other job.
        """
        host = host or ("node-7" if job == "llm" else f"node-of-{job}")
        for _ in range(2):
            self.session(1.3, replace(SLOW_NODE, where=(host,)), job=job)

    def guessed(self, job: str, host: str, uuid: str | None = None) -> None:
        """Store two slow sessions whose host name is that of a container."""
        gpu = BlamedGpu(0, host, "0", guessed=True, uuid=uuid)
        for _ in range(2):
            self.session(1.3, replace(SLOW_NODE, where=(host,), gpus=(gpu,)), job=job)

    def fast(self, job: str = "llm") -> None:
        """Store two fast sessions in a row."""
        for _ in range(2):
            self.session(1.0, job=job)

    def channel(self, receiver: Receiver, name: str = "hook", **changes: Any) -> uuid.UUID:  # noqa: ANN401 - of a channel
        """Add a webhook."""
        values = {"kind": "webhook", "config": {"url": receiver.url}} | changes
        return create_channel(self.container, name=name, **values).id

    def time_passes(self, span: timedelta = timedelta(hours=5)) -> None:
        """Move the times of groups, deliveries and channels back, so that waiting work is due."""
        with self.container.uow() as tx:
            tx.session.execute(
                update(AlertGroup).values(
                    flush_at=AlertGroup.flush_at - span,
                    flushed_at=AlertGroup.flushed_at - span,
                    look_at=AlertGroup.look_at - span,
                )
            )
            tx.session.execute(
                update(AlertDelivery).values(
                    next_attempt_at=AlertDelivery.next_attempt_at - span,
                    created_at=AlertDelivery.created_at - span,
                    started_at=AlertDelivery.started_at - span,
                )
            )
            tx.session.connection().execute(
                text("UPDATE alert_channel SET hold_until = hold_until - :span"), {"span": span}
            )

    def silent(self, job: str = "llm", span: timedelta = timedelta(hours=1)) -> None:
        """Move a job's last session back by `span`, and evaluate its silence."""
        with self.container.uow() as tx:
            job_id = self._job(tx, job)
            tx.session.execute(
                update(Session)
                .where(Session.job_id == job_id)
                .values(received_at=Session.received_at - span)
            )
            tx.session.execute(
                update(AlertGroup).where(AlertGroup.job_id == job_id).values(look_at=tx.now)
            )
        sweep_alerts(self.container)

    def grow_older(self, span: timedelta) -> None:
        """Move the times at which incidents fired, and channels were added, back by `span`."""
        with self.container.uow() as tx:
            tx.session.execute(
                update(AlertChannel).values(created_at=AlertChannel.created_at - span)
            )
            for row in tx.session.execute(select(AlertIncident)).scalars():
                found = incident_of(row)
                assert found.fired_at is not None
                older = replace(found, fired_at=found.fired_at - span)
                row.document = INCIDENT.dump_python(older, mode="json")

    def work(self) -> None:
        """Run the sweeper and the queued tasks until none is queued."""
        keeper = LeaseKeeper(self.container)
        while True:
            swept = sweep_alerts(self.container)
            with self.container.uow() as tx:
                runs = list(
                    tx.session.execute(
                        select(TaskRun.id).where(TaskRun.state == "queued")
                    ).scalars()
                )
            for run_id in runs:
                execute(self.container, keeper, run_id)
            if not runs and not swept.started:
                break
        keeper.stop()

    def pass_and_work(self, span: timedelta = timedelta(hours=5)) -> None:
        self.time_passes(span)
        self.work()

    def deliveries(self) -> list[AlertDelivery]:
        with self.container.uow() as tx:
            return list(
                tx.session.execute(
                    select(AlertDelivery).order_by(AlertDelivery.number, AlertDelivery.created_at)
                ).scalars()
            )

    def states(self) -> list[str]:
        return [delivery.state for delivery in self.deliveries()]

    def incidents(self) -> list[Incident]:
        with self.container.uow() as tx:
            rows = tx.session.execute(select(AlertIncident).order_by(AlertIncident.opened_at))
            return [incident_of(row) for row in rows.scalars()]

    def incident(self) -> Incident:
        [found] = self.incidents()
        return found

    def _job(self, tx: UnitOfWork, name: str) -> int:
        job_id: int | None = tx.session.execute(select(Job.id).where(Job.name == name)).scalar()
        if job_id is None:
            job = Job(name=name)
            tx.session.add(job)
            tx.session.flush()
            job_id = job.id
        return job_id


def facts(
    session_id: uuid.UUID,
    job: str,
    number: int,
    received_at: datetime,
    slowdown: float | None,
    *causes: SuspectedCause,
) -> Facts:
    found = Facts(
        session=session_id,
        job=job,
        attempt=1,
        number=number,
        received_at=received_at,
        layout="dp=2 pp=2",
        discrepancy=0.01,
    )
    if slowdown is None:
        return found
    return replace(
        found,
        slowdown=slowdown,
        slowdown_ci95=(slowdown - 0.02, slowdown + 0.02),
        waste=1 - 1 / slowdown,
        gpu_hours_lost=12.5 * (slowdown - 1),
        step_time_s=10.0,
        causes=causes if slowdown > 1.05 else (),
        worst=(VerdictWorker(1, 1, "node-7", slowdown),),
        worst_step=7,
        fix=VerdictFix("Replace node-7", 0.2, 8.0),
        headline=Slowdown(
            slowdown,
            (slowdown - 0.02, slowdown + 0.02),
            12.5 * (slowdown - 1),
            HeadlineKind.CAUSES,
        ),
    )
