"""Projects: creation, lists, and look-ups by name."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.dialects.postgresql import insert

from app.access.audit import Action, record
from app.access.models import Membership, Token
from app.errors import ConflictError, Fault, InvalidAccessError, NotFoundError
from app.incidents.models.rules import DEFAULT_RULES, RULE
from app.incidents.models.tables import AlertRule
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.projects import DEFAULT_PROJECT, Project
from app.platform.database.unit_of_work import Reads
from app.web.lists import Column, Listing, read

# Valid names of projects, which are parts of addresses and the value of a request header.
NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def _counted(rows: type[Any], what: ColumnElement[int], *where: ColumnElement[bool]) -> Column:
    return Column(select(what).select_from(rows).where(*where).scalar_subquery())


@dataclass(frozen=True, slots=True)
class ProjectView:
    """A project and the numbers of its jobs, members and tokens."""

    id: Annotated[int, Column(csv="id"), Field(exclude=True)]
    name: str
    created_at: datetime
    jobs: Annotated[int, _counted(Job, func.count(), Job.project_id == Project.id)]
    members: Annotated[
        int,
        _counted(
            Membership,
            func.count(Membership.person_id.distinct()),
            (Membership.project_id == Project.id) | Membership.project_id.is_(None),
        ),
    ]
    tokens: Annotated[
        int,
        _counted(Token, func.count(), Token.project_id == Project.id, Token.revoked_at.is_(None)),
    ]


PROJECTS: Final = Listing(ProjectView, ties=(Project.name.expression,), model=Project)


def project_id_of(tx: Reads, name: str) -> int:
    """Return the id of a project, given its name.

    Raises
    ------
    NotFoundError
    """
    project_id = tx.session.execute(
        select(Project.id).where(Project.name == name, Project.deleted_at.is_(None))
    ).scalar()
    if project_id is None:
        raise no_project(name)
    return project_id


def project_name(tx: Reads) -> str:
    """Return the name of the project of a transaction."""
    query = select(Project.name).where(Project.id == tx.scope.project_id)
    return tx.session.execute(query).scalar_one()


def pages_at(name: str) -> str:
    """Return the path prefix of a project's pages: "" for the default project."""
    return "" if name == DEFAULT_PROJECT else f"/p/{name}"


def no_project(name: str) -> NotFoundError:
    """Return the error for a project that does not exist or that the caller may not see."""
    return NotFoundError(f"There is no project {name}.", code="project.not_found")


def create_project(container: Container, name: str) -> ProjectView:
    """Create a project with the alert rules of a new installation.

    Raises
    ------
    InvalidAccessError, ConflictError
        ``access.invalid``, ``project.name_taken``.
    """
    if NAME.fullmatch(name) is None:
        raise InvalidAccessError(
            "The project cannot be made.",
            faults=(
                Fault(
                    "name",
                    "1 to 63 lower-case letters, digits and hyphens, no hyphen at an end.",
                    column="name",
                ),
            ),
        )
    with container.uow() as tx:
        row = tx.session.execute(
            insert(Project)
            .values(name=name)
            .on_conflict_do_nothing(index_elements=[Project.name])
            .returning(Project.id, Project.created_at)
        ).one_or_none()
        if row is None:
            raise ConflictError(
                f"There is a project {name} already.",
                code="project.name_taken",
                faults=(Fault("taken", "Another project has this name.", column="name"),),
            )
        for rule in DEFAULT_RULES:
            tx.session.add(
                AlertRule(
                    id=uuid.uuid4(),
                    project_id=row.id,
                    name=rule.name,
                    document=RULE.dump_python(rule, mode="json", exclude={"id", "name"}),
                )
            )
        record(tx, container.principal, Action.CREATED, f"project {name}", project_id=row.id)
    return ProjectView(row.id, name, row.created_at, 0, 0, 0)


def list_projects(tx: Reads, ids: Collection[int] | None = None) -> list[ProjectView]:
    """Return projects, sorted by name; only the projects with these ids if given."""
    only = () if ids is None else (Project.id.in_(ids),)
    return read(tx, PROJECTS, Project.deleted_at.is_(None), *only)
