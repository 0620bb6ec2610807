"""The connection pool of a process, texts of database errors, and retries on locked tables."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
import structlog
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)

from app.analysis.generation import READS
from app.errors import BusyError, PacelineError, StartupError

DRIVER: Final = "postgresql+psycopg"

# Limit of a connection attempt: a server that drops packets instead of refusing them would
# otherwise hold a request for minutes.
CONNECT_TIMEOUT_S: Final = 10

# Limit of an idle open transaction: a process that was suspended within a transaction would
# otherwise keep its row locks, and block every worker that needs those rows, until the machine
# restarts.
IDLE_IN_TRANSACTION_TIMEOUT_MS: Final = 60_000

# Connections of one process: ingest (4), pages (a few of the 40 threads of the pool at a time) and
# the background threads. When all are in use a caller waits; without a limit a burst of page views
# would use up the server's 100 connections and shut the workers out.
POOL_SIZE: Final = 8
POOL_OVERFLOW: Final = 8


def database_url(url: str) -> URL:
    """Return a database URL with psycopg 3 as its driver.

    Parameters
    ----------
    url : str
        ``postgresql://…``, ``postgres://…`` or ``postgresql+psycopg://…``.

    Raises
    ------
    StartupError
        If the text is not a URL, or is the URL of another kind of database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StartupError(f"The database URL cannot be read: {error}") from error
    if parsed.drivername in ("postgres", "postgresql", DRIVER):
        return parsed.set(drivername=DRIVER)
    raise StartupError(
        f"The database URL starts with {parsed.drivername}://; Paceline needs {DRIVER}://"
    )


def make_engine(
    url: str | URL, *, pool_size: int = POOL_SIZE, application_name: str = "paceline"
) -> Engine:
    """Return an engine that connects on first use.

    Parameters
    ----------
    url : str or URL
        See `database_url`.
    application_name : str
        Name of the connections in ``pg_stat_activity``.
    """
    return create_engine(
        url if isinstance(url, URL) else database_url(url),
        pool_size=pool_size,
        max_overflow=POOL_OVERFLOW,
        # After a restart of the server the first use of every pooled connection would fail
        # otherwise.
        pool_pre_ping=True,
        # Errors are logged, and stored values must not appear in logs.
        hide_parameters=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": application_name,
            "options": (
                f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS}"
                " -c timezone=UTC"
                # Just-in-time compilation takes longer than any of our statements; PostgreSQL
                # starts it if its cost estimates are too large.
                " -c jit=off"
                # By this setting the database refuses claims of data that this version cannot
                # read: the trigger `leave_to_newer_version`.
                f" -c paceline.reads={READS}"
            ),
        },
    )


# Limit of an error's text: for a server with many addresses it lists the failure of each address.
_CHARACTERS: Final = 300


class DatabaseUnavailableError(PacelineError):
    """The database does not answer, or refuses the connection."""

    code = "database.unavailable"


def said(error: SQLAlchemyError) -> str:
    """Return an error's text in one line, without links to documentation."""
    driver = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(driver).split())[:_CHARACTERS]


def unavailable(error: BaseException) -> DatabaseUnavailableError | None:
    """Return a `DatabaseUnavailableError` for errors of the connection; None for others."""
    if not isinstance(error, (OperationalError, InterfaceError)):
        return None
    return DatabaseUnavailableError(f"The database does not answer: {said(error)}")


# A change of a table waits for transactions that read the table, and later transactions wait behind
# the change. The change therefore gives up after `LOCK_TIMEOUT`, lets them pass, and tries again.


T = TypeVar("T")

LOCK_TIMEOUT: Final = "1s"
PAUSE_S: Final = (0.5, 2.0)
# A deadlock is handled like a lock timeout: the schema change gives up and tries again.
IN_USE: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

_log = structlog.get_logger(__name__)


class TablesInUseError(BusyError):
    """The tables were locked in every attempt."""

    code = "database.tables_in_use"


def give_up_soon(connection: Connection) -> None:
    """Limit the time for which the statements of a transaction wait for a lock."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))


def patiently(do: Callable[[], T], patience_s: float) -> T:
    """Run a transaction, and repeat it while its tables are locked.

    Raises
    ------
    TablesInUseError
    """
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return do()
        except OperationalError as error:
            _pause_where_tables_are_in_use(error, until_s, patience_s)


def _pause_where_tables_are_in_use(
    error: OperationalError, until_s: float, patience_s: float
) -> None:
    """Pause before the next attempt; raise other errors, and raise if the patience is used up."""
    if not isinstance(error.orig, IN_USE):
        raise error
    if time.monotonic() > until_s:
        raise TablesInUseError(
            f"Tables were in use in every try of {patience_s:.0f} s; nothing of the next step was "
            "changed. Stop what holds them (pg_stat_activity shows it), and try again."
        ) from error
    _log.info("a table is in use, trying again", error=said(error))
    time.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads tries
