"""Admission of requests: principal of a token or cookie, project, rights; the first token."""

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
    JOB_FORBIDDEN,
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
from app.platform.identity import (
    LOCAL,
    MAX_JOB_NAME_CHARACTERS,
    ActorKind,
    Principal,
    Refusal,
    Right,
    Role,
    clipped,
    full_name,
)

# Resolution of a token's time of last use: an exact time would cost a write for every chunk.
USE_NOTED_EVERY: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a request, its project, and its origin."""

    token: str | None = None  # value of the header ``Authorization``
    cookie: str | None = None  # cookie of a signed-in browser
    # Requested project; None: the project of the token, or the default project
    project: str | None = None
    job: str | None = None  # job that the address names
    peer: str = ""  # address of the client
    # Requested route, such as ``POST /api/v1/plans``; empty for a page, where a refusal leads to
    # the sign-in and is not recorded.
    route: str = ""


def admit_without_lookup(container: Container, credentials: Credentials) -> Container | None:
    """Return the container of a request if no database read is needed to admit it, else None."""
    if container.settings.require_sign_in or credentials.project is not None:
        return None
    return container.within(DEFAULT_PROJECT_ID, LOCAL)


def admit(container: Container, credentials: Credentials, need: Right) -> Container:
    """Return the container of a request, bound to its project and principal.

    Raises
    ------
    UnauthenticatedError
        ``access.unauthenticated``: not authenticated.
    NotFoundError
        ``project.not_found``: there is no such project, or the principal has no right in it.
    ForbiddenError
        ``access.forbidden``; ``access.job_forbidden``: the token is for other jobs.
    """
    local = admit_without_lookup(container, credentials)
    if local is not None:
        return local
    principal, used_token = LOCAL, None
    try:
        with container.everywhere().reading() as tx:
            if container.settings.require_sign_in:
                principal, used_token = _principal(tx, credentials)
            project_id, project = _project(tx, principal, credentials.project)
        _require_right(principal, need, project_id, project)
        if need is Right.INGEST and credentials.job is not None:
            _require_job(principal, credentials.job)
    except (UnauthenticatedError, ForbiddenError, NotFoundError) as error:
        refused(container, credentials, error, principal)
        raise
    if used_token is not None:
        # The condition is checked again, so that only one of several concurrent requests writes.
        stale = or_(Token.last_used_at.is_(None), Token.last_used_at == used_token.last_used_at)
        with container.everywhere().uow() as writes:
            writes.session.execute(
                update(Token)
                .where(Token.id == used_token.id, stale)
                .values(last_used_at=writes.now)
            )
    return replace(container.within(project_id, principal), pages_at=pages_at(project))


def _require_right(principal: Principal, need: Right, project_id: int, project: str) -> None:
    rights = principal.rights_in(project_id)
    if not rights:
        raise no_project(project)
    if need not in rights:
        raise ForbiddenError(
            f"{principal.name} may not do this in the project {project}: it needs {need}."
        )


def _require_job(principal: Principal, job: str) -> None:
    if not principal.may_send_for(job):
        patterns = ", ".join(principal.jobs or ())
        raise ForbiddenError(
            f"The token {principal.name} may send for the jobs {patterns}, not for "
            f"{clipped(job, MAX_JOB_NAME_CHARACTERS)}.",
            code=JOB_FORBIDDEN,
        )


def identify(container: Container, credentials: Credentials) -> Principal:
    """Return the principal of a request, independent of the project.

    Raises
    ------
    UnauthenticatedError
    """
    if not container.settings.require_sign_in:
        return LOCAL
    try:
        with container.everywhere().reading() as tx:
            return _principal(tx, credentials)[0]
    except UnauthenticatedError as error:
        refused(container, credentials, error)
        raise


def refused(
    container: Container, credentials: Credentials, error: PacelineError, who: Principal = LOCAL
) -> None:
    """Record a refused request for the audit log; unknown clients are recorded by address."""
    if not credentials.route or not container.settings.require_sign_in:
        return
    kind, name = (ActorKind.PEER, credentials.peer) if who is LOCAL else (who.kind, who.name)
    container.refusals.note(Refusal(kind, name, credentials.route, error.stable_code))


def _principal(tx: Reads, credentials: Credentials) -> tuple[Principal, Token | None]:
    """Return the principal of a request, and its token if the time of last use is outdated."""
    if credentials.token is not None:
        row = tx.session.execute(
            select(Token).where(Token.sha256 == digest(credentials.token), valid_token(tx))
        ).scalar_one_or_none()
        if row is None:
            raise UnauthenticatedError("The token is unknown, revoked or expired.")
        stale = row.last_used_at is None or row.last_used_at < tx.now - USE_NOTED_EVERY
        return principal_of(row), row if stale else None
    if credentials.cookie is not None:
        person = tx.session.execute(
            select(Person)
            .join(BrowserSession, BrowserSession.person_id == Person.id)
            .where(
                BrowserSession.sha256 == digest(credentials.cookie),
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
    """Return the principal of a person with their current roles."""
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
    """Return the named project; without a name the token's only project, or the default project."""
    own = principal.projects
    query = select(Project.id, Project.name).where(Project.deleted_at.is_(None))
    if name is not None:
        query = query.where(Project.name == name)
    elif own is not None and len(own) == 1:
        query = query.where(Project.id.in_(own))
    else:
        query = query.where(Project.name == DEFAULT_PROJECT)
    project = tx.session.execute(query).one_or_none()
    if project is None:
        raise no_project(name or DEFAULT_PROJECT)
    return project.id, project.name


NAME: Final = "first-administrator"
OWNER: Final = "PACELINE_ADMIN_TOKEN_FILE"
# File mode of the token's file: only its owner may read it.
MODE: Final = 0o600
# Time limit for another process to write the file; a file that stays empty belongs to a killed
# process.
WRITTEN_WITHIN_S: Final = 2.0

_log = structlog.get_logger(__name__)


def make_first_token(container: Container) -> None:
    """Create the administrator's token from `admin_token_file`; write a new one if it is missing.

    A second call changes nothing, and a revoked token stays revoked. To replace a lost token,
    revoke it and put a new one into the file.

    Raises
    ------
    StartupError
        The file cannot be read or written, or holds no token.
    """
    path = container.settings.admin_token_file
    if path is None:
        return
    secret = _read_or_write_token(path)
    everywhere = container.everywhere()
    if _is_known(everywhere, secret):
        return
    try:
        create_token(
            everywhere, name=NAME, rights=[Right.ADMIN], project=None, owner=OWNER, secret=secret
        )
    except ConflictError as error:
        # Another process may have created the same token at this moment.
        if _is_known(everywhere, secret):
            return
        raise StartupError(
            f"{path} holds another token than the one that is valid: revoke that one first, with "
            f"`paceline token revoke {NAME}`."
        ) from error
    _log.info("first administrator's token", file=str(path))


def _is_known(everywhere: Container, secret: str) -> bool:
    with everywhere.reading() as tx:
        stored = select(Token.id).where(Token.sha256 == digest(secret))
        return tx.session.execute(stored).first() is not None


def _read_or_write_token(path: Path) -> str:
    try:
        if not path.exists():
            # Another process may write the file at this moment.
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
