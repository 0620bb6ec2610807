"""Alembic's entry: runs the revisions on a connection handed in, or on PACELINE_DATABASE_URL."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from alembic import context

import app
from app.errors import StartupError
from app.platform.database.columns import Base
from app.platform.database.engine import make_engine
from app.platform.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection


# Every module that has tables must be imported for its tables to be compared.
_SUBJECTS: Final = Path(app.__path__[0])
_TABLES: Final = (
    "app.platform.blobs",
    "app.platform.database.projects",
    "app.platform.database.task_runs",
    *(f"app.{path.parent.name}.models" for path in _SUBJECTS.glob("*/models.py")),
    *(f"app.{path.parts[-3]}.models.tables" for path in _SUBJECTS.glob("*/models/tables.py")),
)
for _module in _TABLES:
    import_module(_module)


# What revision 0002 replaced. The program of revision 0001 uses it during an update;
# the first revision of the next version drops it.
LEAVING_TABLES: Final = {"alert_facts", "session_figure"}
LEAVING_COLUMNS: Final = {
    *("slowdown", "slowdown_low", "slowdown_high", "waste", "gpu_hours_lost", "discrepancy"),
    *("headline", "headline_slowdown", "headline_low", "headline_high", "headline_kind"),
    "headline_gpu_hours_lost",
}


def _is_compared(name: str | None, kind: str, of: Mapping[Any, str | None]) -> bool:
    """Return whether the models have to know of something in the database."""
    if kind == "column" and of.get("table_name") == "session":
        return name not in LEAVING_COLUMNS
    return kind != "table" or name not in LEAVING_TABLES


def run(connection: Connection) -> None:
    """Run what was asked for in one transaction: a revision that fails leaves nothing behind."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        include_name=_is_compared,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Use the connection of `app.platform.database.migrate`, or open one for `alembic`."""
    if context.is_offline_mode():
        raise StartupError("Migrations read the database they run on; --sql is not supported.")
    connection: Connection | None = context.config.attributes.get("connection")
    if connection is not None:
        run(connection)
        return
    url = Settings().database_url
    if url is None:
        raise StartupError("Set PACELINE_DATABASE_URL to the database that alembic is to work on.")
    engine = make_engine(url)
    with engine.connect() as own:
        run(own)
    engine.dispose()


main()
