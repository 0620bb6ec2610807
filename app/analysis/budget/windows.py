"""When each worker begins and ends its steps, and what passes between steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import median
from app.analysis.replay.session import Replayed, ends_of


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The time of a session, cut at the begins of its steps, ns; in order of steps.

    To a step belongs what passes until the next one begins, where that one follows in the
    recording. Other gaps are unknown: the job went on without a recorder, and nothing is lost.
    Odd steps before the first one belong to that one, and those after the last to the last.
    Where steps overlap, a worker's time is cut where it is done with the step before.
    """

    starts_ns: FloatArray  # (steps,): first starts, by the clock of the recording
    # Shape (pp, steps, dp): by the clock that counts from the first start of each step, when
    # workers begin it and end it; and how long it is theirs.
    begins_ns: FloatArray
    ends_ns: FloatArray
    wall_ns: FloatArray
    # Shape (steps,): from the last end of all workers to the begin of the next step; and the same
    # where steps that are left out lie between, with odd ones at the ends of the session.
    between_ns: FloatArray
    missing_ns: FloatArray
    usual_ns: float  # the median of what passes between two steps


def windows_of(replayed: Replayed) -> Windows:
    """Cut the time of a session at the begins of its steps."""
    ends_ns = replayed.over_steps(lambda group: ends_of(group).swapaxes(0, 1)).swapaxes(0, 1)
    last_ns = ends_ns.max(axis=(0, 2))
    starts_ns = replayed.over_steps(lambda group: group.layout.begin_ns)
    turn_ns = np.diff(starts_ns)
    joined, whole = _joined(replayed, turn_ns)
    begins_ns, until_ns = np.zeros(ends_ns.shape), np.empty(ends_ns.shape)
    until_ns[:] = last_ns[:, None]
    # Late ends reach into the next step, on the workers that have them.
    late_ns = np.maximum(ends_ns[:, :-1] - turn_ns[:, None], 0.0)
    begins_ns[:, 1:] = np.where(joined[:, None], np.minimum(late_ns, ends_ns[:, 1:]), 0.0)
    following_ns = begins_ns[:, 1:] + turn_ns[:, None]
    until_ns[:, :-1] = np.where(joined[:, None], following_ns, until_ns[:, :-1])
    empty_ns = np.append(np.where(joined, np.maximum(turn_ns - last_ns[:-1], 0.0), 0.0), 0.0)
    known = np.append(whole, False)
    between_ns = np.where(known, empty_ns, 0.0)
    odd_ns = _odd_ns(replayed, starts_ns, last_ns)
    return Windows(
        starts_ns,
        begins_ns,
        ends_ns,
        until_ns - begins_ns + odd_ns[:, None],
        between_ns,
        empty_ns - between_ns + odd_ns,
        float(median(between_ns[known])) if known.any() else 0.0,
    )


def _odd_ns(replayed: Replayed, starts_ns: FloatArray, last_ns: FloatArray) -> FloatArray:
    """Return how long odd steps take that open or close the session, shape (steps,), ns.

    With what passes between them and the steps that are analyzed.
    """
    steps, spans_ns, odd_ns = replayed.steps, replayed.odd_spans_ns, np.zeros(len(starts_ns))
    if replayed.absolute and spans_ns:
        first, last = int(steps[0]), int(steps[-1])
        while first - 1 in spans_ns:
            first -= 1
        while last + 1 in spans_ns:
            last += 1
        if first < steps[0]:
            odd_ns[0] += max(starts_ns[0] - spans_ns[first][0], 0.0)
        if last > steps[-1]:
            odd_ns[-1] += max(spans_ns[last][1] - starts_ns[-1] - last_ns[-1], 0.0)
    return odd_ns


def _joined(replayed: Replayed, turn_ns: FloatArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return after which steps the time to the next one counts, and where nothing is left out.

    Shape (steps - 1,) each. None does where starts count from each step, and where clocks were set
    back.
    """
    steps = replayed.steps
    if not replayed.absolute:
        none = np.zeros(len(turn_ns), dtype=bool)
        return none, none
    recorded = np.sort(
        [*steps.tolist(), *(item.step for item in (*replayed.dropped, *replayed.odd))]
    )
    place = np.searchsorted(recorded, steps)
    known = (np.diff(steps) == np.diff(place)) & (turn_ns > 0)
    return known, known & (np.diff(steps) == 1)
