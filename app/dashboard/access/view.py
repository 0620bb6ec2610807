"""What the page of access shows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from app.access.principals import Principal, Right, Role
from app.auth.project_paths import prefix_of
from app.dashboard.ui.format import byte_size, count, listing, plural
from app.services.access.audit import Action
from app.services.usage.quotas import BYTES, QUOTAS, SESSIONS

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from app.services.access.audit import Entry
    from app.services.access.people import PersonView
    from app.services.access.projects import ProjectView
    from app.services.access.tokens import TokenView
    from app.services.usage.quotas import Quota, Use
    from app.settings import Settings

# Time enough to bring a new token to where the old one is.
SOON: Final = timedelta(days=8)


@dataclass(frozen=True, slots=True)
class RoleLine:
    """A role, and what it allows."""

    word: str
    read: bool
    operate: bool
    admin: bool


@dataclass(frozen=True, slots=True)
class PersonLine:
    """A user; `local` with a password of this server."""

    id: uuid.UUID
    name: str
    signs_in: str
    local: bool
    roles: str
    last_seen_at: datetime | None
    disabled: bool
    # why they can be neither disabled nor deleted; "" where they can
    kept: str


@dataclass(frozen=True, slots=True)
class ProjectLine:
    """A project, and what it has used of its quotas."""

    name: str
    quotas_url: str
    jobs: int
    tokens: int
    members: int
    sessions: str
    stored: str
    full: bool


@dataclass(frozen=True, slots=True)
class AccessPage:
    """The page."""

    heading: str
    facts: Sequence[str]
    required: bool
    tokens_title: str
    tokens: Sequence[TokenView]
    entries_title: str
    entries: Sequence[Entry]
    people_title: str
    people: Sequence[PersonLine]
    projects_title: str
    projects: Sequence[ProjectLine]
    roles: Sequence[RoleLine]


def access_page(  # noqa: PLR0913 - everything that is on it
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
        The newest first.
    now : datetime
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
    return AccessPage(
        heading=heading,
        facts=facts,
        required=required,
        tokens_title=f"{ending[0][1]} expires on {ending[0][0]:%d %B}: renew it"
        if ending
        else "Tokens",
        tokens=tokens,
        entries_title=_entries_title(entries),
        entries=entries,
        people_title=_people_title(people),
        people=[_person(person, _kept(person, people, valid, principal)) for person in people],
        projects_title=_projects_title(projects, uses, settings),
        projects=[_project(project, uses[project.id], settings) for project in projects],
        roles=[role_line(role) for role in Role],
    )


def role_line(role: Role) -> RoleLine:
    """Return what a role allows."""
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


def _people_title(people: Sequence[PersonView]) -> str:
    out = sum(person.disabled_at is not None for person in people)
    title = plural(len(people), "person", "people") if people else "No users yet"
    return f"{title}, {count(out)} disabled" if out else title


def _kept(
    person: PersonView,
    people: Sequence[PersonView],
    valid: Sequence[TokenView],
    principal: Principal,
) -> str:
    """Return why a user is neither disabled nor deleted here; "" where they can be."""
    if principal.is_person(person.full_name):
        return "you"
    others = any(one.administers for one in people if one.id != person.id)
    if person.administers and not others and not any(Right.ADMIN in one.rights for one in valid):
        return "the last administrator"
    return ""


def _person(person: PersonView, kept: str) -> PersonLine:
    roles = [f"{one.role} of {one.project or 'all projects'}" for one in person.roles]
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


def _project(project: ProjectView, use: Use, settings: Settings) -> ProjectLine:
    return ProjectLine(
        name=project.name,
        quotas_url=f"{prefix_of(project.name)}/quotas",
        jobs=project.jobs,
        tokens=project.tokens,
        members=project.members,
        sessions=_against(SESSIONS, use, settings, count),
        stored=_against(BYTES, use, settings, byte_size),
        full=_is_full(use, settings),
    )


def _against(quota: Quota, use: Use, settings: Settings, said: Callable[[int], str]) -> str:
    limit = quota.limit(settings)
    used = said(quota.used(use))
    return used if limit is None else f"{used} of {said(limit)}"
