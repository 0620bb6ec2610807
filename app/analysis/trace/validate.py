"""Checks of values: one minimum and one maximum a column, details only where they fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.faults import Places, refuse
from app.analysis.trace.limits import (
    MAX_FAULTS,
    MAX_MICROBATCH,
    MAX_ORDER,
    MAX_RELATIVE_START_S,
    MAX_STEP,
    MAX_TIME_NS,
)
from app.analysis.trace.model import ABSENT, Sizes
from app.errors import Fault

_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class _Bound:
    low: float
    high: float
    code: str
    what: str


def check_values(
    columns: Mapping[str, NDArray[Any]],
    sizes: Sizes,
    *,
    seconds: bool,
    first_row: int,
    places: Places,
) -> None:
    """Refuse values that cannot be, with the places of the first ones.

    Parameters
    ----------
    columns : mapping
        Our names → columns without nulls, of one batch.
    seconds : bool
        Times are floating-point seconds.
    first_row : int
        Row of the body that the batch starts with.

    Raises
    ------
    InvalidTraceError
        With the code of the first fault.
    """
    # A signaling NaN makes even a comparison warn.
    with np.errstate(invalid="ignore"):
        _check(columns, _bounds(sizes, seconds=seconds), first_row, places)


def _check(
    columns: Mapping[str, NDArray[Any]],
    bounds: Mapping[str, _Bound],
    first_row: int,
    places: Places,
) -> None:
    broken = [
        name
        for name, values in columns.items()
        # Written so that a NaN fails.
        if not (values.min() >= bounds[name].low and values.max() <= bounds[name].high)
    ]
    if broken:
        refuse(
            fault
            for name in broken
            for fault in _faults(name, columns[name], bounds[name], first_row, places)
        )


def _bounds(sizes: Sizes, *, seconds: bool) -> dict[str, _Bound]:
    bounds = {
        "rank": _Bound(0, sizes.world - 1, "rank_out_of_range", "rank"),
        "dp": _Bound(0, sizes.dp - 1, "dp_out_of_range", "DP rank"),
        "pp": _Bound(0, sizes.pp - 1, "pp_out_of_range", "pipeline stage"),
        "tp": _Bound(0, sizes.tp - 1, "tp_out_of_range", "TP rank"),
        "step": _Bound(0, MAX_STEP, "step_out_of_range", "step"),
        "mb": _Bound(ABSENT, MAX_MICROBATCH, "microbatch_out_of_range", "microbatch"),
        "mc": _Bound(ABSENT, sizes.vpp - 1, "model_chunk_out_of_range", "model chunk"),
        "order": _Bound(0, MAX_ORDER, "order_out_of_range", "order"),
    }
    if seconds:
        # Its lower end is checked against the step's earliest start, when all of it was read.
        bounds["start"] = _Bound(
            -MAX_RELATIVE_START_S,
            np.nextafter(MAX_RELATIVE_START_S, 0),
            "absolute_float_time",
            "start in its step",
        )
    else:
        bounds["start"] = _Bound(-MAX_TIME_NS, MAX_TIME_NS, "time_overflow", "start")
    # Recorders write durations that cannot be. They cost their step and not the session, so any
    # number is taken here: see `app.analysis.replay.repairs`.
    bounds["duration"] = _Bound(-_LARGEST, _LARGEST, "not_finite", "duration")
    return bounds


def _faults(
    name: str, values: NDArray[Any], bound: _Bound, first_row: int, places: Places
) -> Iterator[Fault]:
    bad = np.flatnonzero(~((values >= bound.low) & (values <= bound.high)))[:MAX_FAULTS]
    for row in bad.tolist():
        value = values[row].item()
        if isinstance(value, float) and not np.isfinite(value):
            code, message = "not_finite", f"the {bound.what} is {value}"
        elif bound.code == "absolute_float_time":
            code = bound.code
            message = (
                f"floating-point starts must count from their step's earliest, below "
                f"{MAX_RELATIVE_START_S:g} s: {value:g}"
            )
        else:
            code = bound.code
            message = f"{bound.what} {value} is outside of {bound.low:.0f} to {bound.high:.0f}"
        yield places.fault(code, message, first_row + row, name)
