"""What the database's refusals are called where people read them: one line, for logs and shells."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from app.errors import PacelineError

# A server with many addresses names the failure of each.
_CHARACTERS: Final = 300


class DatabaseUnavailableError(PacelineError):
    """The database does not answer, or does not let us in."""

    code = "database.unavailable"


def said(error: SQLAlchemyError) -> str:
    """Return what an error says in one line, without addresses of documentation."""
    driver = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(driver).split())[:_CHARACTERS]


def unavailable(error: BaseException) -> DatabaseUnavailableError | None:
    """Return the error for people where the database failed; None where it is another one."""
    if not isinstance(error, (OperationalError, InterfaceError)):
        return None
    return DatabaseUnavailableError(f"The database does not answer: {said(error)}")
