"""A PostgreSQL for the tests: one server a run, one migrated template, clones of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

# Selects another PostgreSQL for the same tests (15 is the oldest that is supported).
BIN_DIR_VARIABLE = "PACELINE_TEST_POSTGRES_BIN"

TEMPLATE = "paceline_template"

# Every test copies and removes the thousand files of a database, which takes a third of the time in
# memory.
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own in it
ENOUGH_BYTES = 2 << 30


def start_server() -> tuple[EmbeddedPostgres, Path]:
    """Start a server without fsync; return it and the directory to remove after its stop."""
    # Not pytest's temporary directory: root's is closed to the account that runs the server.
    directory = Path(tempfile.mkdtemp(prefix="paceline-test-", dir=_fast_directory()))
    directory.chmod(0o711)
    given = os.environ.get(BIN_DIR_VARIABLE)
    server = EmbeddedPostgres(
        directory / "data", bin_dir=Path(given) if given else None, durable=False
    )
    try:
        server.start()
        _make_template(server.url)
    except BaseException:
        stop_server(server, directory)
        raise
    return server, directory


def _fast_directory() -> Path | None:
    """Return a directory in memory, or None if there is none or it has little room."""
    if not IN_MEMORY.is_dir() or shutil.disk_usage(IN_MEMORY).free < ENOUGH_BYTES:
        return None
    return IN_MEMORY


def stop_server(server: EmbeddedPostgres, directory: Path) -> None:
    """Stop the server and remove its data."""
    server.stop()
    shutil.rmtree(directory)


@contextlib.contextmanager
def clone(server_url: str, *, template: str = TEMPLATE) -> Iterator[str]:
    """Yield the URL of a new database, made from a template in some 50 ms."""
    name = f"test_{uuid.uuid4().hex}"
    # The strategy FILE_COPY copies files; the other strategy would write all of them into the log.
    _administer(server_url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    try:
        yield _url_of(server_url, name)
    finally:
        # FORCE, because a connection that a test left open must not fail the next test.
        _administer(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def _make_template(server_url: str) -> None:
    _administer(server_url, f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
    migrate.upgrade(_url_of(server_url, TEMPLATE))


def _administer(server_url: str, statement: str) -> None:
    engine = create_engine(server_url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()


def _url_of(server_url: str, database: str) -> str:
    return make_url(server_url).set(database=database).render_as_string(hide_password=False)
