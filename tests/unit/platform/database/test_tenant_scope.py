"""Which tables have rows of projects, and from which classes the parts of a statement are."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Executable, Table, delete, func, inspect, select, update
from sqlalchemy.orm import Mapper, aliased, instrumentation
from sqlalchemy.orm.util import AliasedInsp
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ColumnClause

from app.hosts.models import HostRepair
from app.jobs.models import Job
from app.platform.database import tenant_scope as scope
from app.platform.database.columns import Base, OfProject
from app.platform.database.projects import Project


def test_tables_of_projects_are_found_while_another_thread_imports_a_class() -> None:
    class Half(OfProject):
        """A class whose import has not finished, so that it is not mapped yet."""

    scope._is_of_project.cache_clear()
    instrumentation.register_class(Half, registry=Base.registry)
    try:
        assert scope._is_of_project(Job.__table__)
        assert scope._is_of_project(HostRepair.__table__)
        assert not scope._is_of_project(Project.__table__)
    finally:
        instrumentation.unregister_class(Half)  # type: ignore[no-untyped-call]


_JOBS = Job.__table__
_AGAIN = aliased(Job)

# Statements whose tables and columns all come from the class, its alias, or the bare table.
OF_THE_CLASS: dict[str, Executable] = {
    "the class": select(Job),
    "a column": select(Job.name),
    "an argument of a function": select(func.max(Job.id)),
    "a condition": select(func.max(Job.id)).where(Job.name == "a"),
    "an order": select(Job.name).order_by(Job.id.desc()),
    "a condition of an update": update(Job).values(name="b").where(Job.name == "a"),
    "a condition of a delete": delete(Job).where(Job.name == "a"),
}
OF_THE_TABLE: dict[str, Executable] = {
    "the table": select(_JOBS),
    "a column": select(_JOBS.c.name),
    "an argument of a function": select(func.max(_JOBS.c.id)),
    "a condition": select(func.max(_JOBS.c.id)).where(_JOBS.c.name == "a"),
    "an alias": select(_JOBS.alias().c.name),
    "a subquery": select(select(_JOBS).subquery().c.name),
}
ANNOTATION = (
    "SQLAlchemy's private annotation `parententity` has moved or changed its meaning: correct "
    "tenant_scope.entity_of, else statements may read rows of other projects"
)


@pytest.mark.parametrize("statement", OF_THE_CLASS.values(), ids=OF_THE_CLASS)
def test_tables_and_columns_of_a_mapped_class_are_from_that_class(statement: Executable) -> None:
    assert _entities(statement) == {inspect(Job)}, ANNOTATION
    scope.refuse_bare_tables(statement, about_classes=True)


def test_columns_of_an_alias_are_from_the_alias() -> None:
    statement = select(_AGAIN.id).where(_AGAIN.name == "a")
    assert _entities(statement) == {inspect(_AGAIN)}, ANNOTATION
    scope.refuse_bare_tables(statement, about_classes=True)


@pytest.mark.parametrize("statement", OF_THE_TABLE.values(), ids=OF_THE_TABLE)
def test_columns_of_a_bare_table_are_from_no_class(statement: Executable) -> None:
    assert _entities(statement) == {None}, ANNOTATION
    with pytest.raises(scope.UnscopedError, match="in place of its class"):
        scope.refuse_bare_tables(statement, about_classes=False)


def _entities(statement: Executable) -> set[Mapper[Any] | AliasedInsp[Any] | None]:
    """Return the entities of the columns of a statement, or of its table if it names no column."""
    parts = list(visitors.iterate(statement))  # type: ignore[arg-type]
    columns = [part for part in parts if isinstance(part, ColumnClause)]
    tables = [part for part in parts if isinstance(part, Table)]
    try:
        return {scope.entity_of(part) for part in columns or tables}
    except AttributeError as error:
        raise AssertionError(ANNOTATION) from error
