"""How often passwords may be guessed: a few at once, then one from time to time.

Each bucket is one time, until which its guesses are paid off: a guess moves it on by `every`, and
is refused where it would be too far ahead (the generic cell rate algorithm of ATM Forum TM 4.0).
Nothing is ever locked: whoever waits may guess again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

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
    return _ordered(
        (
            Bucket(_key("peer at name", peer, name_class), OF_A_PEER_AT_A_NAME),
            Bucket(_key("peer", peer), OF_A_PEER),
            Bucket(_key("name", name_class), AT_A_NAME),
        )
    )


def bucket_of_known(browser: bytes) -> tuple[Bucket, ...]:
    """Return the bucket of a known browser, given the digest of its cookie."""
    return (Bucket(_key("browser", browser.hex()), OF_A_KNOWN_BROWSER),)


def _ordered(buckets: Iterable[Bucket]) -> tuple[Bucket, ...]:
    # Two that lock several rows in different orders would wait for each other.
    return tuple(sorted(buckets, key=lambda bucket: bucket.key))


def _key(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
