"""Pauses that move between ranks: in most steps another rank pauses, and all others wait for it.

A control chart of a rank does not show them, as each rank pauses in few steps. A binomial CUSUM
over the steps does: a step adds the log-likelihood ratio of "most steps have a pause" to "as many
as usual", where the usual share is learned from the job, as healthy ranks collect garbage too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Steps
from app.analysis.pulse.control_charts import CLEARED, NOTICED
from app.analysis.pulse.measurements import Measured, Subjects
from app.analysis.pulse.medians import median_of_rows
from app.analysis.pulse.notices import Evidence, Ledger, Notice, NoticeKind, Part, cleared
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import MAD_TO_SD

# A step has a pause if a rank takes longer than its peers by this logarithm, and by this many
# standard deviations of the ranks in the step.
_PAUSE: Final = 0.05
_DEVIATIONS: Final = 6.0
_FEWEST_RANKS: Final = 3
# A rank pauses together with another if it takes longer by more than this share of the other's.
_TOGETHER: Final = 0.5
# Share of steps with a pause that is noticed.
_MOST: Final = 0.8
# Usual share of such steps: prior, number of steps that the prior counts for, highest value (above
# it, more pauses are not noticed), factor for its uncertainty, and weight of the earlier steps when
# a step is added.
_PRIOR: Final = (0.12, 32.0)
_HIGHEST: Final = 0.7
_UNCERTAIN: Final = 1.5
_FORGETS: Final = 1 - 1 / 256
# Steps that are needed to know the usual share; the first stretch of a group, in which the ranks'
# usual differences are learned, does not count.
_LEARNS: Final = 16
# A score that rises for more steps than this shows no change, and is reset.
_SLOWEST: Final = 200
# Pauses move if at least this many hosts (or ranks) have them, none of them more than this share.
_FEWEST_PLACES: Final = 3
_OF_ONE: Final = 0.5
# While a notice is open, this number of pauses at a time is checked for whether they still move.
_CHECKED: Final = 32
# A notice is reopened if pauses come back within this many steps.
_COMES_BACK: Final = 1000
_PARTS: Final = (Part.COMPUTING, Part.GC)


@dataclass(slots=True)
class MovingPauses:
    """Evidence of a process group's moving pauses, and the notice about them.

    Parameters
    ----------
    steps, paused : float
        Number of recent steps, and of those with a pause; older steps weigh less.
    score : float
        Score for pauses in most steps; with a notice, for having ended.
    rise : int
        Step at which `score` began to rise from 0; -1 while it is 0.
    counts : int64[ranks]
        Number of pauses of each rank since `rise`.
    places : Counter
        Number of pauses of each host since `rise`; of each rank if hosts are unknown.
    heights : list of float
        By pause since `rise`: logarithm by which the rank took longer than its peers.
    grown : float64[parts]
        Sum of the growth of computing and of garbage collection in these pauses.
    number : int
        Number of the notice in the ledger; -1 before the first one.
    noticed : bool
        Whether the notice is open.
    """

    steps: float = 0.0
    paused: float = 0.0
    score: float = 0.0
    rise: int = -1
    counts: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    places: Counter[int] = field(default_factory=Counter)
    heights: list[float] = field(default_factory=list)
    grown: FloatArray = field(default_factory=lambda: np.zeros(len(_PARTS)))
    number: int = -1
    noticed: bool = False

    def look(
        self,
        measured: Measured,
        residuals: FloatArray,
        subjects: Subjects,
        ledger: Ledger,
        *,
        has_case: bool,
    ) -> None:
        """Add steps; open or clear the notice.

        Parameters
        ----------
        residuals : float64[steps, ranks]
            Logarithm of each rank's computing to that expected by its peers; NaN where unknown.
        has_case : bool
            Whether a case is open whose slow rank changes, whose notice is enough.
        """
        ranks = len(subjects.ranks)
        if ranks < _FEWEST_RANKS:
            return
        self.counts = np.append(self.counts, np.zeros(ranks - len(self.counts), np.int64))
        grown = _growth(measured, residuals)
        longer = grown.sum(axis=0)
        middle = median_of_rows(longer)
        scatter = MAD_TO_SD * median_of_rows(np.abs(longer - middle[:, None]))
        top = longer.max(axis=1)
        paused = top >= np.maximum(_PAUSE, middle + _DEVIATIONS * scatter)
        for row, step in enumerate(measured.steps.steps.tolist()):
            if paused[row]:
                self._count(longer[row], grown[:, row], subjects)
            self._score(step, paused=bool(paused[row]))
            if self.noticed and self.score >= CLEARED:
                self.end(self.rise, ledger)
            elif self.noticed and len(self.heights) >= _CHECKED:
                if not self._moves():
                    # A rank or host that is always slow gets a notice of its own.
                    self.end(step, ledger)
                self._forget_pauses()
            elif not self.noticed and self.score >= NOTICED:
                if self._moves() and not has_case:
                    self._open(measured.steps, row, ledger)
                self._forget()

    def _count(self, longer: FloatArray, grown: FloatArray, subjects: Subjects) -> None:
        """Count the pause of a step, given how much longer each rank takes, float64[ranks]."""
        rank = int(longer.argmax())
        hosts = np.unique(subjects.host_of)
        by_host = len(hosts) >= _FEWEST_PLACES and hosts[0] >= 0
        self.counts += longer > _TOGETHER * longer[rank]
        # Ranks have negative numbers, which no host has.
        self.places[int(subjects.host_of[rank]) if by_host else -1 - rank] += 1
        self.heights.append(float(longer[rank]))
        self.grown += grown[:, rank]

    def _score(self, step: int, *, paused: bool) -> None:
        """Add a step to the score, and to the usual share of steps with a pause."""
        prior, weight = _PRIOR
        share = (self.paused + prior * weight) / (self.steps + weight)
        usual = _UNCERTAIN * share
        if not self.noticed:
            # The usual share is that before a notice.
            self.steps = _FORGETS * self.steps + 1
            self.paused = _FORGETS * self.paused + paused
        if not self.noticed and (self.steps < _LEARNS or usual > _HIGHEST):
            self._forget()
            return
        added = np.log(_MOST / usual) if paused else np.log((1 - _MOST) / (1 - usual))
        self.score += -added if self.noticed else added
        if self.score <= 0:
            self.score, self.rise = 0.0, -1
            if not self.noticed:
                self._forget_pauses()
        elif self.rise < 0:
            self.rise = step
        elif not self.noticed and step - self.rise > _SLOWEST:
            self._forget()

    def _moves(self) -> bool:
        """Return whether several hosts have the pauses, and no rank or host has most of them."""
        most = _OF_ONE * len(self.heights)
        return (
            len(self.places) >= _FEWEST_PLACES
            and max(self.places.values()) <= most
            and int(self.counts.max()) <= most
        )

    def _forget(self) -> None:
        self.score, self.rise = 0.0, -1
        self._forget_pauses()

    def _forget_pauses(self) -> None:
        self.counts[:] = 0
        self.places.clear()
        self.heights.clear()
        self.grown[:] = 0.0

    def _open(self, steps: Steps, row: int, ledger: Ledger) -> None:
        self.noticed = True
        earlier = ledger.get(self.number)
        if earlier is not None and self.rise - (earlier.cleared_step or 0) <= _COMES_BACK:
            ledger.update(replace(earlier, cleared_step=None))
            return
        step, factor = int(steps.steps[row]), float(np.exp(np.median(self.heights)))
        part = _PARTS[int(self.grown.argmax())]
        count, several = len(self.places), int(self.counts.sum()) > len(self.heights)
        place = "host" if several and min(self.places) >= 0 else "rank"
        self.number = ledger.add(
            Notice(
                -1,
                NoticeKind.SPELLS,
                steps.attempt,
                (),
                (),
                factor,
                self.rise,
                step,
                int(steps.closed_ns[row]),
                None,
                Evidence(
                    _SENTENCES[part].format(factor, place, count),
                    grew=part,
                    share=len(self.heights) / (step - self.rise + 1),
                    rotating=True,
                ),
            )
        )

    def end(self, step: int, ledger: Ledger) -> None:
        """Clear the notice, if it is open."""
        notice = ledger.open.get(self.number)
        if self.noticed and notice is not None:
            ledger.update(cleared(notice, step))
        self.noticed = False
        self._forget()


_SENTENCES: Final = {
    Part.COMPUTING: "Steps take {0:.2f}× as long: another {1} pauses in each, {2} in turn; no rank "
    "is to blame",
    Part.GC: "Steps take {0:.2f}× as long: another {1} collects garbage in each, {2} in turn; no "
    "rank is to blame. Collected on all ranks in the same step (gc.disable, gc.collect), or with "
    "gc.freeze, it costs one step",
}


def _growth(measured: Measured, residuals: FloatArray) -> FloatArray:
    """Return by how much each rank takes longer than its peers, float64[parts, steps, ranks].

    The parts are computing and garbage collection; values are logarithms.
    """
    whole, more = np.exp(measured.logs), measured.collecting
    own = np.where(np.isnan(whole), measured.steps.measures["compute_ns"], whole - measured.lasting)
    with np.errstate(invalid="ignore", divide="ignore"):
        collecting = np.where((own > 0) & (more > 0), np.log1p(more / own), 0.0)
        computing = residuals - np.log(whole / own)
    return np.stack([np.where(np.isnan(computing), 0.0, computing), collecting])
