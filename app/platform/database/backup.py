"""Back up the whole database into a file of ``pg_dump``, and restore it into an empty database.

The programs have the major version of the server, and come from PATH or from the wheel of the
embedded database. Passwords are passed in environment variables, which other accounts of the
machine cannot read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy import inspect, text
from sqlalchemy.engine import URL

from app.errors import PacelineError, StartupError
from app.platform.database import migrate
from app.platform.database.engine import database_url, make_engine
from app.platform.embedded import binaries


class BackupError(PacelineError):
    """A backup or a restore failed; no partial result was written."""

    code = "backup.failed"


def back_up(url: str, target: Path) -> None:
    """Write a snapshot of the whole database into a file, without stopping its users.

    Parameters
    ----------
    target : Path
        File that is replaced once the backup is complete; only its owner may read it.

    Raises
    ------
    BackupError
    """
    program = _program("pg_dump", url)
    part = target.with_name(f"{target.name}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
        _run([program, "--format=custom", "--no-owner", "--no-privileges", "--file", part], url)
        part.replace(target)
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def restore(url: str, source: Path) -> None:
    """Restore a backup into an empty database, all or nothing, and migrate the schema.

    Parameters
    ----------
    source : Path
        File that `back_up` wrote, on any machine, by this version or an earlier one.

    Raises
    ------
    BackupError
        ``backup.not_empty``: the database contains data that would be mixed with the backup.
    """
    engine = make_engine(url, application_name="paceline restore")
    try:
        tables = inspect(engine).get_table_names()
    finally:
        engine.dispose()
    if tables:
        raise BackupError(
            "The database is not empty. Restore into a new one: an empty database, or with "
            "PACELINE_DATA_DIR a data directory that is not there yet.",
            code="backup.not_empty",
        )
    program = _program("pg_restore", url)
    options = ["--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    with tempfile.NamedTemporaryFile("w", prefix="paceline-restore-") as contents:
        contents.write(_without_extensions(_run([program, "--list", source], url)))
        contents.flush()
        _run([program, *options, "--use-list", contents.name, source], url)
    migrate.upgrade(url)


def _without_extensions(contents: str) -> str:
    """Return the table of contents of a backup without the extensions of its database.

    The schema needs none. Those that an operator added, such as pg_stat_statements, may be created
    by a superuser only.
    """
    left_out = (" EXTENSION - ", " COMMENT - EXTENSION ")
    lines = contents.splitlines(keepends=True)
    return "".join(line for line in lines if not any(kind in line for kind in left_out))


def _program(name: str, url: str) -> Path:
    """Return the path of a PostgreSQL program of the server's major version.

    Raises
    ------
    BackupError
        No program of the server's major version was found.
    """
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            number = connection.execute(text("SHOW server_version_num")).scalar_one()
    finally:
        engine.dispose()
    major = int(number) // 10_000
    try:
        return binaries.bundled(major).program(name)
    except StartupError:
        pass
    on_path = shutil.which(name)
    if on_path is not None:
        said = subprocess.run(  # noqa: S603 - an argument list, no shell
            [on_path, "--version"], capture_output=True, text=True, check=False
        ).stdout
        if f") {major}." in said:
            return Path(on_path)
    raise BackupError(f"There is no {name} of PostgreSQL {major} on PATH, which the server is.")


def _run(command: list[str | Path], url: str) -> str:
    """Run a program on the database at `url` and return its output."""
    parsed: URL = database_url(url)
    environment = dict(os.environ)
    if parsed.password is not None:
        environment["PGPASSWORD"] = str(parsed.password)
    address = parsed.set(drivername="postgresql", password=None).render_as_string()
    done = subprocess.run(  # noqa: S603 - an argument list, no shell
        [*command, "--dbname", address],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(done.stderr.split())
        raise BackupError(f"{Path(command[0]).name} failed ({done.returncode}): {words[-500:]}")
    return done.stdout
