"""The columns of a rank as a bar: those kept, left out, handed to others and taken from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.dashboard.ui.format import MINUS, count


@dataclass(frozen=True, slots=True)
class ColumnsBar:
    """The bar of a rank and what is written next to it; widths are per cent of the widest bar."""

    kept_width: float
    resized_width: float
    given_width: float
    received_width: float
    kept: str
    resized: str
    migrated: str


def columns_bar(  # noqa: PLR0913 - what becomes of columns
    columns: int,
    most: int,
    *,
    resized: int,
    given: int,
    received: int,
    amount: Callable[[int], str] = count,
) -> ColumnsBar:
    """Return the bar of a rank.

    Parameters
    ----------
    columns, most : int
        Of every rank, and of the widest bar.
    resized, given, received : int
        Those that the rank leaves out, hands to others and takes from them.
    amount : callable
        Writes a number of columns.
    """
    kept = columns - resized - given
    migrated = ""
    if given:
        migrated = f"{MINUS}{amount(given)}"
    elif received:
        migrated = f"+{amount(received)}"
    return ColumnsBar(
        kept_width=100 * kept / most,
        resized_width=100 * resized / most,
        given_width=100 * given / most,
        received_width=100 * received / most,
        kept=amount(kept),
        resized=amount(resized) if resized else "",
        migrated=migrated,
    )
