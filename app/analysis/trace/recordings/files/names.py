"""What names of files say: of which rank each is, and how many ranks there are.

Profilers that are not told a rank leave it to the name of the file (``rank3.json.gz``,
``rank_3/trace.json``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_RANK: Final = re.compile(r"(?<![a-z])rank[-_. =]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileNames:
    """What the names of a session's files say of one of them."""

    rank: int | None = None  # its own
    # How many there are: where there are several files, of all ranks from 0 on, each once.
    world: int | None = None


UNNAMED: Final = FileNames()


def rank_in(name: str) -> int | None:
    """Return the rank that a path names, the last one where it names several.

    Examples
    --------
    >>> rank_in("job/rank_3/trace.json"), rank_in("host7_rank12.pt.trace.json.gz")
    (3, 12)
    >>> rank_in("frank3.json") is None
    True
    """
    found = _RANK.findall(name)
    return int(found[-1]) if found else None


def names_of(name: str, among: Iterable[str]) -> FileNames:
    """Return what a file's name says, `among` the names of all files of its session."""
    ranks = [rank_in(one) for one in among]
    complete = sorted(rank for rank in ranks if rank is not None) == list(range(len(ranks)))
    return FileNames(rank_in(name), len(ranks) if complete and len(ranks) > 1 else None)
