"""Limit a transaction to the rows of one project; work of the installation sees all projects.

Every statement of a SQLAlchemy session passes `_confine`; prepared statements, which bypass the
session, are confined in `unit_of_work`. The condition on the project is added to each table whose
rows belong to projects, also in joins, aliases and subqueries, and inserted rows get the project: a
query that omits its project returns no rows of another one. Statements to which the condition
cannot be added (bare tables instead of their classes, and text) are refused. Foreign keys include
the project as well, so that the database refuses a row that refers to another project.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final, cast

import psycopg
from sqlalchemy import Executable, Insert, Table, event, inspect
from sqlalchemy.orm import Mapper, ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.orm.util import AliasedInsp
from sqlalchemy.sql.elements import ColumnClause, TextClause
from sqlalchemy.sql.selectable import AliasedReturnsRows, SelectBase, TextualSelect
from sqlalchemy.sql.visitors import ExternallyTraversible

from app.platform.database.columns import OfProject

# Execution option of a statement that counts rows over all projects and returns only the number.
COUNTS_EVERYWHERE: Final = {"every_project": True}

_KEY: Final = "project_id"


class UnscopedError(RuntimeError):
    """A statement cannot be confined to its project: an error in the program."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The project, or all projects, whose rows a transaction may read and write."""

    project_id: int | None
    """Id of the project; None for all projects: an inserted row then has to name its project."""


EVERY_PROJECT: Final = Scope(None)


class ScopedSession(Session):
    """A session whose statements are confined to its scope."""

    def __init__(self, scope: Scope, **options: Any) -> None:  # noqa: ANN401 - of SQLAlchemy
        super().__init__(info={_KEY: scope.project_id}, **options)

    @property
    def project_id(self) -> int | None:
        """Return the project of this scope; None for all projects."""
        project_id: int | None = self.info[_KEY]
        return project_id


def driver_connection(session: Session) -> psycopg.Connection[tuple[Any, ...]]:
    """Return the psycopg connection of a session, within the session's open transaction.

    Statements on this connection are not confined: they must name the project themselves.
    """
    return cast(
        "psycopg.Connection[tuple[Any, ...]]", session.connection().connection.driver_connection
    )


@event.listens_for(ScopedSession, "do_orm_execute")
def _confine(state: ORMExecuteState) -> None:
    project_id: int | None = state.session.info[_KEY]
    if project_id is None or state.execution_options.get("every_project"):
        return
    if state.is_column_load or state.is_relationship_load:
        # A lazy load belongs to an object that a confined statement has loaded already.
        return
    if state.is_from_statement or isinstance(state.statement, (TextClause, TextualSelect)):
        raise UnscopedError("text says nothing of its project: ask by the classes of the tables")
    refuse_bare_tables(state.statement, about_classes=state.is_orm_statement)
    if not state.is_orm_statement:
        return
    if state.is_insert:
        insert = cast("Insert", state.statement)
        if insert.select is not None:
            raise UnscopedError("what is inserted is selected: select it first")
        if issubclass(cast("Mapper[Any]", state.bind_mapper).class_, OfProject):
            state.statement = insert.values(project_id=project_id)
    else:
        state.statement = state.statement.options(
            with_loader_criteria(
                OfProject,
                lambda table: table.project_id == project_id,
                include_aliases=True,
            )
        )


@event.listens_for(ScopedSession, "before_flush")
def _own(session: Session, *_rest: object) -> None:
    project_id: int | None = session.info[_KEY]
    if project_id is None:
        return
    for made in session.new:
        if isinstance(made, OfProject) and inspect(made).attrs.project_id.history.empty():
            made.project_id = project_id
    for written in (*session.new, *session.dirty):
        if isinstance(written, OfProject) and written.project_id != project_id:
            raise UnscopedError(f"a row of project {written.project_id} in project {project_id}")


def refuse_bare_tables(statement: Executable, *, about_classes: bool) -> None:
    """Raise an error if a statement reads a table to which the project's criterion is not added.

    The criterion is added to the mapped classes in a statement, and also restricts the columns of
    their tables.
    """
    parts = _parts(statement)
    entities = [entity_of(part) for part, _ in parts]
    covered = {entity.local_table for entity in entities if isinstance(entity, Mapper)}
    for part, within in parts:
        # The elements of a statement about mapped classes include the tables of these classes.
        table = part if isinstance(part, Table) and not about_classes else _bare_table_of(part)
        if table is None or not _is_of_project(table):
            continue
        if not about_classes or table not in covered or within:
            raise UnscopedError(
                f"the table {table.name} in place of its class (or SQLAlchemy no longer marks "
                f"classes as `entity_of` reads them): {statement}"
            )


def _parts(statement: Executable) -> list[tuple[ExternallyTraversible, bool]]:
    """Yield the elements of a statement, and whether each belongs to a subquery.

    Each element is visited once: a selected table is an element of each of its columns, and of
    their elements.
    """
    whole = cast("ExternallyTraversible", statement)
    left: list[tuple[ExternallyTraversible, bool]] = [(whole, False)]
    # The values keep the elements alive: Python reuses the id of an object that was freed.
    visited: dict[tuple[int, bool], tuple[ExternallyTraversible, bool]] = {}
    while left:
        part, within = left.pop()
        if (id(part), within) in visited:
            continue
        visited[id(part), within] = (part, within)
        # A subquery selects its own rows, which the criterion of an outer class does not cover.
        inside = within or (part is not whole and isinstance(part, SelectBase))
        left += [(child, inside) for child in part.get_children()]
    return list(visited.values())


def entity_of(part: ExternallyTraversible) -> Mapper[Any] | AliasedInsp[Any] | None:
    """Return the mapped class, or the alias of one, that a part of a statement comes from, or None.

    The answer is the annotation `parententity`, which the mapper sets on the tables and columns of
    mapped classes in the private `_annotations`; parts of bare tables lack it. No public interface
    of SQLAlchemy 2.1 gives it: `Select.column_descriptions` and `ORMExecuteState.all_mappers` list
    only selected entities, not those of conditions and subqueries; `entity_namespace` is missing
    from the columns of an alias in a condition; `QueryableAttribute.parent` belongs to attributes,
    which a statement does not keep. pyproject.toml therefore bounds the version of SQLAlchemy, and
    tests/unit/platform/database/test_tenant_scope.py fails if the annotation changes.
    """
    entity: object = part._annotations.get("parententity")  # noqa: SLF001 - see the docstring
    return entity if isinstance(entity, Mapper | AliasedInsp) else None


def _bare_table_of(part: ExternallyTraversible) -> Table | None:
    """Return the table of a column that does not come from a mapped class."""
    if not isinstance(part, ColumnClause) or entity_of(part) is not None:
        return None
    selected: object = part.table
    while isinstance(selected, AliasedReturnsRows):
        selected = selected.element
    return selected if isinstance(selected, Table) else None


@functools.cache
def _is_of_project(table: Table) -> bool:
    # Not read from the registry's mappers: another thread may be importing a class without a mapper
    # yet.
    return any(mapped.__dict__.get("__table__") is table for mapped in OfProject.__subclasses__())
