"""The tables of access as CSV."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from app.access.principals import Role
from app.dashboard.access.view import RoleLine, role_line
from app.dashboard.alerts.exports import COLUMNS, incident_cells
from app.dashboard.ui.csv_text import Table
from app.services.access.audit import Entry, list_entries
from app.services.access.people import list_people
from app.services.access.projects import ProjectView, list_projects
from app.services.access.tokens import TokenView, list_tokens
from app.services.alerts.everywhere import open_everywhere
from app.services.container import Container

# Entries of the log that are read at once, and that a file holds at most.
_BATCH: Final = 5_000
EXPORTED: Final = 100_000
# Incidents that are read at once.
BATCH: Final = 500


def _tokens(container: Container) -> Table:
    with container.everywhere().reading() as tx:
        return Table.of(TokenView, list_tokens(tx))


def _people(container: Container) -> Table:
    with container.everywhere().reading() as tx:
        found = list_people(tx)
    return Table(
        ("id", "name", "issuer", "roles", "created_at", "last_seen_at", "disabled_at"),
        (
            (
                *(one.id, one.name, one.issuer),
                "; ".join(f"{given.role} of {given.project or 'all'}" for given in one.roles),
                *(one.created_at, one.last_seen_at, one.disabled_at),
            )
            for one in found
        ),
    )


def _projects(container: Container) -> Table:
    with container.everywhere().reading() as tx:
        return Table.of(ProjectView, list_projects(tx))


def _roles(_container: Container) -> Table:
    return Table.of(RoleLine, map(role_line, Role))


def _audit(container: Container) -> Table:
    return Table.of(Entry, _entries(container))


def _entries(container: Container) -> Iterator[Entry]:
    """Return the log, each batch read in a transaction of its own."""
    before: int | None = None
    for _ in range(EXPORTED // _BATCH):
        with container.everywhere().reading() as tx:
            found = list_entries(tx, _BATCH, before=before)
        yield from found
        if len(found) < _BATCH:
            return
        before = found[-1].id


def incidents_csv(
    container: Container, project: str, known: Collection[int] | None = None
) -> Table:
    """Return the open incidents of all projects, of these, or of one."""
    return Table(("project", *COLUMNS), _incidents(container, project, known))


def _incidents(
    container: Container, project: str, known: Collection[int] | None
) -> Iterator[Sequence[object]]:
    for offset in count(0, BATCH):
        with container.everywhere().reading() as tx:
            found = open_everywhere(tx, BATCH, project=project, offset=offset, known=known)
        # What a job loses stands on its project's own list.
        yield from ((name, *incident_cells(row)) for name, row in found.rows)
        if len(found.rows) < BATCH:
            return


# File name → what makes it.
EXPORTS: Final[Mapping[str, Callable[[Container], Table]]] = {
    "tokens": _tokens,
    "people": _people,
    "projects": _projects,
    "roles": _roles,
    "audit": _audit,
}
