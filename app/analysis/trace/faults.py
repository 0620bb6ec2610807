"""Where a fault is, and the refusal that carries the first ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_FAULTS, MAX_RATIO, Limits
from app.errors import BodyTooLargeError, Fault, InvalidTraceError


@dataclass(frozen=True, slots=True)
class Places:
    """Names the place of a row as the sender knows it."""

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
    """Raise the refusal of a trace with its first faults, the code being that of the first.

    Raises
    ------
    InvalidTraceError
        Always.
    """
    ordered = sorted(faults, key=_place)[:MAX_FAULTS]
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


def _place(fault: Fault) -> tuple[int, str]:
    place = fault.row if fault.row is not None else fault.line
    return (-1 if place is None else place, fault.column or "")


def check_expanded(total: int, most: int, limits: Limits) -> None:
    """Refuse a body that has decompressed to `total` bytes, of which `most` are believed.

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
