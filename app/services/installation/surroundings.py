"""What an installation stands on: PostgreSQL, Redis, clocks, a port, and how each has to be."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
import time
from typing import TYPE_CHECKING, Final

import redis
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.db.faults import said
from app.services.installation.readiness import Part
from app.system.telemetry.export import METRICS, TRACES, obstacle, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from app.settings import Settings

OLDEST_POSTGRES: Final = 15
# Two servers and two workers of the default sizes.
LEAST_CONNECTIONS: Final = 60
# Messages are ids, and a few thousand wait at most; a Redis with less is not for that.
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
    """Yield each thing that is as it has to be, or is not, with what to do."""
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
    """Return how far a clock is from this machine's, at the middle of the question."""
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
        # What Celery calls a socket.
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
    # Unset it is 0, and Redis takes what there is.
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
    """Return whether a server answers at its port, or could."""
    name = f"port {settings.port}"
    if settings.port == 0:
        return Part(name, ready=True, detail="any free one")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - where a server may listen
    connection = http.client.HTTPConnection(host, settings.port, timeout=_WAIT_S)
    try:
        with contextlib.closing(connection):
            connection.request("GET", "/healthz", headers={"Host": f"{host}:{settings.port}"})
            answer = connection.getresponse()
            known = b'"instance"' in answer.read(4096)
    except ConnectionRefusedError:
        return _free(name, settings)
    except (OSError, http.client.HTTPException) as error:
        reason = "is no address of this machine" if _is_elsewhere(error) else "does not answer"
        return Part(name, ready=False, detail=f"{settings.host} {reason}: set PACELINE_HOST")
    if known:
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


def _is_elsewhere(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL


def _telemetry() -> Iterator[Part]:
    for signal in (TRACES, METRICS):
        if wanted(signal):
            wrong = obstacle(signal)
            yield Part(f"OTLP {signal}", ready=wrong is None, detail=wrong or "sent")
