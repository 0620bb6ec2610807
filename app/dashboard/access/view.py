"""What the page of access shows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from app.access.principals import Right, Role
from app.dashboard.look.format import plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from app.services.access.audit import Entry
    from app.services.access.projects import ProjectView
    from app.services.access.tokens import TokenView

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
class AccessPage:
    """The page."""

    heading: str
    facts: Sequence[str]
    required: bool
    tokens_title: str
    tokens: Sequence[TokenView]
    entries_title: str
    entries: Sequence[Entry]
    projects_title: str
    projects: Sequence[ProjectView]
    roles: Sequence[RoleLine]


def access_page(  # noqa: PLR0913 - everything that is on it
    tokens: Sequence[TokenView],
    projects: Sequence[ProjectView],
    entries: Sequence[Entry],
    now: datetime,
    *,
    required: bool,
    provider: bool,
) -> AccessPage:
    """Return the page of access.

    Parameters
    ----------
    tokens : sequence of TokenView
    projects : sequence of ProjectView
    entries : sequence of Entry
        The newest first.
    now : datetime
    required : bool
        Whether everybody has to sign in.
    provider : bool
        Whether people may sign in at a provider.
    """
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
        "Sign-in required" if required else "Nobody signs in on this machine",
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
        entries_title="Latest entries of the audit log" if entries else "Nothing was done yet",
        entries=entries,
        projects_title=plural(len(projects), "project"),
        projects=projects,
        roles=[
            RoleLine(
                role.value.capitalize(),
                read=Right.READ in role.rights,
                operate=Right.OPERATE in role.rights,
                admin=Right.ADMIN in role.rights,
            )
            for role in Role
        ],
    )
