"""The engine: one pool of connections to PostgreSQL a process."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from app.errors import StartupError

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
