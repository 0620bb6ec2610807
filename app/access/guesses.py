"""Guesses of passwords, counted in the database: for all processes of an installation together.

A guess is paid for before the password is looked at, and paid back where it was right: any number
of requests at the same time get through no more of them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.access.models import GuessBucket, KnownBrowser, Person
from app.access.tokens import digest
from app.errors import TooManyGuessesError
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork

# ---- How often passwords may be guessed: a few at once, then one from time to time -------------
# Each bucket is one time, until which its guesses are paid off: a guess moves it on by `every`, and
# is refused where it would be too far ahead (the generic cell rate algorithm of ATM Forum TM 4.0).
# Nothing is ever locked: whoever waits may guess again.


# What is typed as a name may be a password. Of it, 12 bits pick a bucket: no row tells what it was,
# and names that do not exist make no more rows than there are buckets.
_NAME_CLASSES: Final = 4096


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many guesses are let through."""

    at_once: int  # without any wait
    every: timedelta  # for each further one

    @property
    def ahead(self) -> timedelta:
        """Return how far ahead of now the time of a bucket may be for one more guess."""
        return (self.at_once - 1) * self.every

    def wait_s(self, owed_until: datetime, now: datetime) -> float:
        """Return the seconds until the next guess.

        Examples
        --------
        >>> from datetime import datetime
        >>> now = datetime(2026, 1, 1)
        >>> minute = timedelta(minutes=1)
        >>> Allowance(3, minute).wait_s(now + 3 * minute, now)
        60.0
        """
        return max(0.0, (owed_until - now - self.ahead).total_seconds())


@dataclass(frozen=True, slots=True)
class Bucket:
    """Guesses that are counted together."""

    key: bytes  # SHA-256 of whose they are
    allowance: Allowance


# One stranger, at one name: fewer a minute than all of them together have, so that a single one
# does not keep others from it.
OF_A_PEER_AT_A_NAME: Final = Allowance(10, timedelta(minutes=1))
# One stranger, at whatever name: one password tried with many.
OF_A_PEER: Final = Allowance(60, timedelta(seconds=6))
# Everybody at one name, from however many addresses: some 8,700 a day.
AT_A_NAME: Final = Allowance(100, timedelta(seconds=10))
# A browser with an earlier sign-in: it is counted apart, so that no stranger can use up
# what its owner has (OWASP, "Slow down online guessing attacks with device cookies").
OF_A_KNOWN_BROWSER: Final = Allowance(10, timedelta(minutes=1))


def buckets_of(name: str, peer: str) -> tuple[Bucket, ...]:
    """Return the buckets of a guess from a browser that is not known, always in the same order."""
    name_class = int.from_bytes(hashlib.sha256(name.encode()).digest()) % _NAME_CLASSES
    # Two that lock several rows in different orders would wait for each other.
    return tuple(
        sorted(
            (
                Bucket(_key("peer at name", peer, name_class), OF_A_PEER_AT_A_NAME),
                Bucket(_key("peer", peer), OF_A_PEER),
                Bucket(_key("name", name_class), AT_A_NAME),
            ),
            key=lambda bucket: bucket.key,
        )
    )


def bucket_of_known(browser: bytes) -> tuple[Bucket, ...]:
    """Return the bucket of a known browser, given the digest of its cookie."""
    return (Bucket(_key("browser", browser.hex()), OF_A_KNOWN_BROWSER),)


def _key(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


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
