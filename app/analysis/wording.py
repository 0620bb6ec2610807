"""How sentences of reports write numbers: as the pages that show them do."""

from __future__ import annotations

from typing import Final

NBSP: Final = "\N{NO-BREAK SPACE}"


def percent(share: float, digits: int = 1) -> str:
    """Return a share of 1 in per cent: ``19.9 %``."""
    return f"{100 * share:.{digits}f}{NBSP}%"
