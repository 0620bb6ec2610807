"""Whose rows a transaction sees: one project's, or, for work of the installation itself, all.

Every statement that a session of SQLAlchemy sends passes `_confine`. There the project is added to
each table that rows of projects stand in, also in joins, aliases and subqueries, and to what is
inserted: a query that forgets its project finds nothing of another one. Foreign keys carry the
project as well, so that the database refuses a row between two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import Insert, event, inspect
from sqlalchemy.orm import Session, with_loader_criteria

from app.db.models.base import OfProject

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapper, ORMExecuteState

# Of a statement that counts over all projects and returns nothing of them but the number.
COUNTS_EVERYWHERE: Final = {"every_project": True}

_KEY: Final = "project_id"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a transaction may see and write.

    Parameters
    ----------
    project_id : int or None
        None for every project: what it inserts says its project itself.
    """

    project_id: int | None


EVERY_PROJECT: Final = Scope(None)


class ScopedSession(Session):
    """A session whose statements are confined to its scope."""

    def __init__(self, scope: Scope, **options: Any) -> None:  # noqa: ANN401 - of SQLAlchemy
        super().__init__(info={_KEY: scope.project_id}, **options)


@event.listens_for(ScopedSession, "do_orm_execute")
def _confine(state: ORMExecuteState) -> None:
    project_id: int | None = state.session.info[_KEY]
    if project_id is None or not state.is_orm_statement:
        return
    if state.is_insert:
        target = cast("Mapper[Any]", state.bind_mapper).class_
        if issubclass(target, OfProject):
            state.statement = cast("Insert", state.statement).values(project_id=project_id)
    elif (
        not state.execution_options.get("every_project")
        and not state.is_column_load
        and not state.is_relationship_load
    ):
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
