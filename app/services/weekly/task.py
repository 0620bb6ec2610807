"""Sending a week's summary as a kind of task, without what sends it.

Processes that only publish or sweep need to know this much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.broker.celery import IO_QUEUE
from app.db.models.fleet import WeeklySummary
from app.db.models.tasks import SEND_SUMMARY
from app.services.container import Claim, TaskKind
from app.services.tasks.followers import waiting_when_dead

if TYPE_CHECKING:
    from app.services.container import Container


def _run(container: Container, claim: Claim) -> None:
    # A process that never delivers should not pay for HTTP, mail and pictures.
    from app.services.weekly.deliver import deliver_summary  # noqa: PLC0415 - see above

    deliver_summary(container, claim)


SUMMARY: Final = TaskKind(
    name=SEND_SUMMARY, queue=IO_QUEUE, run=_run, follow=waiting_when_dead(WeeklySummary)
)
