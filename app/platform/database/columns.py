"""The base class of all tables, and column types: states, JSON documents, exact sums.

Stored times are times of the database (`now()`).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    ForeignKeyConstraint,
    Function,
    LargeBinary,
    MetaData,
    ScalarSelect,
    Select,
    SmallInteger,
    Text,
    cast,
    func,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.elements import SQLCoreOperations
from sqlalchemy.types import TypeDecorator

from app.analysis.json_text import plain


class Base(DeclarativeBase):
    """Declarative base; its naming convention lets migrations refer to constraints by name."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        datetime: DateTime(timezone=True),
        str: Text(),
        dict[str, Any]: JSONB(),
        bytes: LargeBinary(),
    }


# The generation of stored formats that a worker must read to claim a row; 1 in rows that version
# 0.2.0 writes: see `app.analysis.generation`.
Needs = Annotated[int, mapped_column(SmallInteger, server_default=text("1"))]


class OfProject:
    """A table of rows that belong to projects; `tenant_scope` limits statements to one project.

    The foreign keys include the project, so that no row refers to a row of another project; they
    cascade when a job moves to another project.
    """

    project_id: Mapped[int] = mapped_column()


def in_project() -> ForeignKeyConstraint:
    """Return the foreign key from a row to its project."""
    return ForeignKeyConstraint(["project_id"], ["project.id"], ondelete="CASCADE")


def belongs_to(column: str, other: str) -> ForeignKeyConstraint:
    """Return the foreign key to a row of the same project, with cascading moves and deletes.

    Parameters
    ----------
    other : str
        Table and key of the other row: ``session.id``.
    """
    table, _, key = other.partition(".")
    return ForeignKeyConstraint(
        ["project_id", column],
        [f"{table}.project_id", f"{table}.{key}"],
        onupdate="CASCADE",
        ondelete="CASCADE",
    )


S = TypeVar("S", bound=StrEnum)


class StateColumn(TypeDecorator[S]):
    """A column that holds a member of a state enumeration.

    Parameters
    ----------
    states : type of StrEnum
        Enumeration of the possible states.
    """

    impl = Text
    cache_ok = True

    def __init__(self, states: type[S]) -> None:
        super().__init__()
        self.states = states

    def process_bind_param(self, value: S | None, dialect: Dialect) -> str | None:
        """Return the text to store."""
        del dialect
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> S | None:
        """Return the state of a stored text."""
        del dialect
        return None if value is None else self.states(value)


def one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    """Return the check constraint that a column holds a member of the enumeration."""
    listed = ", ".join(f"'{state}'" for state in states)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def as_json(query: Select[*tuple[Any, ...]]) -> ScalarSelect[Any]:
    """Return the rows of a query as an ordered JSON array; null for no rows.

    Several queries joined into one statement read the same snapshot in one round trip.
    """
    rows = query.subquery()
    return select(func.jsonb_agg(func.to_jsonb(rows.table_valued()))).scalar_subquery()


def has_label(labels: Any, label: str) -> Any:  # noqa: ANN401 - a column of JSON, and a condition
    """Return the condition that labels contain ``name=value``, or a label ``name``."""
    name, has_value, value = label.partition("=")
    stored = labels[name.strip()].astext
    return stored == value.strip() if has_value else stored.is_not(None)


# Sums are integers in billionths of the unit. A value may be 9 · 10⁹: a million GPUs for a year in
# GPU-hours.
_PARTS: Final = 1e9


def total(
    values: SQLCoreOperations[float], where: ColumnElement[bool] | None = None
) -> ColumnElement[float]:
    """Return the exact sum of an expression over the matching rows; null for no rows.

    PostgreSQL adds floating-point numbers in the order of the rows, which differs in a restored
    database: the last digits of a sum would differ. Integers in billionths are added without
    rounding, and in a tenth of the time that decimals take.
    """
    added = parts(values)
    return whole(added if where is None else added.filter(where))


def parts(values: SQLCoreOperations[float]) -> Function[Any]:
    """Return the sum of an expression as an integer in billionths; `whole` converts it."""
    return func.sum(cast(values * _PARTS, BigInteger))


def whole(added: SQLCoreOperations[Any]) -> ColumnElement[float]:
    """Return a sum in billionths (`parts`) as a floating-point number in its unit."""
    return type_coerce(cast(added, Double) / _PARTS, Double)


T = TypeVar("T")


class JsonDocument(TypeDecorator[T]):
    """A column that holds a dataclass as JSON.

    Parameters
    ----------
    adapter : TypeAdapter
        Adapter of the dataclass that the column holds.
    """

    impl = JSONB(none_as_null=True)
    cache_ok = True

    def __init__(self, adapter: TypeAdapter[T]) -> None:
        super().__init__()
        self.adapter = adapter

    def column_expression(self, column: ColumnElement[T]) -> ColumnElement[T]:
        """Return the column as text, from which pydantic validates the dataclass directly."""
        return type_coerce(cast(column, Text), self)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> object:
        """Return the JSON to store."""
        del dialect
        return None if value is None else plain(value)

    def process_result_value(self, value: object, dialect: Dialect) -> T | None:
        """Return the dataclass of a stored document."""
        del dialect
        if isinstance(value, str):
            return None if value == "null" else self.adapter.validate_json(value)
        # Statements without a column expression, such as INSERT … RETURNING, return a parsed value.
        return None if value is None else self.adapter.validate_python(value)


class DumpedDocument(JsonDocument[T]):
    """A `JsonDocument` whose identifiers and times are stored as texts."""

    cache_ok = True

    def process_bind_param(self, value: T | None, dialect: Dialect) -> object:
        """Return the JSON to store."""
        del dialect
        return None if value is None else self.adapter.dump_python(value, mode="json")
