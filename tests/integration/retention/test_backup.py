"""A backup, restored into a new installation, contains everything."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, make_url, text

from app.access.audit import Action, list_entries, record
from app.access.projects import list_projects
from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres, running_url
from app.platform.settings import Settings
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.read import heatmap, report_json
from app.sessions.replays import stored_trace
from tests.support import postgres
from tests.support.command import paceline
from tests.support.project import build
from tests.support.reads import read
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from app.platform.container import Container


def _analyzed(container: Container) -> tuple[uuid.UUID, bytes]:
    stored = store(container, small_trace())
    assert execute(container, LeaseKeeper(container), stored.run)
    with container.uow() as tx:
        record(tx, container.principal, Action.PINNED, "something")
    return stored.session, read(container, report_json, stored.session)


def test_a_restored_installation_gives_the_same_report(
    container: Container,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, report = _analyzed(container)
    file = tmp_path / "paceline.dump"
    monkeypatch.setenv("PACELINE_DATABASE_URL", str(container.settings.database_url))
    done = paceline("backup", file)
    assert (done.returncode, done.stdout) == (0, "")
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.glob("*.part")) == []

    # A database that is not empty is not overwritten.
    done = paceline("restore", file)
    assert (done.returncode, "[backup.not_empty]" in done.stderr) == (1, True)

    with postgres.clone(postgres_url, template="template0") as url:
        monkeypatch.setenv("PACELINE_DATABASE_URL", url)
        damaged = tmp_path / "damaged.dump"
        damaged.write_bytes(file.read_bytes()[:-2000])
        assert paceline("restore", damaged).returncode == 1
        # The damaged backup restored nothing, so that the whole one finds the database empty.
        assert paceline("restore", file).returncode == 0
        other = build(container.settings.model_copy(update={"database_url": url}))
        assert read(other, report_json, session) == report
        assert (read(other, heatmap, session) == read(container, heatmap, session)).all()
        assert len(read(other, stored_trace, session).unpack()) == len(small_trace())
        assert read(other, list_entries, 9) == read(container, list_entries, 9)
        # The restored installation continues its numbers and ids.
        _analyzed(other)
        other.close()


def test_extensions_of_the_source_need_no_superuser_to_restore(
    container: Container, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, report = _analyzed(container)
    with container.engine.begin() as connection:
        # As an operator adds pg_stat_statements: only a superuser may create it.
        extension = connection.execute(
            text(
                "SELECT name FROM pg_available_extension_versions "
                "WHERE superuser AND NOT trusted AND requires IS NULL ORDER BY name LIMIT 1"
            )
        ).scalar_one()
        connection.execute(text(f'CREATE EXTENSION "{extension}"'))
        connection.execute(text(f"COMMENT ON EXTENSION \"{extension}\" IS 'of the operator'"))
    file = tmp_path / "paceline.dump"
    monkeypatch.setenv("PACELINE_DATABASE_URL", str(container.settings.database_url))
    assert paceline("backup", file).returncode == 0
    with postgres.clone(postgres_url, template="template0") as url:
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        owner = f"owner_{uuid.uuid4().hex}"
        with engine.connect() as connection:
            connection.execute(text(f"CREATE ROLE {owner}"))
            connection.execute(text(f"ALTER DATABASE {make_url(url).database} OWNER TO {owner}"))
        try:
            as_owner = {"options": f"-crole={owner}"}
            own = make_url(url).update_query_dict(as_owner).render_as_string()
            monkeypatch.setenv("PACELINE_DATABASE_URL", own)
            done = paceline("restore", file)
            assert done.returncode == 0, done.stderr
            other = build(container.settings.model_copy(update={"database_url": own}))
            assert read(other, report_json, session) == report
            other.close()
        finally:
            with engine.connect() as connection:
                connection.execute(text(f"DROP OWNED BY {owner} CASCADE"))
                connection.execute(
                    text(f"ALTER DATABASE {make_url(url).database} OWNER TO CURRENT_USER")
                )
                connection.execute(text(f"DROP ROLE {owner}"))
            engine.dispose()


def test_an_embedded_installation_is_backed_up_while_it_runs(
    open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_dir / "first", open_dir / "second"
    file = open_dir / "paceline.dump"
    monkeypatch.delenv("PACELINE_DATABASE_URL", raising=False)
    monkeypatch.setenv("PACELINE_DATA_DIR", str(first))
    # A wide terminal, in which no cell is wrapped.
    monkeypatch.setenv("COLUMNS", "300")
    with EmbeddedPostgres(first, durable=False) as server:
        migrate.upgrade(server.url)
        assert running_url(first) == server.url
        assert paceline("backup", file).returncode == 0
        # `paceline doctor` works while the server runs.
        assert "not configured; blobs: 0 there, 0 in the database" in paceline("doctor").stdout
        # A running server would not notice that its data are replaced.
        assert "[instance.running]" in paceline("restore", file).stderr
    assert running_url(first) is None

    monkeypatch.setenv("PACELINE_DATA_DIR", str(second))
    done = paceline("restore", file)
    assert (done.returncode, done.stderr) == (0, "restored, and at the schema of this version\n")
    with EmbeddedPostgres(second, durable=False) as server:
        container = build(Settings(database_url=server.url, data_dir=second))
        with container.everywhere().reading() as tx:
            assert [project.name for project in list_projects(tx)] == ["default"]
        container.close()
