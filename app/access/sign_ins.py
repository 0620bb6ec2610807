"""Sign-ins with a password or by a provider, sessions of browsers, and refusals of requests."""

from __future__ import annotations

import functools
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import BoundedSemaphore
from typing import Final

from argon2.exceptions import VerifyMismatchError
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from app.access.admission import person_principal
from app.access.audit import Action, record
from app.access.guesses import buckets_for, pay, pay_back, prune_guesses, remember_browser
from app.access.models import BrowserSession, Membership, PendingSignIn, Person
from app.access.people import MAX_PASSWORD_CHARACTERS, hasher
from app.access.tokens import RANDOM_BYTES, digest
from app.errors import (
    BusyError,
    PacelineError,
    SignInError,
    TooManyGuessesError,
    UnauthenticatedError,
)
from app.platform.container import Container
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.identity import MAX_NAME_CHARACTERS, ActorKind, Principal, Refusal, Role, clipped

# Lifetime of a browser session: a working day with some margin; afterwards people sign in again.
SESSION_LASTS: Final = timedelta(hours=12)

# Largest number of concurrent password checks: each takes 64 MiB and 0.05 s of a core, and anyone
# can request one.
AT_ONCE: Final = 2
WAIT_S: Final = 5.0
_slots: Final = BoundedSemaphore(AT_ONCE)


@functools.cache
def _decoy() -> str:
    """Return a hash that is checked for unknown names, so that the answer takes equally long."""
    return hasher.hash(secrets.token_urlsafe(RANDOM_BYTES))


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A new session of a browser."""

    cookie: str  # only its digest is stored
    principal: Principal
    expires_at: datetime
    # Value of a second cookie, by which the server recognizes a browser with an earlier sign-in by
    # password; None for users of a provider.
    known_by: str | None = None


def sign_in(
    container: Container, name: str, password: str, peer: str = "", browser: str | None = None
) -> SignedIn:
    """Sign a user in by name and password, and return the new session.

    Parameters
    ----------
    browser : str, optional
        `SignedIn.known_by` of an earlier sign-in with the same browser.

    Raises
    ------
    UnauthenticatedError
        ``access.wrong_password``, also if there is no such user.
    TooManyGuessesError
        There were too many wrong passwords, also if there is no such user.
    BusyError
    """
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        person = tx.session.execute(
            select(Person).where(
                Person.name == name, Person.issuer.is_(None), Person.disabled_at.is_(None)
            )
        ).scalar_one_or_none()
        buckets = buckets_for(tx, name, peer, browser)
    # Only names of existing users are recorded: any other text in the name field may be a password.
    existing_name = None if person is None else person.name
    try:
        pay(container, buckets)
    except TooManyGuessesError as error:
        note_failed_sign_in(container, peer, error, existing_name)
        raise
    # The password is checked outside of a transaction, since hashing is slow on purpose. The decoy
    # hash is computed in any case, so that the first unknown name in a process takes no longer than
    # later ones.
    decoy = _decoy()
    stored = decoy if person is None or person.password is None else person.password
    try:
        is_correct = _is_correct(stored, password)
    except BusyError:
        with everywhere.uow() as tx:
            pay_back(tx, buckets)
        raise
    if person is not None and is_correct:
        with everywhere.uow() as tx:
            # During the check the user may have been deleted or disabled, or the password changed.
            unchanged = tx.session.execute(
                select(Person)
                .where(
                    Person.id == person.id,
                    Person.password == stored,
                    Person.disabled_at.is_(None),
                )
                .with_for_update()
            ).scalar_one_or_none()
            if unchanged is not None:
                pay_back(tx, buckets)
                known_by = remember_browser(
                    tx, unchanged.id, browser, secrets.token_urlsafe(RANDOM_BYTES)
                )
                return replace(_begin(tx, unchanged), known_by=known_by)
    wrong = UnauthenticatedError("The name or the password is wrong.", code="access.wrong_password")
    note_failed_sign_in(container, peer, wrong, existing_name)
    raise wrong


def _is_correct(stored: str, password: str) -> bool:
    if not _slots.acquire(timeout=WAIT_S):
        raise BusyError("Others are signing in; try again in a few seconds.")
    try:
        hasher.verify(stored, password[:MAX_PASSWORD_CHARACTERS])
    except VerifyMismatchError:
        return False
    else:
        return True
    finally:
        _slots.release()


def note_failed_sign_in(
    container: Container, peer: str, error: PacelineError, name: str | None = None
) -> None:
    """Record a failed sign-in for the audit log; `name` is the name of an existing user."""
    subject = "a sign-in" if name is None else f"a sign-in as {name}"
    container.refusals.note(Refusal(ActorKind.PEER, peer, subject, error.stable_code))


def sign_in_from_provider(
    container: Container,
    *,
    issuer: str,
    subject: str,
    name: str,
    roles: Mapping[str | None, Role],
) -> SignedIn:
    """Sign in a user of a provider with the roles of their current groups.

    Parameters
    ----------
    roles : mapping of str or None to Role
        Roles by project; the key None means all projects. Missing projects are ignored.

    Raises
    ------
    SignInError
        An administrator has disabled the user.
    """
    shown = clipped(name, MAX_NAME_CHARACTERS)
    with container.everywhere().uow() as tx:
        person_id = tx.session.execute(
            insert(Person)
            .values(id=uuid.uuid4(), name=shown, issuer=issuer, subject=subject)
            .on_conflict_do_update(index_elements=["issuer", "subject"], set_={"name": shown})
            .returning(Person.id)
        ).scalar_one()
        person = tx.session.get_one(Person, person_id)
        if person.disabled_at is not None:
            raise SignInError(f"{shown} may no longer sign in here.")
        tx.session.execute(delete(Membership).where(Membership.person_id == person_id))
        rows = tx.session.execute(
            select(Project.name, Project.id).where(
                Project.name.in_([project for project in roles if project is not None])
            )
        )
        project_ids = {row.name: row.id for row in rows}
        for project, role in roles.items():
            if project is None or project in project_ids:
                tx.session.add(
                    Membership(
                        person_id=person_id,
                        project_id=None if project is None else project_ids[project],
                        role=role,
                    )
                )
        tx.session.flush()
        return _begin(tx, person)


def sign_out(container: Container, cookie: str) -> None:
    """End the session of a browser, given its cookie."""
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
    """Delete expired browser sessions, pending sign-ins and guesses."""
    prune_guesses(tx)
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
    # A provider may reuse a name; only the subject identifies a user permanently.
    subject = None if person.subject is None else f"subject {person.subject}"
    record(tx, principal, Action.SIGNED_IN, "a browser", detail=subject)
    return SignedIn(cookie, principal, expires_at)


def write_refusals(container: Container) -> int:
    """Write the counted refusals into the audit log; return the number of written entries.

    Equal refusals are written as one entry with a count, so that no one can fill the log.

    Raises
    ------
    SQLAlchemyError
        The database does not answer: the counts are kept for the next call.
    """
    counted = container.refusals.take()
    if not counted:
        return 0
    try:
        with container.everywhere().uow() as tx:
            for refusal, count in counted.items():
                record(
                    tx,
                    Principal(refusal.kind, refusal.actor),
                    Action.REFUSED,
                    refusal.subject,
                    detail=refusal.reason,
                    count=count,
                )
    except SQLAlchemyError:
        for refusal, count in counted.items():
            container.refusals.note(refusal, count)
        raise
    return len(counted)
