"""A marked example, sent to a channel at once: how a message looks, and whether it arrives."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from app.alerts.delivery import DeliveryError, ReceiverAnswer
from app.alerts.facts import Facts
from app.alerts.grouping import Status
from app.alerts.incidents import fingerprint_of
from app.alerts.message import Alert, Message
from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.verdict import Slowdown, SuspectedCause, VerdictFix, VerdictWorker
from app.db.models.alerts import AlertChannel
from app.errors import NotFoundError
from app.services.access.audit import Action, record
from app.services.alerts.deliveries.deliver import attempt, target_of
from app.services.alerts.deliveries.fix import base_url
from app.services.alerts.store import timing

if TYPE_CHECKING:
    from datetime import datetime

    from app.services.container import Container

EXAMPLE_JOB: Final = "example-job"
_CAUSE: Final = next(name for name, kind in KINDS.items() if kind.alerts_alone)


@dataclass(frozen=True, slots=True)
class TestResult:
    """The receiver's answer to an example."""

    delivered: bool
    # code, error: why not
    code: str | None
    error: str | None
    status: int | None  # of the receiver's answer
    answer: str  # the beginning of what it said


def send_example(container: Container, channel_id: uuid.UUID) -> TestResult:
    """Send a marked example, now, and return how it was received.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        row = tx.session.get(AlertChannel, channel_id)
        if row is None:
            raise NotFoundError(f"There is no channel {channel_id}.")
        record(tx, container.principal, Action.TESTED, f"channel {row.name}")
        target = target_of(row)
        message = example(container, row.name, tx.now, base_url(container.settings, tx))
    try:
        answer = attempt(container, target, message)
    except DeliveryError as error:
        got = error.answer or ReceiverAnswer(None, "")
        return TestResult(
            delivered=False,
            code=error.code,
            error=error.sentence,
            status=got.status,
            answer=got.text,
        )
    return TestResult(
        delivered=True, code=None, error=None, status=answer.status, answer=answer.text
    )


def example(container: Container, receiver: str, now: datetime, url: str) -> Message:
    """Return a message that says what a real one does, marked as a test.

    Parameters
    ----------
    now : datetime
    url : str
        Of the dashboard, with a slash at its end.
    """
    facts = Facts(
        session=uuid.UUID(int=0),
        job=EXAMPLE_JOB,
        attempt=1,
        number=14,
        received_at=now - timedelta(minutes=4),
        slowdown=1.31,
        slowdown_ci95=(1.27, 1.36),
        waste=0.237,
        gpu_hours_lost=18.4,
        discrepancy=0.012,
        step_time_s=7.4,
        causes=(
            SuspectedCause(
                _CAUSE,
                ("node-017",),
                confidence=0.94,
                contribution=0.82,
                evidence=("This is an example: no job of yours is slow.",),
            ),
        ),
        worst=(VerdictWorker(3, 1, "node-017", 1.31), VerdictWorker(3, 2, "node-017", 1.06)),
        worst_step=120,
        fix=VerdictFix("Replace node-017", 0.22, 5.8),
        headline=Slowdown(1.36, (1.32, 1.41), 20.6, HeadlineKind.CAUSES),
    )
    alert = Alert(
        incident=uuid.UUID(int=0),
        fingerprint=fingerprint_of(EXAMPLE_JOB, _CAUSE, "node-017"),
        status=Status.FIRING,
        severity="warning",
        cause=_CAUSE,
        where="node-017",
        rules=("Example",),
        since=now - timedelta(minutes=34),
        resolved_at=None,
        why_resolved=None,
        value=1.31,
        facts=facts,
        view_url=url,
        incident_url=f"{url}incidents",
    )
    return Message(
        id=uuid.uuid4(),
        number=0,
        at=now,
        job=EXAMPLE_JOB,
        receiver=receiver,
        alerts=(alert,),
        base_url=url,
        repeat=timing(container.settings).repeat_interval,
        test=True,
    )
