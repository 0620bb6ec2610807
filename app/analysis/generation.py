"""Generation of the stored formats, which processes of different versions exchange.

One number counts the changes of all formats that one process stores and another one reads: packed
traces, the state and the blocks of pulses, bodies in the inbox, documents of tasks. Version 0.2.0
reads and writes generation 1.
"""

from __future__ import annotations

from typing import Final

from app.errors import NewerFormatError

# Newest generation that this version reads; it reads all earlier ones as well.
READS: Final[int] = 1
# Generation that this version writes: at most what the previous released version reads, so that
# the previous version still reads everything after a rollback.
WRITES: Final[int] = 1


def require_readable(generation: int, what: str) -> None:
    """Refuse stored bytes of a later generation.

    Parameters
    ----------
    generation : int
        Generation that the bytes name.
    what : str
        Subject of the message, as in ``the state of a pulse is``.

    Raises
    ------
    NewerFormatError
    """
    if generation > READS:
        raise NewerFormatError(f"{what} of version {generation}, not {READS}", generation)
