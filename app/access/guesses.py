"""Rate limits of password guesses, counted in the database for all processes together.

A guess is counted before the password is checked, and the count is removed if the password was
correct: concurrent requests get no more guesses than sequential ones.

Each bucket holds a time. A guess moves the time forward by `every`, and is refused if the time
would be too far ahead of now (generic cell rate algorithm, ATM Forum TM 4.0). No account is ever
locked: after a wait the next guess is allowed.
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

# Number of classes of names that are counted apart. The text in the name field may be a password:
# only 12 bits of its hash choose a class, so that no row reveals it, and unknown names create no
# more rows than there are classes.
_NAME_CLASSES: Final = 4096


@dataclass(frozen=True, slots=True)
class Allowance:
    """Number of guesses that are allowed at once, and the interval of further guesses."""

    at_once: int  # guesses without any wait
    every: timedelta  # wait for each further one

    @property
    def ahead(self) -> timedelta:
        """Return the largest lead of a bucket's time over now that allows one more guess."""
        return (self.at_once - 1) * self.every

    def wait_s(self, owed_until: datetime, now: datetime) -> float:
        """Return the seconds until the next guess is allowed.

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
    """Guesses that are counted together, and their allowance."""

    key: bytes  # SHA-256 of the criterion, such as the client's address
    allowance: Allowance


# Guesses from one address at one name; fewer than `AT_A_NAME`, so that one address cannot use up a
# name's limit.
OF_A_PEER_AT_A_NAME: Final = Allowance(10, timedelta(minutes=1))
# Guesses from one address at all names, against a password that is tried with many names.
OF_A_PEER: Final = Allowance(60, timedelta(seconds=6))
# Guesses from all addresses at one name: some 8,700 a day.
AT_A_NAME: Final = Allowance(100, timedelta(seconds=10))
# Guesses from a browser with an earlier sign-in. The separate limit cannot be used up by strangers
# (OWASP, "Slow down online guessing attacks with device cookies").
OF_A_KNOWN_BROWSER: Final = Allowance(10, timedelta(minutes=1))


def buckets_of(name: str, peer: str) -> tuple[Bucket, ...]:
    """Return the buckets of a guess from an unknown browser, in a fixed order."""
    name_class = int.from_bytes(hashlib.sha256(name.encode()).digest()) % _NAME_CLASSES
    # The order in which rows are locked: transactions with different orders would deadlock.
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


# Time for which a browser stays known without a sign-in, and number of known browsers of a person.
KNOWN_FOR: Final = timedelta(days=180)
MOST_KNOWN: Final = 16


def buckets_for(tx: Reads, name: str, peer: str, browser: str | None) -> tuple[Bucket, ...]:
    """Return the buckets in which a guess is counted.

    Parameters
    ----------
    name : str
        Name in the request, whether or not a user has it.
    browser : str or None
        Cookie of a browser with an earlier sign-in.
    """
    if browser is not None:
        known_browser = tx.session.execute(
            select(KnownBrowser.sha256)
            .join(Person, Person.id == KnownBrowser.person_id)
            .where(
                KnownBrowser.sha256 == digest(browser),
                KnownBrowser.seen_at > tx.now - KNOWN_FOR,
                Person.name == name,
                Person.issuer.is_(None),
            )
        ).scalar()
        if known_browser is not None:
            return bucket_of_known(known_browser)
    return buckets_of(name, peer)


def pay(container: Container, buckets: Sequence[Bucket]) -> None:
    """Count a guess in its buckets.

    Raises
    ------
    TooManyGuessesError
        There were too many guesses; the refused guess is not counted.
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
                # The exception rolls the transaction back, and with it the counts in the other
                # buckets.
                raise TooManyGuessesError(allowance.wait_s(owed_until, tx.now))


def pay_back(tx: UnitOfWork, buckets: Sequence[Bucket]) -> None:
    """Remove the count of a guess that was correct."""
    for bucket in buckets:
        tx.session.execute(
            update(GuessBucket)
            .where(GuessBucket.key == bucket.key)
            .values(owed_until=GuessBucket.owed_until - bucket.allowance.every)
        )


def remember_browser(tx: UnitOfWork, person_id: uuid.UUID, shown: str | None, fresh: str) -> str:
    """Return the cookie by which a browser is known to have signed in as a user.

    Parameters
    ----------
    shown : str or None
        Cookie that the browser sent; kept only if it is stored for the user: another page may have
        set it.
    fresh : str
        New cookie to store instead.
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
    """Delete buckets that delay no guess any more, and browsers not seen for `KNOWN_FOR`."""
    tx.session.execute(delete(GuessBucket).where(GuessBucket.owed_until < tx.now))
    tx.session.execute(delete(KnownBrowser).where(KnownBrowser.seen_at < tx.now - KNOWN_FOR))
