"""Limits on the size and the values of a body, and refusals that list the first faults.

Limits are bytes, rows and bounds of values. A fault names the row or line and the column of the
body if it has them; a refusal lists the first ten faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.errors import BodyTooLargeError, Fault, InvalidTraceError

MIB: Final = 1024 * 1024

# Maximum number of decompressed bytes for each compressed byte, for bodies that expand to more than
# `UNJUDGED_BYTES`.
MAX_RATIO: Final = 250
UNJUDGED_BYTES: Final = 32 * MIB

# Maximum number of faults that the refusal of a body lists.
MAX_FAULTS: Final = 10

# Maximum number of ranks of a job; a larger number is probably a typing error.
MAX_WORLD: Final = 1 << 20
MAX_MODEL_CHUNKS: Final = 1 << 10
MAX_MICROBATCH: Final = 1 << 20
# Largest step number. Steps are sent as JSON to browsers, which represent integers exactly up to
# this value.
MAX_STEP: Final = (1 << 53) - 1
MAX_ORDER: Final = (1 << 31) - 2
NS_PER_S: Final = 1_000_000_000
# Largest absolute time (146 years): differences and ends of times within this bound fit int64.
MAX_TIME_NS: Final = 1 << 62

MAX_OP_NAME_CHARS: Final = 128
# Maximum number of distinct operation names in a trace.
MAX_OP_NAMES: Final = 256
# Maximum number of entries of a name dictionary, which may list names that no row uses (pandas
# writes all categories).
MAX_DICTIONARY: Final = 16 * MAX_OP_NAMES

# Largest start relative to its step. A float32 resolves 0.2 ms at this number of seconds, but only
# 128 s at the seconds of today's date: larger values are clock readings.
MAX_RELATIVE_START_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the sizes of one body."""

    # Maximum number of bytes after decompression, of the body or of the columns read from it.
    max_decompressed_bytes: int = 4096 * MIB
    max_rows: int = 40_000_000  # most operations of a body
    # Maximum number of bytes of the header line of an NDJSON body, of a metadata document, and of
    # the footer of a Parquet body.
    max_header_bytes: int = 16 * MIB

    def expanded(self, size: int) -> int:
        """Return the most bytes to which a body of this size may decompress.

        Recorded text compresses to a tenth or a fortieth of its size; a ratio of hundreds is an
        attack. The ratio of small bodies is not limited, because they are cheap to decompress in
        any case.

        Parameters
        ----------
        size : int
            Bytes of the body as received.
        """
        return min(self.max_decompressed_bytes, max(UNJUDGED_BYTES, MAX_RATIO * size))


@dataclass(frozen=True, slots=True)
class Places:
    """Converter of rows and column names to those of the sender's body, for fault messages."""

    columns: Mapping[str, str]  # our name of each column → its name in the body
    # Converts a 0-based row to the 1-based line of a text body.
    line_of: Callable[[int], int] | None = None
    # Body row of each trace row, if fused operations were split into several rows.
    source: NDArray[np.intp] | None = None

    def fault(self, code: str, message: str, row: int, column: str | None = None) -> Fault:
        """Return a fault at `row` (0-based in the whole body) in `column` (our name)."""
        name = self.columns.get(column, column) if column else None
        if self.source is not None:
            row = int(self.source[row])
        if self.line_of is None:
            return Fault(code, message, row=row, column=name)
        return Fault(code, message, line=self.line_of(row), column=name)


def refuse(faults: Iterable[Fault]) -> NoReturn:
    """Raise an error that lists the first faults of a trace and has the code of the first fault.

    Raises
    ------
    InvalidTraceError
        Always.
    """

    def place(fault: Fault) -> tuple[int, str]:
        position = fault.row if fault.row is not None else fault.line
        return (-1 if position is None else position, fault.column or "")

    ordered = sorted(faults, key=place)[:MAX_FAULTS]
    first = ordered[0]
    where = ""
    if first.row is not None:
        where = f" (row {first.row})"
    elif first.line is not None:
        where = f" (line {first.line})"
    raise InvalidTraceError(
        f"{first.message}{where}", code=f"trace.{first.code}", faults=tuple(ordered)
    )


def refuse_body(code: str, message: str) -> NoReturn:
    """Raise an error about a body as a whole, without a row."""
    refuse([Fault(code, message)])


def check_expanded(total: int, most: int, limits: Limits) -> None:
    """Refuse a body that has decompressed to `total` bytes if that exceeds `most` or the limit.

    Raises
    ------
    BodyTooLargeError
        `body.too_large`.
    InvalidTraceError
        `trace.decompression_bomb`.
    """
    if total > limits.max_decompressed_bytes:
        message = f"the body decompresses to over {limits.max_decompressed_bytes} bytes"
        raise BodyTooLargeError(message)
    if total > most:
        refuse_body(
            "decompression_bomb", f"the body decompresses to over {MAX_RATIO} times its size"
        )
