"""Saved views: named filters and orders of the fleet; anyone with a view's link can read it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlencode

from pydantic import Field
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError

from app.errors import ConflictError, NotFoundError
from app.jobs.models import SavedView
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import ActorKind, Principal
from app.web.lists import Listing, read

# Address parameters that a view keeps: all but the page and the tab.
KEPT: Final = ("q", "show", "owner", "label", "loss", "sort", "labels", "range", "from", "to")
MAX_NAME_CHARACTERS: Final = 60
MAX_QUERY_CHARACTERS: Final = 2000
# Largest number of views of one person in a project.
MOST_VIEWS: Final = 50


@dataclass(frozen=True, slots=True)
class View:
    """A saved view."""

    id: uuid.UUID
    name: str
    query: Annotated[str, Field(description="Parameters of the fleet's address.")]
    created_at: datetime


VIEWS: Final = Listing(
    View, ties=(func.lower(SavedView.name), SavedView.id.expression), model=SavedView
)


def query_of(text: str) -> str:
    """Return the address parameters that a view keeps, in a fixed order.

    Examples
    --------
    >>> query_of("?sort=-gpus&q=dense+34b&page=3&owner=")
    'q=dense+34b&sort=-gpus'
    """
    pairs = parse_qsl(text.removeprefix("?"), keep_blank_values=False)
    # PostgreSQL's text type cannot store NUL.
    given = {name: value.replace("\x00", "") for name, value in pairs}
    return urlencode({name: given[name] for name in KEPT if given.get(name)})


def owner_of(principal: Principal) -> str:
    """Return the owner of a principal's views; all users without sign-in share one owner."""
    if principal.kind is ActorKind.PERSON:
        return principal.name
    return f"token {principal.name}" if principal.kind is ActorKind.TOKEN else ""


def list_views(tx: Reads, principal: Principal) -> list[View]:
    """Return a person's own views, sorted by name."""
    return read(tx, VIEWS, SavedView.owner == owner_of(principal))


def shared_view(tx: Reads, view: uuid.UUID) -> View:
    """Return a view by id, independent of its owner.

    Raises
    ------
    NotFoundError
    """
    views = read(tx, VIEWS, SavedView.id == view)
    if not views:
        raise _no_view(view)
    return views[0]


def save_view(container: Container, name: str, query: str) -> View:
    """Save a filter and an order as a view.

    Raises
    ------
    ConflictError
        ``view.name_taken``, ``view.too_many``.
    """
    owner, made = owner_of(container.principal), uuid.uuid4()
    with container.uow() as tx:
        there = tx.session.execute(
            select(func.count()).select_from(SavedView).where(SavedView.owner == owner)
        ).scalar_one()
        if there >= MOST_VIEWS:
            raise ConflictError(
                f"A person has at most {MOST_VIEWS} views of a project: delete some first.",
                code="view.too_many",
            )
        tx.session.add(SavedView(id=made, owner=owner, name=name, query=query_of(query)))
        _write(tx, name)
        return shared_view(tx, made)


def change_view(
    container: Container, view: uuid.UUID, *, name: str | None, query: str | None
) -> View:
    """Change the name or the parameters of a view of the principal.

    Raises
    ------
    NotFoundError, ConflictError
        ``view.not_found``, ``view.name_taken``.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(SavedView).where(
                SavedView.id == view, SavedView.owner == owner_of(container.principal)
            )
        ).scalar()
        if row is None:
            raise _no_view(view)
        if name is not None:
            row.name = name
        if query is not None:
            row.query = query_of(query)
        _write(tx, row.name)
        return shared_view(tx, view)


def delete_view(container: Container, view: uuid.UUID) -> None:
    """Delete a view of the principal.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        gone = tx.session.execute(
            delete(SavedView)
            .where(SavedView.id == view, SavedView.owner == owner_of(container.principal))
            .returning(SavedView.id)
        ).scalar()
        if gone is None:
            raise _no_view(view)


def _write(tx: UnitOfWork, name: str) -> None:
    try:
        tx.session.flush()
    except IntegrityError as error:
        raise ConflictError(f"There is a view {name} already.", code="view.name_taken") from error


def _no_view(view: uuid.UUID) -> NotFoundError:
    return NotFoundError(f"There is no view {view}.", code="view.not_found")
