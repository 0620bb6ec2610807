"""Entry point of Alembic: runs revisions on a given connection, or on PACELINE_DATABASE_URL."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from alembic import context

import app
from app.errors import StartupError
from app.platform.database.columns import Base
from app.platform.database.engine import make_engine
from app.platform.settings import Settings

if TYPE_CHECKING:
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


def run(connection: Connection) -> None:
    """Run the requested revisions in one transaction, so that a failed revision changes nothing."""
    context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
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
