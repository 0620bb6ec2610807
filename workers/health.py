"""Whether the workers of this machine are alive: ``python -m workers.health`` for orchestrators.

Exit status 0 if a worker of each queue has sent a heartbeat from this host, else 1.
"""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from app.errors import PacelineError, StartupError, lines_of
from app.installation.models import WorkerHeartbeat
from app.installation.readiness import MISSED_HEARTBEATS
from app.platform.broker import QUEUES
from app.platform.database.engine import make_engine
from app.platform.database.migrate import require_schema
from app.platform.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Engine


def missing_queues(engine: Engine, settings: Settings, host: str) -> set[str]:
    """Return the queues from which no living worker on `host` takes messages.

    Raises
    ------
    SQLAlchemyError
        If the database does not answer.
    """
    limit = timedelta(seconds=MISSED_HEARTBEATS * settings.heartbeat_interval_s)
    with engine.connect() as connection:
        alive = connection.scalars(
            select(WorkerHeartbeat.queues).where(
                WorkerHeartbeat.host == host, WorkerHeartbeat.seen_at >= func.now() - limit
            )
        ).all()
    return set(QUEUES) - {queue for queues in alive for queue in queues.split(",")}


def main() -> int:
    """Print the queues without a worker to standard error; return the exit status."""
    settings = Settings()
    if settings.database_url is None:
        raise StartupError("Set PACELINE_DATABASE_URL to the database of the workers.")
    engine = make_engine(settings.database_url, application_name="paceline health")
    try:
        require_schema(engine)
        missing = missing_queues(engine, settings, socket.gethostname())
    finally:
        engine.dispose()
    for queue in sorted(missing):
        sys.stderr.write(f"no living worker here takes messages from the queue {queue}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    try:
        status = main()
    except PacelineError as error:
        sys.stderr.writelines(lines_of(error))
        status = 1
    sys.exit(status)
