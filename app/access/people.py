"""Users: creation, lists, roles, passwords, disabling, deletion; one administrator always stays."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from argon2 import PasswordHasher
from sqlalchemy import ColumnElement, delete, or_, select
from sqlalchemy.dialects.postgresql import insert

from app.access.audit import Action, record
from app.access.models import BrowserSession, KnownBrowser, Membership, Person, Token
from app.access.projects import project_id_of
from app.errors import ConflictError, Fault, InvalidAccessError, NotFoundError
from app.platform.container import Container
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import ActorKind, Right, Role, full_name, new_name_fault


def can_be_administered(container: Container) -> bool:
    """Return whether a token or a person administers the installation."""
    with container.everywhere().reading() as tx:
        return has_administrator(tx)


def has_administrator(tx: Reads) -> bool:
    """Return whether a token or a person administers all projects; needs access to all rows."""
    token = select(Token.id).where(valid_token(tx), Token.scopes.contains([Right.ADMIN]))
    person = (
        select(Membership.id)
        .join(Person, Person.id == Membership.person_id)
        .where(
            Membership.role == Role.ADMINISTRATOR,
            Membership.project_id.is_(None),
            Person.disabled_at.is_(None),
        )
    )
    return any(tx.session.execute(query.limit(1)).first() for query in (token, person))


def keep_administrator(container: Container, tx: Reads) -> None:
    """Refuse a change after which no administrator is left, except changes by server commands.

    Raises
    ------
    ConflictError
        ``access.last_administrator``.
    """
    if container.principal.kind is not ActorKind.SYSTEM and not has_administrator(tx):
        raise ConflictError(
            "This installation would have no administrator left.",
            code="access.last_administrator",
        )


def valid_token(tx: Reads) -> ColumnElement[bool]:
    """Return the condition that a token is neither revoked nor expired."""
    return Token.revoked_at.is_(None) & or_(Token.expires_at.is_(None), Token.expires_at > tx.now)


MIN_PASSWORD_CHARACTERS: Final = 12
MAX_PASSWORD_CHARACTERS: Final = 1000

# The library's default parameters: those of RFC 9106 for machines with little memory, 64 MiB and 3
# passes.
hasher: Final = PasswordHasher()


@dataclass(frozen=True, slots=True)
class GivenRole:
    """A role of a user in a project; `project` is null for all projects."""

    project: str | None
    role: Role


@dataclass(frozen=True, slots=True)
class PersonView:
    """A user; `issuer` is null for a user with a password of this server."""

    id: uuid.UUID
    name: str
    issuer: str | None  # OpenID Connect provider of the user
    roles: tuple[GivenRole, ...]
    created_at: datetime
    last_seen_at: datetime | None
    disabled_at: datetime | None

    @property
    def full_name(self) -> str:
        """Return the name in the audit log, which includes the issuer."""
        return full_name(self.name, self.issuer)

    @property
    def administers(self) -> bool:
        """Return whether the user is an administrator of all projects and not disabled."""
        everywhere = GivenRole(None, Role.ADMINISTRATOR)
        return self.disabled_at is None and everywhere in self.roles


def create_person(
    container: Container, name: str, password: str, role: Role, project: str | None
) -> None:
    """Create a local user with a password and a role; `project` None: the role in all projects.

    Raises
    ------
    InvalidAccessError, NotFoundError, ConflictError
    """
    name_fault = new_name_fault(name)
    faults = [] if name_fault is None else [name_fault]
    faults += _password_faults(password)
    if faults:
        raise InvalidAccessError("The person cannot be added.", faults=tuple(faults))
    hashed = hasher.hash(password)
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


def list_people(tx: Reads) -> list[PersonView]:
    """Return people, sorted by name; needs a transaction of all projects."""
    roles: dict[uuid.UUID, list[GivenRole]] = {}
    given = (
        select(Membership.person_id, Project.name, Membership.role)
        .outerjoin(Project, Project.id == Membership.project_id)
        .order_by(Project.name.nulls_first())
    )
    for person_id, project, role in tx.session.execute(given):
        roles.setdefault(person_id, []).append(GivenRole(project, Role(role)))
    people = tx.session.execute(select(Person).order_by(Person.name, Person.issuer, Person.id))
    return [
        PersonView(
            id=row.id,
            name=row.name,
            issuer=row.issuer,
            roles=tuple(roles.get(row.id, ())),
            created_at=row.created_at,
            last_seen_at=row.last_seen_at,
            disabled_at=row.disabled_at,
        )
        for row in people.scalars()
    ]


def person_id_of(tx: Reads, name: str) -> uuid.UUID:
    """Return the id of a person, given the id, the name in the audit log, or the bare name.

    Raises
    ------
    NotFoundError
    ConflictError
        ``person.ambiguous``: several people have the name.
    """
    people = list_people(tx)
    matching = [person.id for person in people if name in {str(person.id), person.full_name}] or [
        person.id for person in people if name == person.name
    ]
    if not matching:
        raise _unknown(name)
    if len(matching) > 1:
        ids = ", ".join(map(str, matching))
        raise ConflictError(f"Several people are called {name}: {ids}.", code="person.ambiguous")
    return matching[0]


def set_password(container: Container, person_id: uuid.UUID, password: str) -> None:
    """Set a user's password, and sign all of their browsers out.

    Raises
    ------
    InvalidAccessError, NotFoundError
    ConflictError
        ``person.of_provider``.
    """
    faults = _password_faults(password)
    if faults:
        raise InvalidAccessError("The password cannot be used.", faults=tuple(faults))
    hashed = hasher.hash(password)
    with container.uow() as tx:
        person = _locked(tx, person_id)
        _refuse_of_provider(person, "a password")
        person.password = hashed
        _sign_out(tx, person_id)
        record(tx, container.principal, Action.CHANGED, _subject(person), detail="password")


def set_role(
    container: Container, person_id: uuid.UUID, role: Role | None, project: str | None
) -> None:
    """Set a user's role in a project, or in all projects; None removes it.

    Raises
    ------
    NotFoundError
    ConflictError
        ``person.of_provider``: the user's groups at the provider determine the role at each
        sign-in; ``access.last_administrator``.
    """
    with container.uow() as tx:
        person = _locked(tx, person_id)
        _refuse_of_provider(person, "roles")
        project_id = None if project is None else project_id_of(tx, project)
        tx.session.execute(
            delete(Membership).where(
                Membership.person_id == person_id,
                Membership.project_id.is_not_distinct_from(project_id),
            )
        )
        if role is not None:
            tx.session.add(Membership(person_id=person_id, project_id=project_id, role=role))
        tx.session.flush()
        keep_administrator(container, tx)
        record(
            tx,
            container.principal,
            Action.CHANGED,
            _subject(person),
            detail=f"{role or 'no role'} of {project or 'all projects'}",
            project_id=project_id,
        )


def set_disabled(container: Container, person_id: uuid.UUID, *, disabled: bool) -> None:
    """Disable or enable a user; a sign-in at a provider does not enable a disabled user.

    Raises
    ------
    NotFoundError
    ConflictError
        ``access.last_administrator``, ``access.oneself``.
    """
    with container.uow() as tx:
        person = _locked(tx, person_id)
        if (person.disabled_at is not None) == disabled:
            return
        _refuse_oneself(container, person)
        person.disabled_at = tx.now if disabled else None
        tx.session.flush()
        _sign_out(tx, person_id)
        keep_administrator(container, tx)
        action = Action.DISABLED if disabled else Action.ENABLED
        record(tx, container.principal, action, _subject(person))


def delete_person(container: Container, person_id: uuid.UUID) -> None:
    """Delete a user; the next sign-in at a provider creates a provider's user again.

    Raises
    ------
    NotFoundError
    ConflictError
        ``access.last_administrator``, ``access.oneself``.
    """
    with container.uow() as tx:
        person = _locked(tx, person_id)
        _refuse_oneself(container, person)
        subject = _subject(person)
        tx.session.delete(person)
        tx.session.flush()
        keep_administrator(container, tx)
        record(tx, container.principal, Action.DELETED, subject)


def _password_faults(password: str) -> list[Fault]:
    if MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        return []
    return [
        Fault(
            "password",
            f"{MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters.",
            column="password",
        )
    ]


def _locked(tx: UnitOfWork, person_id: uuid.UUID) -> Person:
    # Locks the rows of all administrators in a fixed order: if two administrators remove each
    # other, one request is refused.
    administrators = select(Membership.person_id).where(
        Membership.role == Role.ADMINISTRATOR, Membership.project_id.is_(None)
    )
    tx.session.execute(
        select(Person.id)
        .where((Person.id == person_id) | Person.id.in_(administrators))
        .order_by(Person.id)
        .with_for_update()
    ).all()
    person = tx.session.get(Person, person_id)
    if person is None:
        raise _unknown(str(person_id))
    return person


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"There is no person {name}.")


def _subject(person: Person) -> str:
    return f"person {full_name(person.name, person.issuer)}"


def _refuse_of_provider(person: Person, what: str) -> None:
    if person.issuer is not None:
        raise ConflictError(
            f"{person.name} has {what} at {person.issuer}, not here.", code="person.of_provider"
        )


def _sign_out(tx: UnitOfWork, person_id: uuid.UUID) -> None:
    for browsers in (BrowserSession, KnownBrowser):
        tx.session.execute(delete(browsers).where(browsers.person_id == person_id))


def _refuse_oneself(container: Container, person: Person) -> None:
    """Raise an error if users try to disable or delete themselves."""
    if container.principal.is_person(full_name(person.name, person.issuer)):
        raise ConflictError(
            "You cannot disable or delete yourself; another administrator can.",
            code="access.oneself",
        )
