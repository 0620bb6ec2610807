"""Migrations wait for each other, and do not block readers or writers of a table."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from app.errors import StartupError
from app.platform.database import migrate
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from sqlalchemy import Engine


def test_two_migrations_at_once_make_one_schema(engine: Engine) -> None:
    failures: list[Exception] = []

    def upgrade() -> None:
        try:
            migrate.upgrade(engine.url)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert migrate.current_revision(engine) == migrate.expected_revision()


def test_a_table_that_is_in_use_blocks_no_one_and_is_changed_afterwards(engine: Engine) -> None:
    """A slow reader, the change that waits for it, and later readers that must not wait."""
    migrate.upgrade(engine.url)
    failures: list[Exception] = []

    def downgrade() -> None:
        try:
            migrate.downgrade(engine.url, "base")
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    waits = text(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'paceline migrate'"
        " AND wait_event_type = 'Lock' AND datname = current_database()"
    )
    thread = threading.Thread(target=downgrade)
    # Without a transaction, because a transaction keeps its first view of other sessions.
    watching = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as reader, watching.connect() as watcher:
        reader.execute(text("SELECT count(*) FROM session"))
        thread.start()
        wait_for(lambda: watcher.execute(waits).scalar_one(), "change that waits")
        with engine.connect() as other:
            # This query is queued behind the change; the change gives up its lock request, else
            # both would wait for the reader.
            other.execute(text("SELECT count(*) FROM session"))
        assert migrate.current_revision(engine) == migrate.expected_revision()
        reader.rollback()
    thread.join()
    assert failures == []
    assert migrate.current_revision(engine) is None


def test_who_never_lets_a_table_go_is_named_in_a_sentence(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(engine.url)
    monkeypatch.setattr(migrate, "PATIENCE_S", 0.0)
    with engine.connect() as reader:
        reader.execute(text("SELECT count(*) FROM session"))
        with pytest.raises(StartupError, match="Tables were in use"):
            migrate.downgrade(engine.url, "base")
    assert migrate.current_revision(engine) == migrate.expected_revision()
