"""Every command with a database reports a missing migration in one line, with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import typer
from sqlalchemy import text

from app.cli.commands.program import app
from app.platform.database import migrate
from app.platform.database.engine import make_engine
from tests.support.command import paceline
from tests.support.migrations import LATER, with_later_revision

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Commands with their required arguments. `migrate` is the remedy, and `doctor` reports it in its
# table.
ON_THE_DATABASE: Final = {
    "serve": ("--port", "0"),
    "worker": (),
    "backup": ("file.dump",),
    "blobs move": (),
    "blobs check": (),
    "retention run": (),
    "token create": ("ci", "--scope", "read"),
    "token list": (),
    "token revoke": ("ci",),
    "token renew": ("ci",),
    "user create": ("ada",),
    "user list": (),
    "user password": ("ada",),
    "user role": ("ada", "--role", "reader"),
    "user disable": ("ada",),
    "user enable": ("ada",),
    "user delete": ("ada",),
    "project create": ("other",),
    "project delete": ("other",),
    "project move-job": ("job", "--from", "default", "--to", "other"),
}
WITHOUT_ONE: Final = {
    *("analyze", "convert", "synth", "plan", "mitigate", "hang", "pulse detect", "demo"),
}
# These commands create the schema, or check it.
OTHERS: Final = {"migrate", "restore", "doctor"}


def _commands(group: typer.core.TyperGroup, before: str = "") -> Iterator[tuple[str, bool]]:
    """Yield each command, and whether it calls a server."""
    for name, found in group.commands.items():
        if isinstance(found, typer.core.TyperGroup):
            yield from _commands(found, f"{before}{name} ")
        else:
            yield f"{before}{name}", any(option.name == "server" for option in found.params)


def _said(stderr: str) -> str:
    """Return the command's only line, without log lines of other tests' threads."""
    lines = [line for line in stderr.splitlines() if not line.startswith("20")]
    assert len(lines) == 1, stderr
    return lines[0]


def test_all_commands_are_sorted() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    local = {name for name, asks_a_server in _commands(group) if not asks_a_server}

    assert local == {*ON_THE_DATABASE, *OTHERS, *(WITHOUT_ONE & local)}


@pytest.mark.parametrize("command", ON_THE_DATABASE)
def test_a_database_that_was_never_migrated_is_refused(
    command: str, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", empty_database_url)
    monkeypatch.setenv("PACELINE_PASSWORD", "correct horse battery")

    done = paceline(*command.split(), *ON_THE_DATABASE[command])

    assert (done.returncode, done.stdout) == (1, "")
    assert _said(done.stderr) == (
        "paceline: The database was never migrated: run `paceline migrate`. [database.not_migrated]"
    )


@pytest.mark.parametrize("command", ["user list", "serve"])
def test_an_older_schema_is_refused_and_a_later_one_is_not(
    command: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", database_url)
    later = with_later_revision(tmp_path)
    head = migrate.expected_revision()

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "files", lambda _: later)
        done = paceline(*command.split(), *ON_THE_DATABASE[command])

    assert done.returncode == 1
    assert _said(done.stderr) == (
        f"paceline: The database is at revision {head}, and this version needs "
        f"{LATER}: run `paceline migrate`. [database.not_migrated]"
    )
    engine = make_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    migrate.require_schema(engine)
    engine.dispose()


def test_doctor_names_the_remedy(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", empty_database_url)
    monkeypatch.setenv("COLUMNS", "300")

    done = paceline("doctor")

    assert done.returncode == 1
    assert "run `paceline migrate`" in done.stdout
    assert "Traceback" not in done.stderr
