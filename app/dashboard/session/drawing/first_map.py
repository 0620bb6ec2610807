"""The map of workers as the first response has it: SVG, before any script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.report.document import Report
from app.dashboard.ui.format import SCALE_HIGH, SCALE_LOW, heat_color

# Of more workers, or more DP ranks or stages, cells stand without gaps.
GAPPED_CELLS: Final = 1024
GAPPED_RANKS: Final = 64
GAPPED_STAGES: Final = 24
# Digits that make a difference to the eye, so that many cells have the same color.
DIGITS: Final = 2
# A longer picture would be more than the rest of the page: the script alone draws it.
MOST_CHARACTERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class FirstMap:
    """Cells of the map by color; a cell is 1 high and wide, DP ranks across, stages down."""

    dp: int
    pp: int
    dense: bool
    paths: tuple[tuple[str, str], ...]  # color, path


def first_map(report: Report) -> FirstMap | None:
    """Return the map of mean slowdowns, or None where it would be too long."""
    dp, pp = report.sizes.dp, report.sizes.pp
    dense = dp * pp > GAPPED_CELLS or dp > GAPPED_RANKS or pp > GAPPED_STAGES
    by_stage = np.clip(
        np.asarray(report.by_worker.exact, dtype=np.float64).T, SCALE_LOW, SCALE_HIGH
    )
    shown = by_stage.round(DIGITS)
    if not dense:
        # What was not recorded has no color: the script hatches it.
        for missing in report.coverage.missing:
            shown[missing.worker[::-1]] = np.nan
    levels, counts = np.unique(shown[~np.isnan(shown)], return_counts=True)
    paths = []
    if dense:
        # One color below all others: that of most cells.
        common = levels[counts.argmax()]
        paths.append((heat_color(float(common)), f"M0 0h{dp}v{pp}h{-dp}z"))
        levels = levels[levels != common]
    for level in levels:
        runs = _runs(shown == level) if dense else _cells(shown == level)
        paths.append((heat_color(float(level)), "".join(runs)))
    if sum(len(path) for _, path in paths) > MOST_CHARACTERS:
        return None
    return FirstMap(dp, pp, dense, tuple(paths))


def _cells(chosen: NDArray[np.bool_]) -> list[str]:
    return [f"M{rank} {stage}h1v1h-1z" for stage, rank in np.argwhere(chosen).tolist()]


def _runs(chosen: NDArray[np.bool_]) -> list[str]:
    """Return neighboring cells of a stage as one rectangle."""
    edges = np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
    return [
        f"M{begin} {stage}h{end - begin}v1H{begin}z"
        for (stage, begin), (_, end) in zip(begins, ends, strict=True)
    ]
