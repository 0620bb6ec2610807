"""People: local ones, those of a provider, and the browsers that they signed in with."""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Final

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from app.access.principals import Principal, Role
from app.access.tokens import RANDOM_BYTES, digest
from app.db.models.access import (
    BrowserSession,
    Membership,
    PendingSignIn,
    Person,
    Project,
)
from app.errors import BusyError, ConflictError, Fault, InvalidAccessError, UnauthenticatedError
from app.services.access.admission import person_principal
from app.services.access.audit import Action, record
from app.services.access.projects import project_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

MIN_PASSWORD_CHARACTERS: Final = 12
MAX_PASSWORD_CHARACTERS: Final = 1000
MAX_NAME_CHARACTERS: Final = 100
# A working day, with some room; after it people sign in again.
SESSION_LASTS: Final = timedelta(hours=12)

# The library's defaults are those of RFC 9106 for machines with little memory: 64 MiB, 3 passes.
_hasher: Final = PasswordHasher()
# Compared with where nobody has the name, so that the answer takes as long.
# Each takes 64 MiB and a twentieth of a second of a core: guessing is slow, for all together.
AT_ONCE: Final = 2
WAIT_S: Final = 5.0
_slots: Final = BoundedSemaphore(AT_ONCE)
_NOBODY: Final = _hasher.hash(secrets.token_urlsafe(RANDOM_BYTES))


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A browser that somebody just signed in with.

    Parameters
    ----------
    cookie : str
        For the browser; only its digest is stored.
    principal : Principal
    expires_at : datetime
    """

    cookie: str
    principal: Principal
    expires_at: datetime


def create_person(
    container: Container, name: str, password: str, role: Role, project: str | None
) -> None:
    """Make somebody who signs in with a password of ours; in all projects without one.

    Raises
    ------
    InvalidAccessError, NotFoundError, ConflictError
    """
    faults = []
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        faults.append(
            Fault("name", f"1 to {MAX_NAME_CHARACTERS} printable characters.", column="name")
        )
    if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        faults.append(
            Fault("password", f"At least {MIN_PASSWORD_CHARACTERS} characters.", column="password")
        )
    if faults:
        raise InvalidAccessError("The person cannot be added.", faults=tuple(faults))
    hashed = _hasher.hash(password)
    with container.uow() as tx:
        made = tx.session.execute(
            insert(Person)
            .values(id=uuid.uuid4(), name=name, password=hashed)
            .on_conflict_do_nothing()
            .returning(Person.id)
        ).scalar()
        if made is None:
            raise ConflictError(f"There is a person {name} already.", code="person.name_taken")
        project_id = None if project is None else project_id_of(tx, project)
        tx.session.add(Membership(person_id=made, project_id=project_id, role=role))
        record(
            tx,
            container.principal,
            Action.CREATED,
            f"person {name}",
            detail=f"{role} of {project or 'all projects'}",
            project_id=project_id,
        )


def sign_in(container: Container, name: str, password: str) -> SignedIn:
    """Sign somebody in with a name and a password.

    Raises
    ------
    UnauthenticatedError
        ``access.wrong_password``, whether there is such a person or not.
    """
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        person = tx.session.execute(
            select(Person).where(Person.name == name, Person.issuer.is_(None))
        ).scalar_one_or_none()
    # Outside of a transaction: it takes its time and memory on purpose.
    stored = _NOBODY if person is None or person.password is None else person.password
    if not _slots.acquire(timeout=WAIT_S):
        raise BusyError("Others are signing in; try again in a few seconds.")
    try:
        _hasher.verify(stored, password[:MAX_PASSWORD_CHARACTERS])
    except VerifyMismatchError:
        person = None
    finally:
        _slots.release()
    if person is None:
        raise UnauthenticatedError(
            "The name or the password is wrong.", code="access.wrong_password"
        )
    with everywhere.uow() as tx:
        return _begin(tx, tx.session.merge(person))


def sign_in_from_provider(
    container: Container,
    *,
    issuer: str,
    subject: str,
    name: str,
    roles: Mapping[str | None, Role],
) -> SignedIn:
    """Sign somebody in whom a provider vouches for, with the roles that their groups give now.

    Parameters
    ----------
    container : Container
    issuer, subject : str
        Who that is, for good.
    name : str
        What people call them.
    roles : mapping of str or None to Role
        By project; None for all. Projects that are not there count for nothing.
    """
    with container.everywhere().uow() as tx:
        person_id = tx.session.execute(
            insert(Person)
            .values(id=uuid.uuid4(), name=name, issuer=issuer, subject=subject)
            .on_conflict_do_update(index_elements=["issuer", "subject"], set_={"name": name})
            .returning(Person.id)
        ).scalar_one()
        person = tx.session.get_one(Person, person_id)
        tx.session.execute(delete(Membership).where(Membership.person_id == person_id))
        found = tx.session.execute(
            select(Project.name, Project.id).where(
                Project.name.in_([project for project in roles if project is not None])
            )
        )
        known = {row.name: row.id for row in found}
        for project, role in roles.items():
            if project is None or project in known:
                tx.session.add(
                    Membership(
                        person_id=person_id,
                        project_id=None if project is None else known[project],
                        role=role,
                    )
                )
        tx.session.flush()
        return _begin(tx, person)


def sign_out(container: Container, cookie: str) -> None:
    """End a browser's session; its cookie opens nothing any more."""
    with container.everywhere().uow() as tx:
        ended = tx.session.execute(
            delete(BrowserSession)
            .where(BrowserSession.sha256 == digest(cookie))
            .returning(BrowserSession.person_id)
        ).scalar()
        if ended is not None:
            person = tx.session.get_one(Person, ended)
            record(tx, person_principal(tx, person), Action.SIGNED_OUT, "a browser")


def prune_sign_ins(tx: UnitOfWork) -> None:
    """Delete browser sessions and sign-ins that are over."""
    tx.session.execute(delete(BrowserSession).where(BrowserSession.expires_at < func.now()))
    tx.session.execute(delete(PendingSignIn).where(PendingSignIn.expires_at < func.now()))


def _begin(tx: UnitOfWork, person: Person) -> SignedIn:
    principal = person_principal(tx, person)
    cookie = secrets.token_urlsafe(RANDOM_BYTES)
    expires_at = tx.now + SESSION_LASTS
    tx.session.add(
        BrowserSession(sha256=digest(cookie), person_id=person.id, expires_at=expires_at)
    )
    person.last_seen_at = tx.now
    record(tx, principal, Action.SIGNED_IN, "a browser")
    return SignedIn(cookie, principal, expires_at)
