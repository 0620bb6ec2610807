"""Statements that are put together once, for what happens with each body that comes.

SQLAlchemy confines, hashes and adapts a statement whenever it is executed, which takes up to ten
times as long as the database takes for a small one. These are confined and compiled when they are
first executed; then only their values go to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVarTuple, cast

from sqlalchemy import bindparam
from sqlalchemy.orm import with_loader_criteria
from sqlalchemy.sql.dml import Insert

from app.db.models.base import OfProject
from app.db.scope import UnscopedError, driver_connection, refuse_bare_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import BindParameter, Dialect, Select
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.sql.dml import ReturningInsert

    from app.db.scope import ScopedSession

Ts = TypeVarTuple("Ts")

PROJECT: Final = "project_id"


class Prepared(Generic[*Ts]):
    """A statement about classes of tables, with a `bindparam` for each value that differs.

    It sees and writes rows of one project, as all statements of a transaction do. Only a query
    within an insert is not confined: it asks by the id of a row that another statement found.

    Parameters
    ----------
    statement : Select or Insert
        An insert returns rows. Of the columns that it does not name itself it takes those that it
        is first executed with.

    Raises
    ------
    UnscopedError
        If it names a table in place of its class.
    """

    def __init__(self, statement: Select[*Ts] | ReturningInsert[*Ts]) -> None:
        refuse_bare_tables(statement, about_classes=True)
        own: BindParameter[int] = bindparam(PROJECT)
        self._statement: Select[*Ts] | ReturningInsert[*Ts]
        if isinstance(statement, Insert):
            self._statement = statement.values({PROJECT: own})
        else:
            self._statement = statement.options(
                with_loader_criteria(
                    OfProject, lambda table: table.project_id == own, include_aliases=True
                )
            )
        self._compiled: _Compiled | None = None

    def rows(self, session: ScopedSession, **values: object) -> list[tuple[*Ts]]:
        """Execute it and return its rows.

        Parameters
        ----------
        session : ScopedSession
            Of the transaction.
        values
            Always the same names; `project_id` where the transaction is of all projects.

        Raises
        ------
        UnscopedError
            If it is of no project, or of another one than the transaction.
        """
        scope = session.project_id
        project_id = values.setdefault(PROJECT, scope)
        if project_id is None or scope not in {None, project_id}:
            raise UnscopedError(f"a statement of project {project_id} in the scope of {scope}")
        compiled = self._compiled
        if compiled is None:
            # Of two threads both may do so.
            dialect = session.get_bind().dialect
            compiled = self._compiled = _Compiled.of(self._statement, dialect, values)
        found = driver_connection(session).execute(
            compiled.text, compiled.given(values), prepare=True
        )
        return [cast("tuple[*Ts]", compiled.taken(row)) for row in found.fetchall()]


@dataclass(frozen=True, slots=True)
class _Compiled:
    statement: SQLCompiler
    text: str
    # What the driver gets of values, and what becomes of what it returns, where that differs.
    to_driver: Mapping[str, Callable[[Any], object]]
    from_driver: Mapping[int, Callable[[Any], object]]

    @classmethod
    def of(
        cls,
        statement: Select[*Ts] | ReturningInsert[*Ts],
        dialect: Dialect,
        values: Mapping[str, object],
    ) -> _Compiled:
        columns: list[str] | None = None
        if isinstance(statement, Insert):
            # Others are values of a query in it.
            columns = [name for name in values if name in statement.table.columns]
        compiled = statement.compile(dialect=dialect, column_keys=columns)
        to_driver = {
            name: bound.type.dialect_impl(dialect).bind_processor(dialect)
            for bound, name in compiled.bind_names.items()
        }
        from_driver = {
            at: column.type.dialect_impl(dialect).result_processor(dialect, None)
            for at, column in enumerate(statement.exported_columns)
        }
        return cls(
            compiled,
            compiled.string,
            {name: convert for name, convert in to_driver.items() if convert is not None},
            {at: convert for at, convert in from_driver.items() if convert is not None},
        )

    def given(self, values: dict[str, object]) -> dict[str, Any]:
        given = dict(self.statement.construct_params(values))
        for name, convert in self.to_driver.items():
            given[name] = convert(given[name])
        return given

    def taken(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.from_driver:
            return row
        taken = list(row)
        for at, convert in self.from_driver.items():
            taken[at] = convert(taken[at])
        return tuple(taken)
