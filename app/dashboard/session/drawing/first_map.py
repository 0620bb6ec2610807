"""The map of workers as the first response has it: SVG, before any script."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from app.analysis.report.document import Report
from app.dashboard.ui.format import heat_color

# The map of more workers is the script's alone: it would be longer than the rest of the page.
MOST_CELLS: Final = 4096
# Cells of more DP ranks or stages stand without gaps.
GAPPED_RANKS: Final = 64
GAPPED_STAGES: Final = 24
# Digits that make a difference to the eye, so that many cells have the same color.
DIGITS: Final = 2


@dataclass(frozen=True, slots=True)
class FirstMap:
    """Cells of the map by color; a cell is 1 high and wide, DP ranks across, stages down."""

    dp: int
    pp: int
    dense: bool
    paths: tuple[tuple[str, str], ...]  # color, path


def first_map(report: Report) -> FirstMap | None:
    """Return the map of mean slowdowns, or None where it is too large."""
    dp, pp = report.sizes.dp, report.sizes.pp
    if dp * pp > MOST_CELLS:
        return None
    cells: defaultdict[str, list[str]] = defaultdict(list)
    for rank, row in enumerate(report.by_worker.exact):
        for stage, value in enumerate(row):
            cells[heat_color(round(value, DIGITS))].append(f"M{rank} {stage}h1v1h-1z")
    return FirstMap(
        dp,
        pp,
        dense=dp > GAPPED_RANKS or pp > GAPPED_STAGES,
        paths=tuple((color, "".join(path)) for color, path in cells.items()),
    )
