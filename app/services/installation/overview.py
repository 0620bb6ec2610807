"""The read side of the installation: queues, workers, storage, schema, and use of quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select, text

from app.db.migrate import expected_revision, is_behind
from app.db.models.tasks import TaskRun
from app.db.states import TaskState
from app.services.access.projects import list_projects
from app.services.installation.status import InstallationStatus, installation_status
from app.services.usage.quotas import Use, uses

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.container import Container

# Tables whose size is told one by one; the rest is told together.
TABLES: Final = 12


@dataclass(frozen=True, slots=True)
class Queue:
    """Work of a kind that waits, runs or is given up."""

    kind: str
    queue: str
    queued: int
    running: int
    dead: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table with its indices, bytes; rows are PostgreSQL's own estimate."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Overview:
    """An installation as its operator sees it."""

    now: datetime
    instance: str
    version: str
    # revision, expected: of the schema: of the database, and what this program needs
    revision: str | None
    expected: str | None
    # whether it lacks revisions of this program
    behind: bool
    postgres: str  # version of the server
    status: InstallationStatus
    queues: Sequence[Queue]
    database_bytes: int
    tables: Sequence[TableSize]  # the largest first
    uses: Mapping[str, Use]  # by project


def overview(container: Container, tx: Reads) -> Overview:
    """Return the installation."""
    revision, postgres, size = tx.session.execute(
        text(
            "SELECT (SELECT version_num FROM alembic_version), current_setting('server_version'), "
            "pg_database_size(current_database())"
        )
    ).one()
    used = uses(tx)
    return Overview(
        now=tx.now,
        instance=container.settings.instance_name,
        version=version("paceline"),
        revision=revision,
        expected=expected_revision(),
        behind=is_behind(revision),
        postgres=postgres.split()[0],
        status=installation_status(tx, container.settings),
        queues=_queues(container, tx),
        database_bytes=size,
        tables=_tables(tx),
        uses={project.name: used[project.id] for project in list_projects(tx)},
    )


def _queues(container: Container, tx: Reads) -> list[Queue]:
    state = TaskRun.state
    oldest = func.extract(
        "epoch", tx.now - func.min(TaskRun.created_at).filter(state == TaskState.QUEUED)
    )
    rows = {
        row[0]: row
        for row in tx.session.execute(
            select(
                TaskRun.kind,
                func.count().filter(state == TaskState.QUEUED),
                func.count().filter(state == TaskState.RUNNING),
                func.count().filter(state == TaskState.DEAD),
                oldest,
            ).group_by(TaskRun.kind)
        )
    }
    found = []
    for name, kind in sorted(container.kinds.items()):
        row = rows.get(name)
        waits = None if row is None or row[4] is None else max(0.0, float(row[4]))
        counts = (0, 0, 0) if row is None else (row[1], row[2], row[3])
        found.append(Queue(name, kind.queue, *counts, waits))
    return found


def _tables(tx: Reads) -> list[TableSize]:
    rows = tx.session.execute(
        text(
            "SELECT relname, pg_total_relation_size(oid), "
            "greatest(reltuples, pg_stat_get_live_tuples(oid))::bigint "
            "FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace "
            "ORDER BY 2 DESC LIMIT :most"
        ),
        {"most": TABLES},
    )
    return [TableSize(*row) for row in map(tuple, rows)]
