"""A delivery as a kind of task, without what sends it.

Processes that only publish or sweep need to know this much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.broker.celery import IO_QUEUE
from app.db.models.alerts import AlertDelivery
from app.db.models.tasks import DELIVER_ALERT
from app.services.container import Claim, TaskKind
from app.services.tasks.followers import waiting_when_dead

if TYPE_CHECKING:
    from app.services.container import Container


def _run(container: Container, claim: Claim) -> None:
    # A process that never delivers should not pay for HTTP, mail and pictures.
    from app.services.actions.asking import asked_of  # noqa: PLC0415 - see above
    from app.services.alerts.deliveries.deliver import deliver  # noqa: PLC0415 - see above

    deliver(container, claim, asked_of)


DELIVERY: Final = TaskKind(
    name=DELIVER_ALERT, queue=IO_QUEUE, run=_run, follow=waiting_when_dead(AlertDelivery)
)
