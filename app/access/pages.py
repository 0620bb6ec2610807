"""Pages of access: tokens, users, projects, audit log, incidents of all projects; CSV files."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response
from markupsafe import Markup

from app.access.audit import Action, Entry, list_entries
from app.access.guard import RequestContainer
from app.access.people import PersonView, list_people
from app.access.projects import ProjectView, list_projects
from app.access.tokens import TokenView, list_tokens
from app.incidents.everywhere import open_everywhere, readable_projects
from app.incidents.pages.everywhere import joined_page
from app.incidents.pages.list import COLUMNS, incident_cells
from app.platform.container import Container
from app.platform.identity import ActorKind, Principal, Right, Role
from app.platform.settings import Settings
from app.quotas.usage import BYTES, QUOTAS, SESSIONS, Quota, Use, uses
from app.web import html, moments
from app.web.format import byte_size, count, listing, plural
from app.web.pages import Pages
from app.web.project_paths import prefix_of
from app.web.tables import Drawn, Shown, Table, csv_file, drawn, one_of

# Remaining validity from which on the page warns about a token: enough time to replace the token
# wherever it is used.
SOON: Final = timedelta(days=8)


@dataclass(frozen=True, slots=True)
class RoleLine:
    """A role and its rights as a line of the page."""

    word: str
    read: bool
    operate: bool
    admin: bool


@dataclass(frozen=True, slots=True)
class PersonLine:
    """A user as a line of the page; `local` users have a password of this server."""

    id: uuid.UUID
    name: str
    signs_in: str
    local: bool
    roles: str
    last_seen_at: datetime | None
    disabled: bool
    # reason why the user can be neither disabled nor deleted; "" if there is none
    kept: str


@dataclass(frozen=True, slots=True)
class AccessPage:
    """The page of access."""

    heading: str
    facts: Sequence[str]
    tokens_title: str
    tokens: Sequence[TokenView]
    entries_title: str
    entries: Drawn
    people_title: str
    people: Sequence[PersonLine]
    projects_title: str
    projects: Drawn
    project_names: Sequence[str]
    roles: Sequence[RoleLine]


def access_page(  # noqa: PLR0913 - the parts of the page
    *,
    tokens: Sequence[TokenView],
    people: Sequence[PersonView],
    projects: Sequence[ProjectView],
    uses: Mapping[int, Use],
    entries: Sequence[Entry],
    now: datetime,
    settings: Settings,
    principal: Principal,
) -> AccessPage:
    """Return the page of access.

    Parameters
    ----------
    entries : sequence of Entry
        Latest entries of the audit log, newest first.
    """
    required, provider = settings.require_sign_in, settings.oidc_issuer is not None
    valid = [token for token in tokens if token.valid]
    ending = sorted(
        (token.expires_at, token.name)
        for token in valid
        if token.expires_at is not None and token.expires_at <= now + SOON
    )
    heading = "No token is valid" if not valid else f"{plural(len(valid), 'valid token')}"
    if ending:
        heading += f"; {len(ending)} expire{'s' if len(ending) == 1 else ''} within eight days"
    facts = [
        "Sign-in required" if required else "No sign-in on this machine",
        plural(len(projects), "project"),
    ]
    if provider:
        facts.append("sign-in by OpenID Connect; groups mapped to roles")
    disabled = sum(person.disabled_at is not None for person in people)
    people_title = plural(len(people), "person", "people") if people else "No users yet"
    if disabled:
        people_title += f", {count(disabled)} disabled"
    return AccessPage(
        heading=heading,
        facts=facts,
        tokens_title=f"{ending[0][1]} expires on {ending[0][0]:%d %B}: renew it"
        if ending
        else "Tokens",
        tokens=tokens,
        entries_title=_entries_title(entries),
        entries=audit_table(entries),
        people_title=people_title,
        people=[_person(person, _kept(person, people, valid, principal)) for person in people],
        projects_title=_projects_title(projects, uses, settings),
        projects=drawn(_project_columns(uses, settings), projects, csv="/access/projects.csv"),
        project_names=[project.name for project in projects],
        roles=[role_line(role) for role in Role],
    )


def role_line(role: Role) -> RoleLine:
    """Return the line of a role."""
    return RoleLine(
        role.value.capitalize(),
        read=Right.READ in role.rights,
        operate=Right.OPERATE in role.rights,
        admin=Right.ADMIN in role.rights,
    )


def _entries_title(entries: Sequence[Entry]) -> str:
    refused = [entry for entry in entries if entry.action == Action.REFUSED]
    if refused:
        most = max(refused, key=lambda entry: entry.count)
        requests = plural(sum(entry.count for entry in refused), "refused request")
        if len({entry.actor for entry in refused}) == 1:
            return f"{requests} came from {most.actor}"
        return f"{requests}, {count(most.count)} of them from {most.actor}"
    return "Latest entries of the audit log" if entries else "No entries yet"


def _kept(
    person: PersonView,
    people: Sequence[PersonView],
    valid: Sequence[TokenView],
    principal: Principal,
) -> str:
    """Return the reason why a user can be neither disabled nor deleted; "" if there is none."""
    if principal.is_person(person.full_name):
        return "you"
    others = any(other.administers for other in people if other.id != person.id)
    by_token = any(Right.ADMIN in token.rights for token in valid)
    if person.administers and not others and not by_token:
        return "the last administrator"
    return ""


def _person(person: PersonView, kept: str) -> PersonLine:
    roles = [f"{given.role} of {given.project or 'all projects'}" for given in person.roles]
    return PersonLine(
        id=person.id,
        name=person.name,
        signs_in=person.issuer or "with a password",
        local=person.issuer is None,
        roles=listing(roles) if roles else "no role",
        last_seen_at=person.last_seen_at,
        disabled=person.disabled_at is not None,
        kept=kept,
    )


def _projects_title(
    projects: Sequence[ProjectView], uses: Mapping[int, Use], settings: Settings
) -> str:
    full = [project.name for project in projects if _is_full(uses[project.id], settings)]
    if full:
        return f"Used up a quota: {listing(full)}"
    if len(projects) == 1:
        return "The project is within its quotas"
    return "All projects are within their quotas"


def _is_full(use: Use, settings: Settings) -> bool:
    limits = ((quota.used(use), quota.limit(settings)) for quota in QUOTAS)
    return any(limit is not None and used >= limit for used, limit in limits)


def _project_columns(uses: Mapping[int, Use], settings: Settings) -> tuple[Shown[ProjectView], ...]:
    def stored_sessions(project: ProjectView) -> Markup:
        used = _against(SESSIONS, uses[project.id], settings, count)
        return html.element(
            "a",
            used,
            href=f"{prefix_of(project.name)}/quotas",
            aria_label=f"{used}: quotas of {project.name}",
        )

    return (
        Shown("Project", lambda project: html.link(f"{prefix_of(project.name)}/", project.name)),
        Shown("Jobs", lambda project: count(project.jobs), classes="num"),
        Shown("Sessions", stored_sessions, classes="num"),
        Shown(
            "Stored",
            lambda project: _against(BYTES, uses[project.id], settings, byte_size),
            classes="num opt",
        ),
        Shown("Tokens", lambda project: count(project.tokens), classes="num opt"),
        Shown("Members", lambda project: count(project.members), classes="num opt"),
    )


def _against(quota: Quota, use: Use, settings: Settings, written: Callable[[int], str]) -> str:
    limit = quota.limit(settings)
    used = written(quota.used(use))
    return used if limit is None else f"{used} of {written(limit)}"


def audit_table(entries: Sequence[Entry]) -> Drawn:
    """Return the table of entries of the audit log."""
    return drawn(_AUDIT, entries, csv="/access/audit.csv", classes="plain audit")


_ACTORS: Final = {ActorKind.TOKEN: "token ", ActorKind.PEER: "unknown peer "}
_AUDIT: Final[tuple[Shown[Entry], ...]] = (
    Shown("When", lambda entry: moments.exact(entry.at), of_cells="muted"),
    Shown("Who", lambda entry: f"{_ACTORS.get(entry.actor_kind, '')}{entry.actor}"),
    Shown(
        "Did",
        lambda entry: (
            f"{entry.action}, {count(entry.count)} times" if entry.count > 1 else entry.action
        ),
    ),
    Shown(
        "What",
        lambda entry: (
            html.join((entry.subject, " ", html.note(entry.detail)))
            if entry.detail
            else entry.subject
        ),
    ),
    Shown(
        "Project",
        lambda entry: entry.project or ("none" if entry.actor_kind == ActorKind.PEER else "all"),
        classes="opt",
    ),
)


# Numbers of audit-log entries that one transaction reads, and that a file has at most.
_BATCH: Final = 5_000
EXPORTED: Final = 100_000
# Number of incidents that one transaction reads.
BATCH: Final = 500


def _tokens(container: Container) -> Table:
    with container.everywhere().reading() as tx:
        return Table.of(TokenView, list_tokens(tx))


def _people(container: Container) -> Table:
    with container.everywhere().reading() as tx:
        people = list_people(tx)
    return Table(
        ("id", "name", "issuer", "roles", "created_at", "last_seen_at", "disabled_at"),
        (
            (
                *(person.id, person.name, person.issuer),
                "; ".join(f"{given.role} of {given.project or 'all'}" for given in person.roles),
                *(person.created_at, person.last_seen_at, person.disabled_at),
            )
            for person in people
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
    """Return the entries of the audit log, each batch read in its own transaction."""
    before: int | None = None
    for _ in range(EXPORTED // _BATCH):
        with container.everywhere().reading() as tx:
            entries = list_entries(tx, _BATCH, before=before)
        yield from entries
        if len(entries) < _BATCH:
            return
        before = entries[-1].id


def incidents_csv(
    container: Container, project: str, project_ids: Collection[int] | None = None
) -> Table:
    """Return the table of the open incidents of all projects, filtered by name or id if given."""
    return Table(("project", *COLUMNS), _incidents(container, project, project_ids))


def _incidents(
    container: Container, project: str, project_ids: Collection[int] | None
) -> Iterator[Sequence[object]]:
    for offset in itertools.count(0, BATCH):
        with container.everywhere().reading() as tx:
            listed = open_everywhere(
                tx, BATCH, project=project, offset=offset, project_ids=project_ids
            )
        # The table has no loss: a job's loss is on the list of the job's own project.
        yield from ((name, *incident_cells(row)) for name, row in listed.rows)
        if len(listed.rows) < BATCH:
            return


# File name → function that returns the table of the file.
EXPORTS: Final[Mapping[str, Callable[[Container], Table]]] = {
    "tokens": _tokens,
    "people": _people,
    "projects": _projects,
    "roles": _roles,
    "audit": _audit,
}


# Numbers of audit-log entries on the page of access, and on the page of the audit log.
SHOWN: Final = 12
LISTED: Final = 200
# Largest number of incidents on a page; firing incidents come first.
INCIDENTS: Final = 500
# Path of the page of all incidents that the user may read, of any project.
EVERYWHERE: Final = "/incidents/everywhere"


def add_access_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of access to the dashboard."""

    @routes.get("/access")
    def access_route(container: RequestContainer) -> Response:
        everywhere = container.everywhere()
        with pages.reading(container) as (_, nav), everywhere.reading() as tx:
            page = access_page(
                tokens=list_tokens(tx),
                people=list_people(tx),
                projects=list_projects(tx),
                uses=uses(tx),
                entries=list_entries(tx, SHOWN),
                now=tx.now,
                settings=container.settings,
                principal=container.principal,
            )
            now = tx.now
        return pages.render(
            "access/page.html", nav, page=page, now=now, rights=list(Right), roles=list(Role)
        )

    @routes.get("/access/incidents")
    def incidents_route(
        container: RequestContainer, project: Annotated[str, Query()] = ""
    ) -> Response:
        # PostgreSQL's text type has no NUL.
        name = project.replace("\x00", "")
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            listed, now = open_everywhere(tx, INCIDENTS, project=name), tx.now
        page = joined_page(listed, "/access/incidents", now, administers=True)
        return pages.render("access/incidents.html", nav, page=page, now=now)

    # Registered before `/incidents/{incident}`, which would match this path, too.
    @routes.get(EVERYWHERE)
    def readable_route(
        container: RequestContainer, project: Annotated[str, Query()] = ""
    ) -> Response:
        name, project_ids = project.replace("\x00", ""), readable_projects(container.principal)
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            listed = open_everywhere(tx, INCIDENTS, project=name, project_ids=project_ids)
            now = tx.now
        page = joined_page(listed, EVERYWHERE, now, administers=False)
        return pages.render("access/incidents.html", nav, page=page, now=now)

    @routes.get(f"{EVERYWHERE}.csv")
    def readable_file_route(
        container: RequestContainer, project: Annotated[str, Query()] = ""
    ) -> Response:
        name, project_ids = project.replace("\x00", ""), readable_projects(container.principal)
        return csv_file("paceline-incidents.csv", incidents_csv(container, name, project_ids))

    @routes.get("/access/incidents.csv")
    def incidents_file_route(
        container: RequestContainer, project: Annotated[str, Query()] = ""
    ) -> Response:
        name = project.replace("\x00", "")
        return csv_file("paceline-incidents.csv", incidents_csv(container, name))

    @routes.get("/access/audit")
    def audit_route(container: RequestContainer, before: int | None = None) -> Response:
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            entries, now = list_entries(tx, LISTED, before=before), tx.now
        older = entries[-1].id if len(entries) == LISTED else None
        shown = audit_table(entries)
        return pages.render("access/audit.html", nav, entries=shown, older=older, now=now)

    @routes.get("/access/{name}.csv")
    def export_route(container: RequestContainer, name: str) -> Response:
        return csv_file(f"paceline-{name}.csv", one_of(EXPORTS, name)(container))
