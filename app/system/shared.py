"""What processes of one server know of each other: a directory, and a place in it for each.

Nothing is locked: each writes its own place alone, and what a killed one left is overwritten by the
one that takes its place.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_PROCESSES: Final = 256

_NUMBER: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Place:
    """A process's place among those of its server.

    `number` counts from 0, below `of`.
    """

    directory: Path
    number: int
    of: int


class Sum:
    """A number of each process, and the sum over all of them.

    Parameters
    ----------
    place : Place
    name : str
        Of the file in the directory.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        path = place.directory / name
        with path.open("a+b") as file:
            # Longer already where another process was faster.
            if file.seek(0, 2) < MAX_PROCESSES * _NUMBER.size:
                file.truncate(MAX_PROCESSES * _NUMBER.size)
            self._numbers = mmap.mmap(file.fileno(), MAX_PROCESSES * _NUMBER.size)
        # Of the process before this one, which is gone.
        self.set(0)

    def set(self, number: int) -> None:
        """Say this process's number."""
        _NUMBER.pack_into(self._numbers, self._place.number * _NUMBER.size, number)

    def of_others(self) -> int:
        """Return the sum without this process's."""
        numbers = _NUMBER.iter_unpack(self._numbers[: self._place.of * _NUMBER.size])
        return sum(value for at, (value,) in enumerate(numbers) if at != self._place.number)
