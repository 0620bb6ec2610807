"""Rows whose numbers may be true."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from app.analysis.pulse.columns import MEASURES, Pulses

# A measure above a month is none.
_MOST_NS: Final = 31 * 86_400 * 1_000_000_000
_LAST_STEP: Final = 1 << 53

NEGATIVE: Final = "pulse.negative"
TOO_LARGE: Final = "pulse.too_large"


def sound(rows: Pulses, counts: Counter[str]) -> Pulses:
    """Return the rows without negative numbers and without too large ones, which are counted.

    Parameters
    ----------
    rows : Pulses
        None of them a beat.
    """
    measures = [getattr(rows, name) for name in MEASURES]
    unsigned = [*measures, rows.rank, rows.step, rows.attempt, rows.dp_rank, rows.pp_rank]
    if not len(rows) or (
        min(values.min() for values in unsigned) >= 0
        and rows.time_ns.min() > 0
        and max(values.max() for values in measures) <= _MOST_NS
        and rows.step.max() <= _LAST_STEP
    ):
        return rows
    negative = np.logical_or.reduce([values < 0 for values in unsigned]) | (rows.time_ns <= 0)
    large = np.logical_or.reduce([values > _MOST_NS for values in measures])
    large = ~negative & (large | (rows.step > _LAST_STEP))
    for code, found in ((NEGATIVE, negative), (TOO_LARGE, large)):
        if found.any():
            counts[code] += int(np.count_nonzero(found))
    return rows.take(~negative & ~large)
