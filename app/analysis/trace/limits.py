"""Limits on what a body may cost, and the refusal that names its first faults.

Limits are bytes, rows and bounds of values. A fault has the row or line and the column of the
body where it has one; a refusal lists the first ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.errors import BodyTooLargeError, Fault, InvalidTraceError

MIB: Final = 1024 * 1024

# Decompressed bytes for each byte of a compressed body, of bodies that expand to more than
# `UNJUDGED_BYTES`.
MAX_RATIO: Final = 250
UNJUDGED_BYTES: Final = 32 * MIB

# Faults reported of one body.
MAX_FAULTS: Final = 10

# Ranks of a job; more is taken for a mistyped size.
MAX_WORLD: Final = 1 << 20
MAX_MODEL_CHUNKS: Final = 1 << 10
MAX_MICROBATCH: Final = 1 << 20
# Steps travel in JSON to browsers, whose integers are exact to here.
MAX_STEP: Final = (1 << 53) - 1
MAX_ORDER: Final = (1 << 31) - 2
NS_PER_S: Final = 1_000_000_000
# Any difference and any end of times within these bounds fits int64; 146 years.
MAX_TIME_NS: Final = 1 << 62

MAX_OP_NAME_CHARS: Final = 128
# Distinct names of operations in one trace.
MAX_OP_NAMES: Final = 256
# A dictionary may list names that no row uses (pandas writes its categories so).
MAX_DICTIONARY: Final = 16 * MAX_OP_NAMES

# A float32 of seconds resolves 0.2 ms here and 128 s at today's epoch.
MAX_RELATIVE_START_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one body."""

    # Bytes that the body, or the columns read from it, may decompress to.
    max_decompressed_bytes: int = 4096 * MIB
    max_rows: int = 40_000_000  # operations of one body
    # The header line of an NDJSON body, a metadata document, the footer of a Parquet body.
    max_header_bytes: int = 16 * MIB

    def expanded(self, size: int) -> int:
        """Return the bytes to which a body may decompress.

        Recorded text compresses to a tenth or a fortieth; hundreds of bytes for one are an attack.
        Small bodies have no ratio, they cost little in any case.

        Parameters
        ----------
        size : int
            Bytes of the body as received.
        """
        return min(self.max_decompressed_bytes, max(UNJUDGED_BYTES, MAX_RATIO * size))


@dataclass(frozen=True, slots=True)
class Places:
    """Places of rows in the sender's terms: row or line, and the column's name in the body."""

    columns: Mapping[str, str]  # our name of each column → its name in the body
    # 0-based row → 1-based line, where the body is text
    line_of: Callable[[int], int] | None = None
    # Row of the body of each row, where operations were split.
    source: NDArray[np.intp] | None = None

    def fault(self, code: str, message: str, row: int, column: str | None = None) -> Fault:
        """Return a fault of `row` (0-based in the whole body), in our `column`."""
        name = self.columns.get(column, column) if column else None
        if self.source is not None:
            row = int(self.source[row])
        if self.line_of is None:
            return Fault(code, message, row=row, column=name)
        return Fault(code, message, line=self.line_of(row), column=name)


def refuse(faults: Iterable[Fault]) -> NoReturn:
    """Raise the refusal of a trace with its first faults, under the code of the first one.

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
    """Raise the refusal of a body as a whole."""
    refuse([Fault(code, message)])


def check_expanded(total: int, most: int, limits: Limits) -> None:
    """Refuse a body that has decompressed to `total` bytes, if over `most` or over the limit.

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
