# ruff: noqa: C901, PLR0911, PLR0912, PLR0915, PLR2004 - a compiled loop: no objects there
"""Page headers in a compiled loop: a body of a million rows has a thousand of them.

It reads what writers write. Whatever else there is, `pages` looks at with the reader of footers,
which says what is wrong.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled

# Of Thrift's compact protocol.
_BINARY: Final = 8
_STRUCT: Final = 12
_CONTINUES: Final = 0x80
# As many hold 63 bits.
_VARINT_BYTES: Final = 9
_MAX_DEPTH: Final = 4
# How `pages` numbers facts, the sixth is the header's length.
FACTS: Final = 6


@compiled  # pragma: no cover - coverage does not see compiled code
def _varint(data: NDArray[np.uint8], position: int) -> tuple[int, int]:
    """Return a number and where it ends, which is -1 where it is too long or not all there."""
    value = 0
    for count in range(_VARINT_BYTES):
        if position >= len(data):
            break
        byte = int(data[position])
        position += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < _CONTINUES:
            return value, position
    return 0, -1


@compiled  # pragma: no cover
def _page_of(field: int) -> int:
    """Return which kind of page a field of the header is about: 0, 2 or 3; -1 if about none."""
    if field == 5:
        return 0
    if field == 7:
        return 2
    return 3 if field == 8 else -1


@compiled  # pragma: no cover
def _read_header(data: NDArray[np.uint8], position: int, facts: NDArray[np.int64]) -> bool:
    """Write the facts of the header at a position; return whether it is as writers write it."""
    begin, depth, page = position, 0, -1
    fields = np.zeros(_MAX_DEPTH + 1, np.int64)
    # kind, decompressed and compressed size; values and encoding by kind of page
    top, top_there = np.zeros(4, np.int64), np.zeros(4, np.bool_)
    inner, inner_there = np.zeros((4, 2), np.int64), np.zeros((4, 2), np.bool_)
    while True:
        if position >= len(data):
            return False
        head = int(data[position])
        position += 1
        if head == 0 and depth == 0:
            break
        if head == 0:
            depth -= 1
            continue
        kind = head & 0x0F
        if head > kind:
            fields[depth] += head >> 4
        else:
            value, position = _varint(data, position)
            if position < 0:
                return False
            fields[depth] = (value >> 1) ^ -(value & 1)
        field = fields[depth]
        wanted_top = depth == 0 and (1 <= field <= 3 or _page_of(field) >= 0)
        of_page = depth == 1 and page >= 0
        wanted = -1
        if of_page and field == 1:
            wanted = 0
        elif of_page and field == (4 if page == 3 else 2):
            wanted = 1
        if kind in (4, 5, 6):
            value, position = _varint(data, position)
            if position < 0 or (wanted_top and field > 3):
                return False
            value = (value >> 1) ^ -(value & 1)
            if wanted_top:
                top[field], top_there[field] = value, True
            elif wanted >= 0:
                inner[page, wanted], inner_there[page, wanted] = value, True
        elif kind == _STRUCT:
            if wanted >= 0 or (wanted_top and field <= 3) or depth == _MAX_DEPTH:
                return False
            if depth == 0:
                page = _page_of(field)
                if page >= 0:
                    inner_there[page] = False
            depth += 1
            fields[depth] = 0
        elif wanted_top or wanted >= 0:
            return False
        elif kind == _BINARY:
            value, position = _varint(data, position)
            if position < 0 or value > len(data) - position:
                return False
            position += value
        elif kind not in (1, 2):
            return False
    kind = top[1]
    if not top_there[1:].all() or kind not in (0, 2, 3) or not inner_there[kind].all():
        return False
    facts[0], facts[1], facts[2] = kind, top[2], top[3]
    facts[3], facts[4], facts[5] = inner[kind, 0], inner[kind, 1], position - begin
    return True


@compiled  # pragma: no cover
def walk_pages(data: NDArray[np.uint8], facts: NDArray[np.int64]) -> int:
    """Write the facts of pages that follow one another, from the first byte on.

    Parameters
    ----------
    data : uint8 array, shape (bytes,)
    facts : int64 array, shape (pages, FACTS)

    Returns
    -------
    int
        Of how many: it ends before a header that is not all there, or not as writers write it.
    """
    position = 0
    for page in range(len(facts)):
        if not 0 <= position < len(data) or not _read_header(data, position, facts[page]):
            return page
        position += facts[page, 5] + facts[page, 2]
    return len(facts)


def warm_up() -> None:
    """Compile, or load from the disk's cache, all of these."""
    data = np.zeros(1, np.uint8)
    data.flags.writeable = False
    walk_pages(data, np.empty((1, FACTS), np.int64))
