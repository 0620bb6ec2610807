"""What lets servers of version 0.1.0 go on until they are replaced; `end` ends it.

That version knows no projects: its rows do not say theirs, and it tells jobs, channels, rules and
plans apart by their names alone. While there is one project the database takes that too. From the
second one on every row has to say its project, and names are unique in a project only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from app.db.table_locks import give_up_soon, patiently

if TYPE_CHECKING:
    from sqlalchemy import Engine

# In the names of the constraints that revision 0011 leaves for it. They come after those of the new
# constraints in every order: where both are violated, the new one is what is reported.
MARK: Final = "_single_project_"

# Somebody waits for the answer.
PATIENCE_S: Final = 10.0

_DEFAULTS: Final = text(
    """
    SELECT format('ALTER TABLE %I ALTER COLUMN project_id DROP DEFAULT', table_name)
    FROM information_schema.columns
    WHERE table_schema = current_schema() AND column_name = 'project_id'
        AND column_default IS NOT NULL
    ORDER BY table_name
    """
)
_NAMES: Final = text(
    """
    SELECT format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', conrelid::regclass, conname)
    FROM pg_constraint
    WHERE connamespace = current_schema()::regnamespace AND strpos(conname, :mark) > 0
    ORDER BY conname
    """
)


def end(engine: Engine) -> None:
    """Have every row say its project from now on; does nothing where that is so.

    Parameters
    ----------
    engine : Engine
        Of the installation's database.

    Raises
    ------
    TablesInUseError
        Nothing is half done that the next call would not go on with.
    """
    with engine.begin() as connection:
        changes = [
            *connection.execute(_NAMES, {"mark": MARK}).scalars(),
            *connection.execute(_DEFAULTS).scalars(),
        ]
    for change in changes:
        # One table a transaction: none waits for another one's readers.
        patiently(partial(_change, engine, change), PATIENCE_S)


def _change(engine: Engine, change: str) -> None:
    with engine.begin() as connection:
        give_up_soon(connection)
        connection.execute(text(change))
