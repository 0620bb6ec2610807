"""Tokens: creation, lists, renewal, revocation; the secret is shown once, its digest stored.

A token is a prefix, by which secret scanners recognize it, and 256 random bits.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import Field
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.exc import IntegrityError

from app.access.audit import Action, record
from app.access.models import Token
from app.access.people import keep_administrator
from app.access.projects import project_id_of
from app.errors import ConflictError, Fault, InvalidAccessError, NotFoundError
from app.platform.container import Container
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import (
    IMPLIED,
    MAX_JOB_NAME_CHARACTERS,
    ActorKind,
    Principal,
    Right,
    is_plain_name,
    new_name_fault,
)
from app.web.lists import Column, Listing, read

PREFIX: Final = "plc_"
RANDOM_BYTES: Final = 32
# Number of a token's first characters that lists show: they hold 24 of its random bits, so that 232
# bits stay unknown.
SHOWN_CHARACTERS: Final = len(PREFIX) + 4


def new_token() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def is_token(text: str) -> bool:
    """Return whether a text has the form and the length of a token."""
    if not text.startswith(PREFIX) or not text.isascii():
        return False
    try:
        random = base64.b64decode(text[len(PREFIX) :] + "=", altchars=b"-_", validate=True)
    except binascii.Error:
        return False
    return len(random) == RANDOM_BYTES


def digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret of 256 random bits; the digest is stored, not the secret.

    A slow hash would add nothing: there are 2^256 secrets to try.
    """
    return hashlib.sha256(secret.encode()).digest()


LONGEST: Final = timedelta(days=3650)
MOST_PATTERNS: Final = 32
# Rights of a token for some jobs. A token with `operate` may change every job of its project, so
# that patterns would promise a limit that does not exist.
RIGHTS_FOR_JOBS: Final = frozenset({Right.INGEST, Right.READ})


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token without its secret; `begins` holds the token's first characters."""

    id: Annotated[uuid.UUID, Column(csv="id"), Field(exclude=True)]
    name: str
    begins: str
    owner: str
    rights: Annotated[tuple[Right, ...], Column(Token.scopes), Field(serialization_alias="scopes")]
    project: Annotated[str | None, Column(Project.name)]  # None: all projects
    jobs: tuple[str, ...] | None
    """Patterns of the jobs for which the token may send; null: all jobs of the project."""
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: Annotated[datetime | None, Column(csv="revoked_at"), Field(exclude=True)]
    # Whether the token is neither revoked nor expired.
    valid: Annotated[
        bool,
        Column(
            and_(
                Token.revoked_at.is_(None),
                or_(Token.expires_at.is_(None), Token.expires_at > func.now()),
            )
        ),
    ]


TOKENS: Final = Listing(
    TokenView,
    lambda query: query.outerjoin(Project, Project.id == Token.project_id),
    ties=(Token.name.expression,),
    model=Token,
)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token with its secret, which is not stored."""

    secret: str
    view: TokenView


def create_token(  # noqa: PLR0913 - the fields of a token
    container: Container,
    *,
    name: str,
    rights: Iterable[Right],
    project: str | None,
    jobs: Iterable[str] = (),
    expires: timedelta | None = None,
    owner: str | None = None,
    secret: str | None = None,
) -> NewToken:
    """Create a token and return it with its secret.

    Parameters
    ----------
    project : str or None
        None: all projects; a token that sends sessions needs a project.
    jobs : iterable of str, optional
        Names or patterns (`*`, `?`) of the jobs for which it may send; default: all jobs.
    expires : timedelta, optional
        Validity from now on.
    owner : str, optional
        Default: the principal who creates it.
    secret : str, optional
        An existing secret to use instead of a new one.

    Raises
    ------
    InvalidAccessError
        ``access.invalid``, with a fault for each field.
    NotFoundError
        There is no such project.
    ConflictError
        ``token.name_taken``.
    """
    wanted, patterns = frozenset(rights), sorted(set(jobs))
    _check(name, wanted, project, patterns, expires, secret)
    made = secret or new_token()
    try:
        with container.uow() as tx:
            project_id = None if project is None else project_id_of(tx, project)
            row = Token(
                id=uuid.uuid4(),
                project_id=project_id,
                name=name,
                sha256=digest(made),
                begins=made[:SHOWN_CHARACTERS],
                scopes=sorted(wanted),
                jobs=patterns or None,
                owner=owner or container.principal.name,
                created_at=tx.now,
                expires_at=None if expires is None else tx.now + expires,
            )
            tx.session.add(row)
            tx.session.flush()
            record(
                tx,
                container.principal,
                Action.CREATED,
                f"token {name}",
                detail=f"scopes {', '.join(sorted(wanted))}"
                + (f"; jobs {', '.join(patterns)}" if patterns else ""),
                project_id=project_id,
            )
            view = _view(tx, row)
    except IntegrityError as error:
        raise ConflictError(
            f"There is a token {name} already.",
            code="token.name_taken",
            faults=(Fault("taken", "Another token has this name.", column="name"),),
        ) from error
    return NewToken(made, view)


def list_tokens(tx: Reads, *, project_id: int | None = None) -> list[TokenView]:
    """Return the tokens that are not revoked, by name; `project_id`: only tokens of the project."""
    where: list[ColumnElement[bool]] = [Token.revoked_at.is_(None)]
    if project_id is not None:
        where.append(Token.project_id == project_id)
    return read(tx, TOKENS, *where)


def revoke_token(container: Container, name: str) -> None:
    """Revoke a token; from then on it is not accepted.

    Raises
    ------
    NotFoundError
    ConflictError
        ``access.last_administrator``.
    """
    with container.uow() as tx:
        row = _unrevoked(tx, name)
        row.revoked_at = tx.now
        tx.session.flush()
        keep_administrator(container, tx)
        record(tx, container.principal, Action.REVOKED, f"token {name}", project_id=row.project_id)


def renew_token(container: Container, name: str, expires: timedelta) -> TokenView:
    """Renew a valid token: set its validity from now on, and keep its secret.

    Raises
    ------
    InvalidAccessError, NotFoundError
    ConflictError
        ``token.expired``: an expired token may have leaked unnoticed; create a new one.
    """
    if not timedelta(0) < expires <= LONGEST:
        fault = Fault("expires", f"1 to {LONGEST.days} days.", column="expires_days")
        raise InvalidAccessError("The token cannot be renewed.", faults=(fault,))
    with container.uow() as tx:
        row = _unrevoked(tx, name)
        if row.expires_at is not None and row.expires_at <= tx.now:
            raise ConflictError(
                f"The token {name} has expired: revoke it and make a new one.",
                code="token.expired",
            )
        row.expires_at = tx.now + expires
        record(
            tx,
            container.principal,
            Action.RENEWED,
            f"token {name}",
            detail=f"until {row.expires_at:%Y-%m-%d}",
            project_id=row.project_id,
        )
        return _view(tx, row)


def _unrevoked(tx: UnitOfWork, name: str) -> Token:
    row = tx.session.execute(
        select(Token).where(Token.name == name, Token.revoked_at.is_(None)).with_for_update()
    ).scalar_one_or_none()
    if row is None:
        raise NotFoundError(f"There is no token {name}.")
    return row


def principal_of(row: Token) -> Principal:
    """Return the principal of a token."""
    rights = frozenset[Right]().union(*(IMPLIED[Right(scope)] for scope in row.scopes))
    if row.project_id is None:
        return Principal(ActorKind.TOKEN, row.name, everywhere=rights, token=row.id)
    return Principal(
        ActorKind.TOKEN,
        row.name,
        in_projects=((row.project_id, rights),),
        token=row.id,
        jobs=None if row.jobs is None else tuple(row.jobs),
    )


def _view(tx: Reads, row: Token) -> TokenView:
    [view] = read(tx, TOKENS, Token.id == row.id)
    return view


def _check(  # noqa: PLR0913, PLR0917 - the fields of a token
    name: str,
    rights: frozenset[Right],
    project: str | None,
    jobs: Collection[str],
    expires: timedelta | None,
    secret: str | None,
) -> None:
    name_fault = new_name_fault(name)
    faults = [] if name_fault is None else [name_fault]
    if not rights:
        faults.append(Fault("scopes", "At least one scope.", column="scopes"))
    if Right.INGEST in rights and project is None and Right.ADMIN not in rights:
        faults.append(
            Fault(
                "project", "A token that sends sessions belongs to one project.", column="project"
            )
        )
    if Right.ADMIN in rights and project is not None:
        faults.append(
            Fault("project", "An administrator's token is of all projects.", column="project")
        )
    if jobs and (Right.INGEST not in rights or not rights <= RIGHTS_FOR_JOBS):
        said = "A token for some jobs has the scopes ingest or ingest and read."
        faults.append(Fault("jobs", said, column="jobs"))
    if len(jobs) > MOST_PATTERNS or not all(
        is_plain_name(pattern, MAX_JOB_NAME_CHARACTERS) for pattern in jobs
    ):
        said = f"At most {MOST_PATTERNS} names of jobs, with * for any text and ? for a character."
        faults.append(Fault("jobs", said, column="jobs"))
    if expires is not None and not timedelta(0) < expires <= LONGEST:
        faults.append(Fault("expires", f"1 to {LONGEST.days} days.", column="expires_days"))
    if secret is not None and not is_token(secret):
        faults.append(Fault("secret", "plc_ and 256 random bits as base64url.", column="secret"))
    if faults:
        raise InvalidAccessError("The token cannot be made.", faults=tuple(faults))
