"""Construction of a process's adapters: the only module that imports all of them."""

from __future__ import annotations

import uuid

from app.errors import StartupError
from app.platform.broker import TASK_NAME, Dispatcher, make_celery
from app.platform.container import Container
from app.platform.database.engine import make_engine
from app.platform.object_store import Objects
from app.platform.settings import Settings
from app.task_kinds import (
    ACTING,
    ANALYSIS,
    DELIVERY,
    INVENTORY,
    PLANNING,
    READING,
    REQUEST,
    SUMMARY,
)

__all__ = ["Container", "build", "object_store"]


def build(settings: Settings, *, application_name: str = "paceline") -> Container:
    """Return the container of this process; connects to nothing yet.

    Parameters
    ----------
    settings : Settings
        `database_url` must be set, also for the embedded database.
    application_name : str
        Name of this process in ``pg_stat_activity``.

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
    durable = (ACTING, ANALYSIS, DELIVERY, INVENTORY, PLANNING, READING, REQUEST, SUMMARY)
    kinds = {kind.name: kind for kind in durable}

    def send(run_id: uuid.UUID, kind: str) -> None:
        queue = kinds[kind].queue
        # Routed by the queue's name: with an empty exchange Celery takes the default queue instead.
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
    """Return the object store that the settings name; None if they name none.

    Raises
    ------
    StartupError
        If its address is invalid, or the client library is not installed.
    """
    if settings.blob_url is None:
        return None
    # Imported here, because the library is optional and takes a while to load.
    from app.platform.s3 import S3Objects  # noqa: PLC0415

    return Objects(S3Objects(settings), settings.blob_min_bytes)
