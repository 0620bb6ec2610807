"""Connections: accepted URLs, and the settings of every connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from app.bootstrap import build
from app.errors import StartupError
from app.platform.database.engine import database_url as parse_url
from app.platform.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from app.platform.container import Container


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_usual_schemes_mean_psycopg(scheme: str) -> None:
    assert parse_url(f"{scheme}://user@host/name").drivername == "postgresql+psycopg"


@pytest.mark.parametrize("url", ["sqlite:///x.db", "mysql://host/name", "not a url"])
def test_other_databases_are_refused_in_words(url: str) -> None:
    with pytest.raises(StartupError, match="database URL"):
        parse_url(url)


def test_container_without_a_database_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="PACELINE_DATABASE_URL"):
        build(Settings(data_dir=tmp_path, database_url=None))


def test_connections_name_themselves_and_end_forgotten_transactions(container: Container) -> None:
    with container.uow() as tx:
        shown = {
            name: tx.session.connection().execute(text(f"SHOW {name}")).scalar_one()
            for name in ("application_name", "timezone", "idle_in_transaction_session_timeout")
        }
    assert shown == {
        "application_name": "paceline",
        "timezone": "UTC",
        "idle_in_transaction_session_timeout": "1min",
    }


def test_time_is_constant_within_a_transaction(container: Container) -> None:
    with container.uow() as tx:
        first = tx.now
        tx.session.connection().execute(text("SELECT pg_sleep(0.01)"))
        assert tx.now == first
        assert tx.session.connection().execute(text("SELECT now()")).scalar_one() == first
