"""The connection pool of a process, texts of the database's refusals, and patience with locks."""

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

from app.errors import BusyError, PacelineError, StartupError

DRIVER: Final = "postgresql+psycopg"

# A server that drops packets instead of refusing would hold a request for minutes otherwise.
CONNECT_TIMEOUT_S: Final = 10

# A process stopped in the middle of a transaction would keep its row locks, and with them every
# other worker that touches those rows, until the machine restarts.
IDLE_IN_TRANSACTION_TIMEOUT_MS: Final = 60_000

# Ingest (4), pages (a few of the 40 threads of the pool at a time) and the background threads of
# one process. Above it a caller waits; without a bound a burst of page views would use up the
# server's 100 connections and shut the workers out.
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
        If it is no URL, or one of another database.
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
        What ``pg_stat_activity`` calls the connections.
    """
    return create_engine(
        url if isinstance(url, URL) else database_url(url),
        pool_size=pool_size,
        max_overflow=POOL_OVERFLOW,
        # A restarted server would fail the first use of every pooled connection.
        pool_pre_ping=True,
        # Errors get into logs; what was stored does not belong there.
        hide_parameters=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": application_name,
            "options": (
                f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS}"
                " -c timezone=UTC"
                # Compiling a statement takes longer than any of ours, and estimates that are too
                # large start it.
                " -c jit=off"
            ),
        },
    )


# A server with many addresses names the failure of each.
_CHARACTERS: Final = 300


class DatabaseUnavailableError(PacelineError):
    """The database does not answer, or does not let us in."""

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


# Such a change waits for who reads the table, and whoever comes after waits behind the change: it
# gives up soon, lets them through, and tries again.


T = TypeVar("T")

LOCK_TIMEOUT: Final = "1s"
PAUSE_S: Final = (0.5, 2.0)
# Two that wait for each other are no more than that either: the change is the one that yields.
IN_USE: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

_log = structlog.get_logger(__name__)


class TablesInUseError(BusyError):
    """The tables were in use in every attempt."""

    code = "database.tables_in_use"


def give_up_soon(connection: Connection) -> None:
    """Limit the time that statements of a transaction wait for a lock."""
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
    """Wait before the next attempt; raise if the error is another one or the time is over."""
    if not isinstance(error.orig, IN_USE):
        raise error
    if time.monotonic() > until_s:
        raise TablesInUseError(
            f"Tables were in use in every try of {patience_s:.0f} s; nothing of the next step was "
            "changed. Stop what holds them (pg_stat_activity shows it), and try again."
        ) from error
    _log.info("a table is in use, trying again", error=said(error))
    time.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads tries
