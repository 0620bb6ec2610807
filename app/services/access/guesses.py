"""Guesses of passwords, counted in the database: for all processes of an installation together.

A guess is paid for before the password is looked at, and paid back where it was right: any number
of requests at the same time get through no more of them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.access.guesses import Bucket, bucket_of_known, buckets_of
from app.access.tokens import digest
from app.db.models.access import GuessBucket, KnownBrowser, Person
from app.errors import TooManyGuessesError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from app.db.unit_of_work import Reads, UnitOfWork
    from app.services.container import Container

# How long a browser stays known without a sign-in, and how many a person has.
KNOWN_FOR: Final = timedelta(days=180)
MOST_KNOWN: Final = 16


def buckets_for(tx: Reads, name: str, peer: str, browser: str | None) -> tuple[Bucket, ...]:
    """Return what a guess counts in.

    Parameters
    ----------
    name : str
        Whose password is guessed, whether there is such a person or not.
    browser : str or None
        The cookie of a browser that was signed in with before.
    """
    if browser is not None:
        known = tx.session.execute(
            select(KnownBrowser.sha256)
            .join(Person, Person.id == KnownBrowser.person_id)
            .where(
                KnownBrowser.sha256 == digest(browser),
                KnownBrowser.seen_at > tx.now - KNOWN_FOR,
                Person.name == name,
                Person.issuer.is_(None),
            )
        ).scalar()
        if known is not None:
            return bucket_of_known(known)
    return buckets_of(name, peer)


def pay(container: Container, buckets: Sequence[Bucket]) -> None:
    """Count a guess.

    Raises
    ------
    TooManyGuessesError
        There were too many; this one is not counted.
    """
    with container.everywhere().uow() as tx:
        for bucket in buckets:
            allowance = bucket.allowance
            latest = func.greatest(GuessBucket.owed_until, tx.now)
            paid = tx.session.execute(
                insert(GuessBucket)
                .values(key=bucket.key, owed_until=tx.now + allowance.every)
                .on_conflict_do_update(
                    index_elements=["key"],
                    set_={"owed_until": latest + allowance.every},
                    where=GuessBucket.owed_until <= tx.now + allowance.ahead,
                )
                .returning(GuessBucket.key)
            ).scalar()
            if paid is None:
                owed_until = tx.session.execute(
                    select(GuessBucket.owed_until).where(GuessBucket.key == bucket.key)
                ).scalar_one()
                # What was counted in the others goes with the transaction.
                raise TooManyGuessesError(allowance.wait_s(owed_until, tx.now))


def pay_back(tx: UnitOfWork, buckets: Sequence[Bucket]) -> None:
    """Take a guess back that was none."""
    for bucket in buckets:
        tx.session.execute(
            update(GuessBucket)
            .where(GuessBucket.key == bucket.key)
            .values(owed_until=GuessBucket.owed_until - bucket.allowance.every)
        )


def remember_browser(tx: UnitOfWork, person_id: uuid.UUID, shown: str | None, fresh: str) -> str:
    """Return the cookie by which a browser is known to belong to a user from now on.

    Parameters
    ----------
    shown : str or None
        Its cookie; kept where it is known to be theirs, and never taken otherwise: another page may
        have put it there.
    """
    if shown is not None:
        kept = tx.session.execute(
            update(KnownBrowser)
            .where(KnownBrowser.sha256 == digest(shown), KnownBrowser.person_id == person_id)
            .values(seen_at=tx.now)
            .returning(KnownBrowser.sha256)
        ).scalar()
        if kept is not None:
            return shown
    too_many = (
        select(KnownBrowser.sha256)
        .where(KnownBrowser.person_id == person_id)
        .order_by(KnownBrowser.seen_at.desc())
        .offset(MOST_KNOWN - 1)
    )
    tx.session.execute(delete(KnownBrowser).where(KnownBrowser.sha256.in_(too_many)))
    tx.session.add(KnownBrowser(sha256=digest(fresh), person_id=person_id, seen_at=tx.now))
    return fresh


def prune_guesses(tx: UnitOfWork) -> None:
    """Delete what no guess has to wait for any more, and browsers that were not seen for long."""
    tx.session.execute(delete(GuessBucket).where(GuessBucket.owed_until < tx.now))
    tx.session.execute(delete(KnownBrowser).where(KnownBrowser.seen_at < tx.now - KNOWN_FOR))
