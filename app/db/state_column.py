"""Columns that hold a state: text in the database, a member of an enumeration outside."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from sqlalchemy import CheckConstraint, Dialect, Text
from sqlalchemy.types import TypeDecorator

S = TypeVar("S", bound=StrEnum)


class StateColumn(TypeDecorator[S]):
    """A column of states.

    Parameters
    ----------
    states : type of StrEnum
        Those that there are.
    """

    impl = Text
    cache_ok = True

    def __init__(self, states: type[S]) -> None:
        super().__init__()
        self.states = states

    def process_bind_param(self, value: S | None, dialect: Dialect) -> str | None:
        """Return what is stored."""
        del dialect
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> S | None:
        """Return what was stored."""
        del dialect
        return None if value is None else self.states(value)


def one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    """Return the constraint that a column holds one of the states."""
    listed = ", ".join(f"'{state}'" for state in states)
    return CheckConstraint(f"{column} IN ({listed})", name=column)
