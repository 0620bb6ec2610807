"""Attribution of a slowdown: the slow ranks, their reference, and the first slow step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Float64, Int64
from app.analysis.pulse.control_charts import Charts
from app.analysis.pulse.expected_times import Expected, History, Trail
from app.analysis.pulse.measurements import COMPUTING, Subjects
from app.analysis.pulse.medians import median_of_columns
from app.analysis.pulse.notices import Ledger, Part

# ---- What those who decide on notices look at --------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A process group after some step.

    Parameters
    ----------
    rows : int
        How many rows of the history lie before the decision.
    usual_parts_ns : float64[4]
        What is usual for waiting, data, optimizer and garbage collection.
    """

    attempt: int
    subjects: Subjects
    charts: Charts
    history: History
    expected: Expected
    trail: Trail
    usual_parts_ns: Float64
    ledger: Ledger
    hosts: Mapping[int, str]
    rows: int

    @property
    def numbers(self) -> Int64:
        """Return the numbers of the steps."""
        return self.history.numbers[: self.rows]

    @property
    def values(self) -> Float64:
        """Return the residuals."""
        return self.history.values[: self.rows]

    @property
    def step(self) -> int:
        """Return the number of the last step."""
        return int(self.history.numbers[self.rows - 1])

    @property
    def end_ns(self) -> int:
        """Return the end of the last step."""
        return int(self.history.ends_ns[self.rows - 1])


# ---- Who is slow together, against what, and since when ----------------------------------------


# Who goes together with another one: at least half as slow over the same steps.
_TOGETHER: Final = 0.5
# A stage of as many ranks at most is taken to be on one host where hosts are unknown.
_HOST_RANKS: Final = 8
# Before a drift crosses the threshold it is at nearly half of it for a while.
_RAMP_STEPS: Final = 64
_RAMP: Final = 0.4
_HIGHEST_RAMP: Final = 2.2
# What is slow from its first steps on did not grow.
_RAMP_STRETCHES: Final = 4
_PARTS: Final = (Part.WAITING, Part.DATA, Part.OPTIMIZER, Part.GC)


def together(scene: Scene, lead: int, window: Int64, height: float) -> list[int] | None:
    """Return who is slow together with a subject; None where a stage's ranks share no host."""
    values = scene.history.values[window]
    with np.errstate(all="ignore"):
        middle = np.nanmedian(np.where(np.isnan(values), 0, values), axis=0)
    as_slow = (middle > _TOGETHER * height) & ~scene.charts.noticed
    as_slow[lead] = True
    if lead >= scene.subjects.first_rank:
        rank = int(scene.subjects.ranks[lead - scene.subjects.first_rank])
        host = scene.hosts.get(rank)
        return [
            column
            for column in np.flatnonzero(as_slow).tolist()
            if column == lead
            or (
                column >= scene.subjects.first_rank
                and host is not None
                and scene.hosts.get(int(scene.subjects.ranks[column - scene.subjects.first_rank]))
                == host
            )
        ]
    stages: list[int] = np.flatnonzero(as_slow[: scene.subjects.first_rank]).tolist()
    for chosen in ([stage for stage in stages if stage > COMPUTING], [lead]):
        if one_host(scene, chosen):
            return chosen
    return None


def is_one_of(scene: Scene, stage: int, window: Int64, height: float) -> bool:
    """Return whether one rank of a stage moves its median: it is noticed by itself."""
    members = scene.subjects.members(stage - scene.subjects.of_stages.start)
    values = scene.history.values[np.ix_(window, scene.subjects.first_rank + members)]
    if np.isnan(values).all():
        return False
    return bool(np.nanmax(median_of_columns(values)) > _TOGETHER * height)


def is_ramp(scene: Scene, lead: int, window: Int64, height: float) -> bool:
    """Return whether a subject crossed the threshold slowly, and not at once."""
    slack = float(scene.charts.slack[lead])
    before = scene.history.values[max(0, window[0] - _RAMP_STEPS) : window[0], lead]
    before = before[~np.isnan(before)]
    is_new = scene.charts.learned[lead] < _RAMP_STRETCHES
    if is_new or len(before) < _RAMP_STEPS // 2 or height > _HIGHEST_RAMP * slack:
        return False
    began = np.median(before[: len(before) // 3])
    return bool(np.median(before) > _RAMP * slack and began > _RAMP / 2 * slack)


def rows_since(numbers: Int64, begun: int) -> Int64:
    """Return the rows since a step, the last one at least."""
    rows = np.flatnonzero(numbers >= begun)
    return rows if len(rows) else np.array([len(numbers) - 1])


def by_own_past(scene: Scene, lead: int, window: Int64, height: float) -> bool:
    """Return whether a subject is slower than it was, and others are not just faster."""
    if lead < scene.subjects.first_rank:
        stage, share = lead - scene.subjects.of_stages.start, 0.0
        peers = len(scene.subjects.stages)
    else:
        stage = int(scene.subjects.stage_of[lead - scene.subjects.first_rank])
        peers = len(scene.subjects.members(stage))
        share = 0.5 if peers == 2 else 1.0  # noqa: PLR2004
    past = scene.history.own_past[window]
    if np.isnan(past).all():
        return True
    own = float(np.nanmedian(past[:, stage] + share * scene.history.values[window, lead]))
    # All of a job may get faster at once; of a few ranks it cannot be told.
    common = float(np.nanmedian(past)) if peers >= 4 else 0.0  # noqa: PLR2004
    return not own - min(common, 0.0) < _TOGETHER * height


def ranks_of(subjects: Subjects, columns: list[int]) -> tuple[int, ...]:
    """Return the ranks of some columns, rising."""
    found: set[int] = set()
    for column in columns:
        if column >= subjects.first_rank:
            found.add(int(subjects.ranks[column - subjects.first_rank]))
        elif column > COMPUTING:
            members = subjects.members(column - subjects.of_stages.start)
            found.update(int(rank) for rank in subjects.ranks[members])
    return tuple(sorted(found))


def one_host(scene: Scene, columns: list[int]) -> bool:
    """Return whether ranks are on one host, or may be where that is unknown."""
    ranks = ranks_of(scene.subjects, columns)
    where = {scene.hosts.get(rank) for rank in ranks}
    if len(ranks) == 1:
        return True
    if where == {None}:
        return len(ranks) <= _HOST_RANKS
    return len(where) == 1


def what_grew(scene: Scene, window: Int64) -> Part:
    """Return which part of the step grew most over some steps."""
    parts = scene.history.parts_ns
    before = scene.usual_parts_ns
    growth = np.nanmedian(parts[window], axis=0) - before
    step = np.nanmedian(scene.history.job[window, 0]) - scene.expected.usual_step_ns
    if np.isnan(growth).all() or not growth.max() > 0.3 * step:
        return Part.OTHER
    return _PARTS[int(np.nanargmax(growth))]
