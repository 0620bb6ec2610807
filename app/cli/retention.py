"""`paceline session`, `job`, `retention`, `backup`, `restore` and `blobs`.

A server changes sessions, jobs and retention; this process writes backups and moves blobs, on the
database in the settings.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from app.bootstrap import build
from app.cli.files import FileError
from app.cli.server import Server
from app.errors import InstanceRunningError
from app.platform.database.backup import back_up, restore
from app.platform.database.migrate import require_schema, require_tables, upgrade
from app.platform.embedded.server import EmbeddedPostgres, running_url
from app.platform.logs import log_of_a_command
from app.platform.settings import Settings
from app.retention.objects import Moved, References, move_to_database, move_to_store, references
from app.retention.rules import keep_to_rules_now

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from app.platform.container import Container


@contextlib.contextmanager
def opened(settings: Settings, name: str, *, migrated: bool = True) -> Iterator[Container]:
    """Yield the container of a command, which logs to standard error.

    Parameters
    ----------
    migrated : bool
        Whether to refuse a database that lacks the schema of this version.

    Raises
    ------
    NotMigratedError
    """
    log_of_a_command(json=settings.log_json, level=settings.log_level)
    container = build(settings, application_name=f"paceline {name}")
    try:
        if migrated:
            require_schema(container.engine)
        yield container
    finally:
        container.close()


@contextlib.contextmanager
def opened_also_embedded(settings: Settings, name: str) -> Iterator[Container]:
    """As `opened`; without a configured database the embedded database, even while it is in use."""
    with (
        database(settings, also_running=True, migrate=True) as url,
        opened(settings.model_copy(update={"database_url": url}), name) as container,
    ):
        yield container


@contextlib.contextmanager
def database(settings: Settings, *, also_running: bool, migrate: bool = False) -> Iterator[str]:
    """Yield the configured database's address; start the embedded database if necessary.

    Parameters
    ----------
    also_running : bool
        Whether a server may use the embedded database meanwhile.
    migrate : bool
        Whether to migrate the embedded database if it is started by this function, as its server
        would.
    """
    if settings.database_url is not None:
        yield settings.database_url
        return
    try:
        postgres = EmbeddedPostgres(settings.data_dir)
        postgres.start()
    except InstanceRunningError:
        url = running_url(settings.data_dir) if also_running else None
        if url is None:
            raise
        yield url
        return
    try:
        if migrate:
            upgrade(postgres.url)
        yield postgres.url
    finally:
        postgres.stop()


# A backup contains the secrets of channels as they are stored: encrypted.
KEYS: str = "The keys of channels' secrets are not in it: back up {where} separately.\n"


def make_backup(target: Path) -> None:
    """Write the database into a file; the installation may run meanwhile."""
    settings = Settings()
    with database(settings, also_running=True) as url:
        # A database with an older schema is accepted too, because a backup precedes a migration.
        with opened(
            settings.model_copy(update={"database_url": url}), "backup", migrated=False
        ) as container:
            require_tables(container.engine)
        back_up(url, target)
        outside = _references(settings, url)
    sys.stderr.write(f"{target}: {target.stat().st_size:,} bytes\n")
    if outside.blobs:
        sys.stderr.write(
            f"{outside.blobs} blobs of {outside.bytes:,} bytes are in the object store and not in "
            "it: keep the bucket as well.\n"
        )
    where = "PACELINE_SECRET_KEYS" if settings.secret_keys else settings.key_file
    sys.stderr.write(KEYS.format(where=where))


def restore_backup(source: Path) -> None:
    """Restore a file into an empty database; an embedded one must not be in use."""
    settings = Settings()
    with database(settings, also_running=False) as url:
        restore(url, source)
        outside = _references(settings, url, ask_store=True)
    sys.stderr.write("restored, and at the schema of this version\n")
    if outside.lost is None and outside.blobs:
        sys.stderr.write(
            f"{outside.blobs} blobs are in an object store: set PACELINE_BLOB_URL before it is "
            "served.\n"
        )
    elif outside.lost:
        sys.stderr.write(f"{outside.lost} blobs are not in the object store any more.\n")


def _references(settings: Settings, url: str, *, ask_store: bool = False) -> References:
    changed = {"database_url": url} if ask_store else {"database_url": url, "blob_url": None}
    with opened(settings.model_copy(update=changed), "backup", migrated=False) as container:
        return references(container)


def move(*, to_store: bool) -> None:
    """Move all blobs to their configured place and print how many."""
    shown_on = Console(stderr=True)
    with (
        opened_also_embedded(Settings(), "blobs") as container,
        Progress(TextColumn("{task.description}"), console=shown_on, transient=True) as progress,
    ):
        shown = progress.add_task("nothing moved yet")

        def tell(moved: Moved) -> None:
            progress.update(shown, description=f"{moved.blobs} blobs, {moved.bytes:,} bytes")

        moved = (move_to_store if to_store else move_to_database)(container, tell)
    sys.stderr.write(f"{moved.blobs} blobs moved, {moved.bytes:,} bytes\n")


def check() -> bool:
    """Print the number of objects of this installation; return whether none is missing."""
    with opened_also_embedded(Settings(), "blobs") as container:
        counts = references(container)
    sys.stdout.write(f"{counts.blobs} blobs, {counts.bytes:,} bytes in the object store\n")
    if counts.lost is None and counts.blobs:
        sys.stdout.write("not looked for: set PACELINE_BLOB_URL\n")
        return False
    if counts.lost:
        sys.stdout.write(f"{counts.lost} of them are not there, or not whole\n")
    return not counts.lost


def change_job(job: str, values: Mapping[str, object], *, server: str) -> None:
    """Change a job."""
    with Server(server) as api:
        api.exchange("PATCH", _path(job), dict(values))
    sys.stderr.write(f"{job} is changed\n")


def delete_job(job: str, *, server: str) -> None:
    """Delete a job."""
    with Server(server) as api:
        api.exchange("DELETE", _path(job), None)
    sys.stderr.write(f"{job} is deleted\n")


def finish(job: str, *, server: str) -> None:
    """Report the end of a job."""
    with Server(server) as api:
        api.exchange("POST", f"{_path(job)}/finish", None)
    sys.stderr.write(f"{job} has ended\n")


def _path(job: str) -> str:
    return f"/api/v1/jobs/{quote(job, safe='')}"


PATH: Final = "/api/v1/retention"
# Text in place of a number: the rule has no limit of this kind.
ALL: Final = "all"


def show(*, server: str) -> None:
    """Print number, size and rule of each kind of data."""
    with Server(server) as api:
        _print(api.get(PATH))


def change(kind: str, days: str | None, size: str | None, *, server: str) -> None:
    """Change the rule of a kind, and print the rules."""
    changed = {"days": days, "bytes": size}
    with Server(server) as api:
        rules = api.get(PATH)["rules"]
        if kind not in rules:
            raise typer.BadParameter(f"the kinds are {', '.join(rules)}")
        rules[kind] |= {name: _number(name, text) for name, text in changed.items() if text}
        _print(api.exchange("PUT", PATH, rules))


def run() -> None:
    """Apply the rules of all projects, and print how much was deleted."""
    with opened_also_embedded(Settings(), "retention") as container:
        removed = keep_to_rules_now(container)
    sys.stdout.write(f"removed: {removed}\n")


def _number(name: str, text: str) -> float | None:
    if text == ALL:
        return None
    try:
        # Fractions of a day are valid for some kinds; the server validates the value.
        return int(text) if text.isdecimal() or name == "bytes" else float(text)
    except ValueError as error:
        raise typer.BadParameter(f"--{name} is a number, or {ALL}") from error


def _print(state: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("Kind")
    for column in ("There", "Bytes", "Oldest", "Days kept", "Bytes kept"):
        table.add_column(column, justify="right")
    for kind, keep in state["rules"].items():
        use = state["uses"][kind]
        table.add_row(
            kind,
            f"{use['count']:,}",
            f"{use['bytes']:,}",
            (use["oldest"] or "")[:10],
            _limit(keep["days"]),
            _limit(keep["bytes"]),
        )
    Console().print(table)


def _limit(limit: int | None) -> str:
    return ALL if limit is None else f"{limit:,}"


# Number of sessions that one request queues.
AT_ONCE: Final = 100


def analyze_named(ids: Sequence[str], *, server: str) -> None:
    """Analyze sessions again and print the state of each."""
    with Server(server) as api:
        for session in ids:
            answer = api.post(f"/api/v1/sessions/{session}/analyze")
            sys.stdout.write(f"{session} {answer['state']}\n")


def analyze_many(
    states: Sequence[str], job: str | None, before: datetime | None, *, server: str
) -> None:
    """Analyze all sessions in these states again, and print their number.

    If the command is interrupted, the queued sessions remain queued, and the same command continues
    with the others.
    """
    asking: dict[str, Any] = {"states": list(states), "job": job, "limit": AT_ONCE}
    if before is not None:
        asking["before"] = before.replace(tzinfo=before.tzinfo or UTC).isoformat()
    queued = 0
    with Server(server) as api:
        while True:
            answer = api.exchange("POST", "/api/v1/sessions/analyze", asking)
            queued += answer["queued"]
            # Sessions that enter these states later are not included.
            asking["before"] = answer["before"]
            if not answer["left"] or not answer["queued"]:
                break
            sys.stderr.write(f"{queued} queued, {answer['left']} left\n")
    sys.stdout.write(f"sessions queued: {queued}\n")


def set_pins(ids: Sequence[str], *, pinned: bool, server: str) -> None:
    """Pin or unpin sessions."""
    with Server(server) as api:
        for session in ids:
            path = f"/api/v1/sessions/{session}/pin"
            api.exchange("PUT" if pinned else "DELETE", path, None)
            sys.stderr.write(f"{session} {'stays' if pinned else 'is not pinned'}\n")


def delete(ids: Sequence[str], *, server: str) -> None:
    """Delete sessions."""
    with Server(server) as api:
        for session in ids:
            api.exchange("DELETE", f"/api/v1/sessions/{session}", None)
            sys.stderr.write(f"{session} is deleted\n")


def export(path: str, target: Path, *, server: str) -> None:
    """Write an export of the server into a file, and print the file's path."""
    with Server(server) as api:
        try:
            size = api.download(path, target)
        except OSError as error:
            raise FileError(f"{target} cannot be written: {error}") from error
    sys.stderr.write(f"{size:,} bytes\n")
    sys.stdout.write(f"{target}\n")
