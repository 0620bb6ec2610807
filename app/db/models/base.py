"""The base of all tables. Durable times are the database's own (`now()`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, ForeignKeyConstraint, LargeBinary, MetaData, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Declarative base with constraint names that migrations can address."""

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


class OfProject:
    """A table whose rows belong to a project each; `app.db.scope` confines what is asked of it.

    Its foreign keys carry the project, so that no row refers to one of another project; they
    follow a job that moves to another one.
    """

    project_id: Mapped[int] = mapped_column()


def in_project() -> ForeignKeyConstraint:
    """Return the reference of a row that belongs to nothing but its project."""
    return ForeignKeyConstraint(["project_id"], ["project.id"], ondelete="CASCADE")


def belongs_to(column: str, other: str) -> ForeignKeyConstraint:
    """Return the reference to a row of the same project, with which this one moves and goes.

    Parameters
    ----------
    other : str
        Table and key: ``session.id``.
    """
    table, _, key = other.partition(".")
    return ForeignKeyConstraint(
        ["project_id", column],
        [f"{table}.project_id", f"{table}.{key}"],
        onupdate="CASCADE",
        ondelete="CASCADE",
    )
