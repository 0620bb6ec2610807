"""The schema is migrated up, down and up again, and agrees with the models."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, insert, inspect, text
from sqlalchemy.exc import IntegrityError

from app.errors import StartupError
from app.platform.database import migrate
from app.platform.database.columns import Base
from app.platform.database.task_runs import TaskRun

if TYPE_CHECKING:
    from sqlalchemy import Engine


def _tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_up_down_up(engine: Engine) -> None:
    assert migrate.current_revision(engine) is None

    migrate.upgrade(engine.url)
    assert migrate.current_revision(engine) == migrate.expected_revision()
    assert _tables(engine) == set(Base.metadata.tables) | {"alembic_version"}

    migrate.downgrade(engine.url, "base")
    assert migrate.current_revision(engine) is None
    assert _tables(engine) == {"alembic_version"}

    migrate.upgrade(engine.url)
    assert migrate.current_revision(engine) == migrate.expected_revision()


def test_a_schema_of_another_version_is_left_alone(engine: Engine) -> None:
    migrate.upgrade(engine.url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'b1e7bf44'"))
    with pytest.raises(StartupError, match="revision b1e7bf44, which no version"):
        migrate.upgrade(engine.url)


def test_the_schema_of_a_later_version_stays_after_a_rollback(engine: Engine) -> None:
    migrate.upgrade(engine.url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    before = _tables(engine)
    migrate.upgrade(engine.url)
    assert (migrate.current_revision(engine), _tables(engine)) == ("0999", before)


def test_models_need_no_further_revision(engine: Engine) -> None:
    migrate.upgrade(engine.url)
    with engine.connect() as connection:
        migrate.check(connection)


def test_every_constraint_and_index_is_named_by_convention(engine: Engine) -> None:
    migrate.upgrade(engine.url)
    with engine.connect() as connection:
        names = connection.execute(
            text(
                """
                SELECT conrelid::regclass::text, conname FROM pg_constraint
                WHERE connamespace = 'public'::regnamespace AND contype IN ('p', 'u', 'f', 'c')
                UNION ALL
                SELECT tablename, indexname FROM pg_indexes WHERE schemaname = 'public'
                """
            )
        ).all()
    named = [(table, name) for table, name in names if table != "alembic_version"]
    assert len(named) > len(Base.metadata.tables)
    for table, name in named:
        prefix, _, rest = name.partition("_")
        assert prefix in {"pk", "uq", "fk", "ck", "ix"}
        assert rest == table or rest.startswith(f"{table}_")


def test_blob_parts_are_stored_as_they_are_and_vacuumed_on_their_own_terms(
    engine: Engine,
) -> None:
    migrate.upgrade(engine.url)
    with engine.connect() as connection:
        storage = connection.execute(
            text(
                "SELECT attstorage FROM pg_attribute"
                " WHERE attrelid = 'blob_part'::regclass AND attname = 'data'"
            )
        ).scalar_one()
        options = connection.execute(
            text(
                """
                SELECT main.reloptions || toast.reloptions FROM pg_class main
                JOIN pg_class toast ON toast.oid = main.reltoastrelid
                WHERE main.oid = 'blob_part'::regclass
                """
            )
        ).scalar_one()
    assert storage in {"e", b"e"}
    assert sorted(options) == [
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=100000",
        "autovacuum_vacuum_threshold=64",
    ]


@pytest.mark.parametrize(("leased", "token"), [(True, False), (False, True), (True, True)])
def test_only_a_running_task_run_is_claimed(engine: Engine, *, leased: bool, token: bool) -> None:
    migrate.upgrade(engine.url)
    statement = insert(TaskRun).values(
        project_id=1,
        id=uuid.uuid4(),
        kind="x",
        subject_id=uuid.uuid4(),
        attempt=0,
        state="queued",
        lease_until=func.now() if leased else None,
        claim_token=uuid.uuid4() if token else None,
    )
    with pytest.raises(IntegrityError, match="ck_task_run_claim"), engine.begin() as connection:
        connection.execute(statement)
