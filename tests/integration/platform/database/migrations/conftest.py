"""A database without tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.platform.database.engine import make_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    made = make_engine(empty_database_url)
    yield made
    made.dispose()
