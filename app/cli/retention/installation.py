"""The installation itself, for commands that work on its database without a server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from app.bootstrap import build
from app.db.embedded.server import EmbeddedPostgres, running_url
from app.db.migrate import require_schema, upgrade
from app.errors import InstanceRunningError
from app.system.logs import log_of_a_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.bootstrap import Container
    from app.settings import Settings


@contextlib.contextmanager
def opened(settings: Settings, name: str, *, migrated: bool = True) -> Iterator[Container]:
    """Yield the container of a command; what it logs goes to standard error.

    Parameters
    ----------
    migrated : bool
        Refuse a database that lacks the schema of this version.

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
    """As `opened`; where no database is configured the embedded one, also while it is served."""
    with (
        database(settings, also_running=True, migrate=True) as url,
        opened(settings.model_copy(update={"database_url": url}), name) as container,
    ):
        yield container


@contextlib.contextmanager
def database(settings: Settings, *, also_running: bool, migrate: bool = False) -> Iterator[str]:
    """Yield the address of the configured database; the embedded one is started where need be.

    Parameters
    ----------
    also_running : bool
        The embedded one may be served meanwhile.
    migrate : bool
        Bring the embedded one up to date if it is started here, as its server would.
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
