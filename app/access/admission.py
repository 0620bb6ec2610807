"""Admission: who shows a token or a browser's cookie, and which project is meant."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy import or_, select, update

from app.access.models import DEFAULT_PROJECT_ID, BrowserSession, Membership, Person, Token
from app.access.people import valid_token
from app.access.projects import no_project, pages_at
from app.access.tokens import create_token, digest, is_token, new_token, principal_of
from app.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    PacelineError,
    StartupError,
    UnauthenticatedError,
)
from app.platform.container import Container
from app.platform.database.projects import DEFAULT_PROJECT, Project
from app.platform.database.unit_of_work import Reads
from app.platform.identity import LOCAL, ActorKind, Principal, Refusal, Right, Role, full_name

# How exact the last use of a token is: a row for every chunk would be a write for every chunk.
USE_NOTED_EVERY: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request shows of itself."""

    token: str | None = None  # of the header ``Authorization``
    cookie: str | None = None  # of a browser
    project: str | None = None  # that is asked for; None leaves it to who asks
    peer: str = ""  # whose address it comes from
    # For what: ``POST /api/v1/plans``. Where it is empty, a refusal is nothing to note: a person
    # before a page, who is about to sign in.
    asks: str = ""


def admit_unasked(container: Container, shown: Shown) -> Container | None:
    """Return the container of a request that the database is not asked about; else None."""
    if container.settings.require_sign_in or shown.project is not None:
        return None
    return container.within(DEFAULT_PROJECT_ID, LOCAL)


def admit(container: Container, shown: Shown, need: Right) -> Container:
    """Return the container of a request: its project, and who asks.

    Raises
    ------
    UnauthenticatedError
        ``access.unauthenticated``: not authenticated.
    NotFoundError
        ``project.not_found``: there is none, or who asks has no business in it.
    ForbiddenError
        ``access.forbidden``.
    """
    known = admit_unasked(container, shown)
    if known is not None:
        return known
    principal, noted = LOCAL, None
    try:
        with container.everywhere().reading() as tx:
            if container.settings.require_sign_in:
                principal, noted = _principal(tx, shown)
            project_id, project = _project(tx, principal, shown.project)
        _require(principal, need, project_id, project)
    except (UnauthenticatedError, ForbiddenError, NotFoundError) as error:
        refused(container, shown, error, principal)
        raise
    if noted is not None:
        _note_use(container, noted)
    return replace(container.within(project_id, principal), pages_at=pages_at(project))


def _require(principal: Principal, need: Right, project_id: int, project: str) -> None:
    rights = principal.rights_in(project_id)
    if not rights:
        raise no_project(project)
    if need not in rights:
        raise ForbiddenError(
            f"{principal.name} may not do this in the project {project}: it needs {need}."
        )


def identify(container: Container, shown: Shown) -> Principal:
    """Return who asks, whatever the project.

    Raises
    ------
    UnauthenticatedError
    """
    if not container.settings.require_sign_in:
        return LOCAL
    try:
        with container.everywhere().reading() as tx:
            return _principal(tx, shown)[0]
    except UnauthenticatedError as error:
        refused(container, shown, error)
        raise


def refused(
    container: Container, shown: Shown, error: PacelineError, who: Principal = LOCAL
) -> None:
    """Note that a request was refused; an unknown one by the address."""
    if not shown.asks or not container.settings.require_sign_in:
        return
    kind, name = (ActorKind.PEER, shown.peer) if who is LOCAL else (who.kind, who.name)
    container.refusals.note(Refusal(kind, name, shown.asks, error.stable_code))


def _principal(tx: Reads, shown: Shown) -> tuple[Principal, Token | None]:
    if shown.token is not None:
        row = tx.session.execute(
            select(Token).where(Token.sha256 == digest(shown.token), valid_token(tx))
        ).scalar_one_or_none()
        if row is None:
            raise UnauthenticatedError("The token is unknown, revoked or expired.")
        stale = row.last_used_at is None or row.last_used_at < tx.now - USE_NOTED_EVERY
        return principal_of(row), row if stale else None
    if shown.cookie is not None:
        person = tx.session.execute(
            select(Person)
            .join(BrowserSession, BrowserSession.person_id == Person.id)
            .where(
                BrowserSession.sha256 == digest(shown.cookie),
                BrowserSession.expires_at > tx.now,
                Person.disabled_at.is_(None),
            )
        ).scalar_one_or_none()
        if person is not None:
            return person_principal(tx, person), None
    raise UnauthenticatedError(
        "The request is not signed in: sign in, or send a token as `Authorization: Bearer plc_…`."
    )


def person_principal(tx: Reads, person: Person) -> Principal:
    """Return who a person is, with the roles of now."""
    rows = tx.session.execute(
        select(Membership.project_id, Membership.role).where(Membership.person_id == person.id)
    ).all()
    everywhere = [Role(role).rights for project_id, role in rows if project_id is None]
    return Principal(
        ActorKind.PERSON,
        full_name(person.name, person.issuer),
        everywhere=frozenset[Right]().union(*everywhere),
        in_projects=tuple(
            (project_id, Role(role).rights) for project_id, role in rows if project_id is not None
        ),
    )


def _project(tx: Reads, principal: Principal, name: str | None) -> tuple[int, str]:
    """Return the project that is meant; without a name that of a token, or the default one."""
    known = principal.projects
    query = select(Project.id, Project.name).where(Project.deleted_at.is_(None))
    if name is not None:
        query = query.where(Project.name == name)
    elif known is not None and len(known) == 1:
        query = query.where(Project.id.in_(known))
    else:
        query = query.where(Project.name == DEFAULT_PROJECT)
    found = tx.session.execute(query).one_or_none()
    if found is None:
        raise no_project(name or DEFAULT_PROJECT)
    return found.id, found.name


def _note_use(container: Container, token: Token) -> None:
    # Asked for once more: several requests at once write it once.
    stale = or_(Token.last_used_at.is_(None), Token.last_used_at == token.last_used_at)
    with container.everywhere().uow() as tx:
        tx.session.execute(
            update(Token).where(Token.id == token.id, stale).values(last_used_at=tx.now)
        )


# ---- The first administrator's token, so that a new installation can be signed in to at once ----


NAME: Final = "first-administrator"
OWNER: Final = "PACELINE_ADMIN_TOKEN_FILE"
# The owner's alone.
MODE: Final = 0o600
# An empty file that stays empty was left by a process that was killed.
WRITTEN_WITHIN_S: Final = 2.0

_log = structlog.get_logger(__name__)


def make_first_token(container: Container) -> None:
    """Create token in `admin_token_file` valid; where there is no such file, write a new one.

    Done again it changes nothing. A token that was revoked stays so: a new one in the file, under
    a name that is free again, is how a lost one is replaced.

    Raises
    ------
    StartupError
        If the file cannot be read or written, or holds no token.
    """
    path = container.settings.admin_token_file
    if path is None:
        return
    secret = _in_file(path)
    everywhere = container.everywhere()
    if _is_known(everywhere, secret):
        return
    try:
        create_token(
            everywhere, name=NAME, rights=[Right.ADMIN], project=None, owner=OWNER, secret=secret
        )
    except ConflictError as error:
        # Another process may have made it at this moment.
        if _is_known(everywhere, secret):
            return
        raise StartupError(
            f"{path} holds another token than the one that is valid: revoke that one first, with "
            f"`paceline token revoke {NAME}`."
        ) from error
    _log.info("first administrator's token", file=str(path))


def _is_known(everywhere: Container, secret: str) -> bool:
    with everywhere.reading() as tx:
        known = select(Token.id).where(Token.sha256 == digest(secret))
        return tx.session.execute(known).first() is not None


def _in_file(path: Path) -> str:
    try:
        if not path.exists():
            # Another process may write it at this moment.
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
                with os.fdopen(descriptor, "w") as file:
                    file.write(f"{new_token()}\n")
        give_up_at = time.monotonic() + WRITTEN_WITHIN_S
        while not (secret := path.read_text().strip()) and time.monotonic() < give_up_at:
            time.sleep(0.01)
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"The token of PACELINE_ADMIN_TOKEN_FILE: {error}") from error
    if not is_token(secret):
        raise StartupError(
            f"{path} holds no token: plc_ and 43 characters of base64url. Delete it, and a new "
            "one is written."
        )
    return secret
