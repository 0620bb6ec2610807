"""Attribution of a slowdown: the ranks that are slow together, their reference, and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.pulse.control_charts import Charts
from app.analysis.pulse.expected_times import STRETCH, Expected, History, Trend
from app.analysis.pulse.measurements import COMPUTING, Subjects
from app.analysis.pulse.notices import Ledger, Part
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median_of_known


@dataclass(frozen=True, slots=True, eq=False)
class GroupView:
    """State of a process group after a step, from which notices are opened and cleared.

    Parameters
    ----------
    rows : int
        Number of rows of the history up to that step.
    usual_parts_ns : float64[4]
        Usual waiting, data loading, optimizer and garbage collection of a step, nanoseconds.
    """

    attempt: int
    subjects: Subjects
    charts: Charts
    history: History
    expected: Expected
    trend: Trend
    usual_parts_ns: FloatArray
    ledger: Ledger
    hosts: Mapping[int, str]
    rows: int

    @property
    def numbers(self) -> IntArray:
        """Return the numbers of the steps in the history, int64[rows]."""
        return self.history.numbers[: self.rows]

    @property
    def values(self) -> FloatArray:
        """Return the residuals of the steps in the history, float64[rows, subjects]."""
        return self.history.values[: self.rows]

    @property
    def step(self) -> int:
        """Return the number of the last step in the history."""
        return int(self.history.numbers[self.rows - 1])

    @property
    def end_ns(self) -> int:
        """Return the end of the last step in the history, nanoseconds since the epoch."""
        return int(self.history.ends_ns[self.rows - 1])


# A subject is slow together with another if its median residual over the same steps is more than
# this share of the other's.
TOGETHER: Final = 0.5
# If host names are unknown, the ranks of a stage are taken to share a host if the stage has at most
# this many ranks.
_HOST_RANKS: Final = 8
# A subject drifted if its median residual over this many steps before the slowdown was above this
# share of its slack, and its residual since then is at most this multiple of the slack.
_RAMP_STEPS: Final = 64
_RAMP: Final = 0.4
_HIGHEST_RAMP: Final = 2.2
# A subject whose noise was learned from fewer stretches of steps has too short a past to show a
# drift.
_RAMP_STRETCHES: Final = 4
_PARTS: Final = (Part.WAITING, Part.DATA, Part.OPTIMIZER, Part.GC)


def slow_together(view: GroupView, lead: int, window: IntArray, height: float) -> list[int] | None:
    """Return the columns of the subjects slow like `lead`; None if a stage spans several hosts.

    Ranks are grouped with the other ranks of their host, stages with the other stages of their
    host.
    """
    values = view.history.values[window]
    with np.errstate(all="ignore"):
        middle = np.nanmedian(np.where(np.isnan(values), 0, values), axis=0)
    as_slow = (middle > TOGETHER * height) & ~view.charts.noticed
    as_slow[lead] = True
    first_rank = view.subjects.first_rank
    if lead >= first_rank:
        host = view.hosts.get(int(view.subjects.ranks[lead - first_rank]))
        return [
            column
            for column in np.flatnonzero(as_slow).tolist()
            if column == lead
            or (
                column >= first_rank
                and host is not None
                and view.hosts.get(int(view.subjects.ranks[column - first_rank])) == host
            )
        ]
    stages: list[int] = np.flatnonzero(as_slow[:first_rank]).tolist()
    for chosen in ([stage for stage in stages if stage > COMPUTING], [lead]):
        if share_host(view, chosen):
            return chosen
    return None


def one_rank_moves_stage(view: GroupView, stage: int, window: IntArray, height: float) -> bool:
    """Return whether a single slow rank explains the slowdown of its stage's median."""
    members = view.subjects.members(stage - view.subjects.of_stages.start)
    values = view.history.values[np.ix_(window, view.subjects.first_rank + members)]
    if np.isnan(values).all():
        return False
    return bool(np.nanmax(median_of_known(values)) > TOGETHER * height)


def is_ramp(view: GroupView, lead: int, window: IntArray, height: float) -> bool:
    """Return whether a subject became slow gradually (a drift), not by a jump."""
    slack = float(view.charts.slack[lead])
    before = view.history.values[max(0, window[0] - _RAMP_STEPS) : window[0], lead]
    before = before[~np.isnan(before)]
    is_new = view.charts.learned[lead] < _RAMP_STRETCHES
    if is_new or len(before) < _RAMP_STEPS // 2 or height > _HIGHEST_RAMP * slack:
        return False
    began = np.median(before[: len(before) // 3])
    return bool(np.median(before) > _RAMP * slack and began > _RAMP / 2 * slack)


def rows_since(numbers: IntArray, begun: int) -> IntArray:
    """Return the indices of the rows from step `begun` on, or the last row if there is none."""
    rows = np.flatnonzero(numbers >= begun)
    return rows if len(rows) else np.array([len(numbers) - 1])


def slower_than_own_past(view: GroupView, lead: int, window: IntArray, height: float) -> bool:
    """Return whether a subject is slower than in its own past, not only slower than its peers."""
    if lead < view.subjects.first_rank:
        stage, share = lead - view.subjects.of_stages.start, 0.0
        peers = len(view.subjects.stages)
    else:
        stage = int(view.subjects.stage_of[lead - view.subjects.first_rank])
        peers = len(view.subjects.members(stage))
        share = 0.5 if peers == 2 else 1.0  # noqa: PLR2004
    past = view.history.own_past[window]
    if np.isnan(past).all():
        return True
    own = float(np.nanmedian(past[:, stage] + share * view.history.values[window, lead]))
    # If the whole job became faster, the subject's change is compared with the job's change, which
    # shows only with at least four peers.
    common = float(np.nanmedian(past)) if peers >= 4 else 0.0  # noqa: PLR2004
    return not own - min(common, 0.0) < TOGETHER * height


def growth_is_unknown(view: GroupView, rank: int, window: IntArray) -> bool:
    """Return whether a rank suddenly has more tokens than its time is known for."""
    lengths = view.history.lengths
    earlier = len(view.history.numbers) - len(lengths)
    first = max(int(window[0]), view.rows - STRETCH)
    lengths = lengths[first - earlier : view.rows - earlier]
    expected = view.expected
    return bool(expected.growing.is_unsure(lengths, expected.uneven, view.subjects)[rank])


def grown(view: GroupView, column: int, window: IntArray) -> float:
    """Return a rank's median residual, with the growth that its baseline has followed."""
    followed = view.expected.followed(column, view.subjects)
    return float(np.nanmedian(view.history.values[window, column])) + followed


def collects(view: GroupView, column: int, window: IntArray) -> bool:
    """Return whether garbage collection is most of what a rank computes longer than its peers."""
    rank, history = column - view.subjects.first_rank, view.history
    if rank < 0:
        return False
    count = min(len(history.computing), len(history.collecting))
    rows = window[window >= len(history.numbers) - count]
    from_end = rows - len(history.numbers)
    whole = np.exp(history.computing[from_end, rank])
    longer = whole * -np.expm1(-history.values[rows, column])
    return bool(history.collecting[from_end, rank].sum() > np.nansum(longer) / 2)


def ranks_of(subjects: Subjects, columns: list[int]) -> tuple[int, ...]:
    """Return the global ranks in the given rank and stage columns, sorted."""
    ranks: set[int] = set()
    for column in columns:
        if column >= subjects.first_rank:
            ranks.add(int(subjects.ranks[column - subjects.first_rank]))
        elif column > COMPUTING:
            members = subjects.members(column - subjects.of_stages.start)
            ranks.update(int(rank) for rank in subjects.ranks[members])
    return tuple(sorted(ranks))


def share_host(view: GroupView, columns: list[int]) -> bool:
    """Return whether all ranks of the columns are on one host; a few unknown hosts count as one."""
    ranks = ranks_of(view.subjects, columns)
    where = {view.hosts.get(rank) for rank in ranks}
    if len(ranks) == 1:
        return True
    if where == {None}:
        return len(ranks) <= _HOST_RANKS
    return len(where) == 1


def part_that_grew(view: GroupView, window: IntArray) -> Part:
    """Return the part of the step whose time grew most in the rows of a window."""
    growth = np.nanmedian(view.history.parts_ns[window], axis=0) - view.usual_parts_ns
    step = np.nanmedian(view.history.job[window, 0]) - view.expected.usual_step_ns
    if np.isnan(growth).all() or not growth.max() > 0.3 * step:
        return Part.OTHER
    return _PARTS[int(np.nanargmax(growth))]
