"""Who can administer the installation, and that someone always can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import or_, select

from app.access.principals import ActorKind, Right, Role
from app.db.models.access import Membership, Person, Token
from app.errors import ConflictError

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads
    from app.services.container import Container


def can_be_administered(container: Container) -> bool:
    """Return whether a token or a person could let others in."""
    with container.everywhere().reading() as tx:
        return has_administrator(tx)


def has_administrator(tx: Reads) -> bool:
    """Return whether the user may do everything; in a transaction of all projects."""
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
    """Refuse a change after which no one could administer; the command line still can.

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
    """Return whether a token is neither revoked nor expired."""
    return Token.revoked_at.is_(None) & or_(Token.expires_at.is_(None), Token.expires_at > tx.now)
