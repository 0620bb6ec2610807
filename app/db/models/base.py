"""The base of all tables. Durable times are the database's own (`now()`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, LargeBinary, MetaData, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase


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
