"""Changes of tables that are in use.

Such a change waits for who reads the table, and whoever comes after waits behind the change: it
gives up soon, lets them through, and tries again.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg
import structlog
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from app.db.faults import said
from app.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LOCK_TIMEOUT: Final = "1s"
PAUSE_S: Final = (0.5, 2.0)
# Two that wait for each other are no more than that either: the change is the one that yields.
IN_USE: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

_log = structlog.get_logger(__name__)


class TablesInUseError(BusyError):
    """Others used the tables in every try."""

    code = "database.tables_in_use"


def give_up_soon(connection: Connection) -> None:
    """Let no statement of a connection's transaction wait long for a table."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))


def patiently(do: Callable[[], T], patience_s: float) -> T:
    """Do something that is a transaction of its own, again and again where tables are in use.

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
    """Wait a while before the next try; raise where it is of no use, or was tried for too long."""
    if not isinstance(error.orig, IN_USE):
        raise error
    if time.monotonic() > until_s:
        raise TablesInUseError(
            f"Tables were in use in every try of {patience_s:.0f} s; nothing of the next step was "
            "changed. Stop what holds them (pg_stat_activity shows it), and try again."
        ) from error
    _log.info("a table is in use, trying again", error=said(error))
    time.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads tries
