"""State of the installation for its page and `paceline doctor`: queues, storage, servers."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Final

import redis
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from app.access.projects import list_projects
from app.installation.readiness import InstallationStatus, Part, installation_status
from app.platform.container import Container
from app.platform.database.engine import said
from app.platform.database.migrate import expected_revision, is_behind
from app.platform.database.states import TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.database.unit_of_work import Reads
from app.platform.settings import Settings
from app.platform.telemetry import METRICS, TRACES, obstacle, wanted
from app.quotas.usage import Use, uses

# Number of largest tables with a size of their own; the sizes of the other tables are summed.
TABLES: Final = 12


@dataclass(frozen=True, slots=True)
class Queue:
    """Numbers of queued, running and dead tasks of one kind."""

    kind: str
    queue: str
    queued: int
    running: int
    dead: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table's bytes including indices, and PostgreSQL's estimate of its number of rows."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The installation's state, for its operator."""

    now: datetime
    instance: str
    version: str
    # revision: schema revision of the database; expected: schema revision that this program needs
    revision: str | None
    expected: str | None
    # whether the database lacks schema revisions of this program
    behind: bool
    postgres: str  # version of the server
    status: InstallationStatus
    queues: Sequence[Queue]
    database_bytes: int
    tables: Sequence[TableSize]  # the largest first
    uses: Mapping[str, Use]  # by project


def overview(container: Container, tx: Reads) -> Overview:
    """Return the installation's state."""
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
    queues = []
    for name, kind in sorted(container.kinds.items()):
        row = rows.get(name)
        waits = None if row is None or row[4] is None else max(0.0, float(row[4]))
        counts = (0, 0, 0) if row is None else (row[1], row[2], row[3])
        queues.append(Queue(name, kind.queue, *counts, waits))
    return queues


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


OLDEST_POSTGRES: Final = 15
# Connections that two servers and two workers of the default sizes open.
LEAST_CONNECTIONS: Final = 60
# A message is an id, and at most a few thousand wait; a Redis with less memory is meant for
# something else.
LEAST_REDIS_BYTES: Final = 64 * 1024**2
NO_EVICTION: Final = "noeviction"
MOST_APART_S: Final = 5.0
_WAIT_S: Final = 3.0

_DATABASE: Final = text(
    "SELECT current_setting('server_version_num')::int / 10000,"
    " current_setting('server_version'), current_user,"
    " pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,"
    " has_schema_privilege(current_schema(), 'CREATE'),"
    " coalesce(has_table_privilege(to_regclass('task_run')::oid, 'INSERT, UPDATE'), true),"
    " current_setting('max_connections')::int, extract(epoch FROM clock_timestamp())::float8"
)


def surroundings(settings: Settings, engine: Engine) -> Iterator[Part]:
    """Yield the check of each component around the server, with advice if the check fails."""
    yield from _database(engine)
    if settings.broker_url is not None and settings.broker_url.startswith("redis"):
        yield from _redis(settings.broker_url)
    yield _port(settings)
    yield from _telemetry()


def _database(engine: Engine) -> Iterator[Part]:
    began_s = time.time()
    try:
        with engine.connect() as connection:
            row = connection.execute(_DATABASE).one()
    except SQLAlchemyError as error:
        yield Part("database rights", ready=False, detail=said(error))
        return
    major, version, role, read_only, creates, writes, connections, now_s = row
    yield Part(
        "database version",
        ready=major >= OLDEST_POSTGRES,
        detail=str(version)
        if major >= OLDEST_POSTGRES
        else f"{version}: PostgreSQL {OLDEST_POSTGRES} or later is needed",
    )
    wrong = None
    if read_only:
        wrong = (
            f"{role} may only read here: name the primary in PACELINE_DATABASE_URL, and unset "
            "default_transaction_read_only"
        )
    elif not writes:
        wrong = f"{role} may not write into the tables: they belong to another role; use that one"
    elif not creates:
        wrong = f"{role} may not create tables: GRANT CREATE, or make it the database's owner"
    yield Part("database rights", ready=wrong is None, detail=wrong or f"{role} reads and writes")
    enough = connections >= LEAST_CONNECTIONS
    yield Part(
        "database connections",
        ready=enough,
        detail=f"{connections}"
        if enough
        else f"{connections}: each process takes up to 16; raise max_connections to "
        f"{LEAST_CONNECTIONS} at least",
    )
    yield _clock("database", now_s, began_s)


def _clock(whose: str, now_s: float, began_s: float) -> Part:
    """Check a clock against this machine's at the midpoint of the request."""
    apart_s = now_s - (began_s + time.time()) / 2
    near = abs(apart_s) <= MOST_APART_S
    return Part(
        f"clock of the {whose}",
        ready=near,
        detail=f"{abs(apart_s):.1f} s from this machine's"
        if near
        else f"{abs(apart_s):.0f} s {'before' if apart_s > 0 else 'behind'} this machine's: "
        "run NTP on both",
    )


def _redis(url: str) -> Iterator[Part]:
    client = redis.Redis.from_url(
        # Celery and redis-py use different URL schemes for a Unix socket.
        url.replace("redis+socket://", "unix://", 1),
        socket_connect_timeout=_WAIT_S,
        socket_timeout=_WAIT_S,
        decode_responses=True,
    )
    began_s = time.time()
    try:
        with contextlib.closing(client):
            memory = client.info("memory")
            seconds, microseconds = client.time()
    except redis.RedisError as error:
        yield Part("broker memory", ready=False, detail=str(error))
        return
    yield _clock("broker", seconds + microseconds / 1e6, began_s)
    # An unset `maxmemory` reads as 0: Redis then uses all memory of the machine.
    limit, policy = int(memory["maxmemory"]), str(memory["maxmemory_policy"])
    wrong = None
    if policy != NO_EVICTION:
        wrong = f"maxmemory-policy is {policy}, which throws messages away: set it to {NO_EVICTION}"
    elif limit and limit < LEAST_REDIS_BYTES:
        wrong = (
            f"maxmemory is {limit / 1024**2:.0f} MiB: give it {LEAST_REDIS_BYTES // 1024**2} MiB "
            "at least; workers take from the database while it is full"
        )
    held = f"{int(memory['used_memory']) / 1024**2:.0f} MiB used"
    yield Part(
        "broker memory",
        ready=wrong is None,
        detail=wrong or f"{held} of {f'{limit / 1024**2:.0f} MiB' if limit else 'the machine'}",
    )


def _port(settings: Settings) -> Part:
    """Check that a Paceline server answers at the configured port, or that the port is free."""
    name = f"port {settings.port}"
    if settings.port == 0:
        return Part(name, ready=True, detail="any free one")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - where a server may listen
    connection = http.client.HTTPConnection(host, settings.port, timeout=_WAIT_S)
    try:
        with contextlib.closing(connection):
            connection.request("GET", "/healthz", headers={"Host": f"{host}:{settings.port}"})
            answer = connection.getresponse()
            is_server = b'"instance"' in answer.read(4096)
    except ConnectionRefusedError:
        return _free(name, settings)
    except (OSError, http.client.HTTPException) as error:
        elsewhere = isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL
        reason = "is no address of this machine" if elsewhere else "does not answer"
        return Part(name, ready=False, detail=f"{settings.host} {reason}: set PACELINE_HOST")
    if is_server:
        return Part(name, ready=True, detail="a server of Paceline answers")
    return Part(
        name, ready=False, detail="another program answers there: choose PACELINE_PORT anew"
    )


def _free(name: str, settings: Settings) -> Part:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        detail = f"cannot listen on {settings.host}: {error.strerror}; set PACELINE_HOST or _PORT"
        return Part(name, ready=False, detail=detail)
    return Part(name, ready=True, detail="free: no server runs here")


def _telemetry() -> Iterator[Part]:
    for signal in (TRACES, METRICS):
        if wanted(signal):
            wrong = obstacle(signal)
            yield Part(f"OTLP {signal}", ready=wrong is None, detail=wrong or "sent")
