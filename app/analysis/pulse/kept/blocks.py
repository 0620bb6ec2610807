"""Rows of a pulse as a block: sorted by rank and step, so that few bytes say what changes."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.pulse.columns import ARRAYS, MEASURES, NO_BEAT, Pulses, joined
from app.analysis.pulse.kept.packed import pack, unpack
from app.analysis.pulse.steps import Steps

# From one row to the next these grow steadily, or stay.
_STEPPED: Final = ("step", "rank", "dp_rank", "pp_rank", "time_ns", "since_ns")


def to_block(rows: Pulses) -> bytes:
    """Return rows as a block; their order is not kept."""
    order = np.lexsort((rows.time_ns, rows.step, rows.rank))
    columns = {name: getattr(rows, name)[order] for name in ARRAYS}
    return pack(columns, steps=_STEPPED, more={"phases": list(rows.phases)})


def from_block(body: bytes) -> Pulses:
    """Return the rows of a block, sorted by rank, step and time.

    Raises
    ------
    UnknownDocumentError
        It is of another version.
    """
    columns, more = unpack(body)
    return Pulses(**columns, phases=tuple(more["phases"]))


def rows_of(steps: Steps, which: slice) -> Pulses:
    """Return whole steps as rows: one a step and rank that is there."""
    there = ~np.isnan(steps.measures["step_ns"][which])
    step, rank = np.nonzero(there)
    columns = {
        "attempt": np.full(len(step), steps.attempt, np.int64),
        "step": steps.steps[which][step],
        "rank": steps.ranks[rank],
        "dp_rank": steps.dp_ranks[rank],
        "pp_rank": steps.pp_ranks[rank],
        "time_ns": steps.ended_ns[which][there],
        "phase": np.full(len(step), NO_BEAT, np.int64),
        "since_ns": np.zeros(len(step), np.int64),
    }
    measures = {
        name: np.rint(steps.measures[name][which][there]).astype(np.int64) for name in MEASURES
    }
    return Pulses(**(columns | measures), phases=())


def in_order(parts: list[Pulses]) -> Pulses:
    """Return rows of several blocks in the order of time."""
    rows = joined(parts)
    return rows.take(np.argsort(rows.time_ns, kind="stable"))
