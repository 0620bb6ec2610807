"""Builds the adapters of a process: the only place where they meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.celery import TASK_NAME, make_celery
from app.broker.dispatch import Dispatcher
from app.db.engine import make_engine
from app.db.objects.store import Objects
from app.errors import StartupError
from app.services.actions.task import ACTING
from app.services.alerts.deliveries.task import DELIVERY
from app.services.container import Container
from app.services.hangs.task import READING
from app.services.plans.task import PLANNING
from app.services.sessions.task import ANALYSIS
from app.services.weekly.task import SUMMARY

if TYPE_CHECKING:
    import uuid

    from app.settings import Settings

__all__ = ["Container", "build", "object_store"]


def build(settings: Settings, *, application_name: str = "paceline") -> Container:
    """Return the container of this process; connects to nothing yet.

    Parameters
    ----------
    settings : Settings
        `database_url` must be set: the embedded database's, where there is no other.
    application_name : str
        What ``pg_stat_activity`` calls this process.

    Raises
    ------
    StartupError
        If there is no database URL, or a wrong one.
    """
    if settings.database_url is None:
        raise StartupError(
            "There is no database: set PACELINE_DATABASE_URL, or run `paceline serve`."
        )
    engine = make_engine(settings.database_url, application_name=application_name)
    celery = make_celery(settings)
    kinds = {kind.name: kind for kind in (ACTING, ANALYSIS, DELIVERY, PLANNING, READING, SUMMARY)}

    def send(run_id: uuid.UUID, kind: str) -> None:
        queue = kinds[kind].queue
        # By the queue's name: with an empty exchange Celery takes the default queue instead.
        celery.send_task(TASK_NAME, args=[str(run_id)], queue=queue)

    dispatcher = Dispatcher(send)
    return Container(
        settings=settings,
        engine=engine,
        dispatcher=dispatcher,
        publish=dispatcher.publish,
        kinds=kinds,
        objects=object_store(settings),
    )


def object_store(settings: Settings) -> Objects | None:
    """Return the object store that the settings name; None where they name none.

    Raises
    ------
    StartupError
        If its address is wrong, or what talks to it is not installed.
    """
    if settings.blob_url is None:
        return None
    # What talks to the store is an extra, and takes a while to load.
    from app.db.objects.s3 import S3Objects  # noqa: PLC0415

    return Objects(S3Objects(settings), settings.blob_min_bytes)
