"""The heartbeat of a worker: a row in the database that is updated every few seconds."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from app.installation.models import WorkerHeartbeat
from app.platform.database.engine import make_engine, said

if TYPE_CHECKING:
    from app.platform.settings import Settings


_log = structlog.get_logger(__name__)


class Heartbeat:
    """Sends heartbeats on a thread of the process that takes messages, not of one that computes.

    A worker that computes for ten minutes is alive, but a worker whose consumer hangs is not.

    Parameters
    ----------
    settings : Settings
    queue : str
        The queue that the worker takes messages from.
    """

    def __init__(self, settings: Settings, queue: str) -> None:
        if settings.database_url is None:
            raise ValueError("a worker has a database")
        self._interval_s = settings.heartbeat_interval_s
        self._queue = queue
        self._id = uuid.uuid4()
        self._engine = make_engine(
            settings.database_url,
            pool_size=1,
            application_name=f"paceline worker {queue} heartbeat",
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and delete the row, so that the worker is not reported as missing."""
        self._stop.set()
        if self._thread.ident is None:
            return  # The worker was stopped before its broker answered.
        self._thread.join()
        try:
            with self._engine.begin() as connection:
                connection.execute(delete(WorkerHeartbeat).where(WorkerHeartbeat.id == self._id))
        except SQLAlchemyError as error:
            _log.warning("heartbeat not deleted", error=said(error))
        self._engine.dispose()

    def _run(self) -> None:
        statement = (
            insert(WorkerHeartbeat)
            .values(id=self._id, host=socket.gethostname(), pid=os.getpid(), queues=self._queue)
            .on_conflict_do_update(
                index_elements=[WorkerHeartbeat.id], set_={"seen_at": func.now()}
            )
        )
        failing = False
        while True:
            try:
                with self._engine.begin() as connection:
                    connection.execute(statement)
            except SQLAlchemyError as error:
                # Log the first failure only, so that a night without a database adds a single line.
                if not failing:
                    _log.warning("heartbeat not written, trying on", error=said(error))
                failing = True
            else:
                if failing:
                    _log.info("heartbeat written again")
                failing = False
            if self._stop.wait(self._interval_s):
                return
