"""Slowdown detection of a job: reads pulse rows, returns notices of each process group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from app.analysis.pulse.attribution import GroupView
from app.analysis.pulse.cases import CaseTracker
from app.analysis.pulse.columns import (
    NO_BEAT,
    Pulses,
    Steps,
)
from app.analysis.pulse.control_charts import Charts
from app.analysis.pulse.expected_times import STRETCH, Expected, History, Trend
from app.analysis.pulse.heartbeats import USUAL, HeartbeatMonitor, Limits
from app.analysis.pulse.measurements import REST, Measured, Subjects
from app.analysis.pulse.medians import median_of_rows
from app.analysis.pulse.moving_pauses import MovingPauses
from app.analysis.pulse.notices import Ledger, Notice, Stall
from app.analysis.pulse.stalls import Stalls
from app.analysis.pulse.step_assembly import StepAssembler
from app.analysis.pulse.token_model import TokenImbalance
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median_of_known

# This many first steps of a group, or of a rank that joins, are ignored, because kernels are
# compiled and caches are filled.
FIRST_STEPS: Final = 10


@dataclass(slots=True)
class Watch:
    """Detection state of a process group, whose size depends on its ranks, not on its steps."""

    group: int
    attempt: int
    ranks: IntArray
    pp_ranks: IntArray
    ages: IntArray
    closed: int = 0
    # Usual waiting, data loading, optimizer and garbage collection time of a step, nanoseconds.
    usual_parts_ns: FloatArray = field(default_factory=lambda: np.full(4, np.nan))
    expected: Expected = field(default_factory=Expected)
    charts: Charts = field(default_factory=Charts)
    history: History = field(default_factory=History)
    trend: Trend = field(default_factory=Trend)
    tracker: CaseTracker = field(default_factory=CaseTracker)
    pauses: MovingPauses = field(default_factory=MovingPauses)
    imbalance: TokenImbalance = field(default_factory=TokenImbalance)

    @classmethod
    def begin(cls, steps: Steps, hosts: Mapping[int, str]) -> Watch:
        """Return the state of a process group before its first step."""
        none = np.empty(0, np.int64)
        watch = cls(steps.group, steps.attempt, none, none, none)
        watch._join(steps, hosts)
        return watch

    def _join(self, steps: Steps, hosts: Mapping[int, str]) -> None:
        """Grow all arrays for ranks that joined the process group."""
        before = Subjects.of(self.ranks, self.pp_ranks, hosts)
        after = Subjects.of(steps.ranks, steps.pp_ranks, hosts)
        at, number = before.places_in(after), after.number
        stages = np.searchsorted(after.stages, before.stages), len(after.stages)
        ranks = np.arange(len(before.ranks)), len(after.ranks)
        if not len(self.ranks):
            at = np.arange(0)
        self.expected.grow(before, after)
        columns = at if len(self.ranks) else np.arange(len(self.charts.score))
        self.charts.grow(columns, number)
        width = self.history.values.shape[1]
        self.history.grow(
            {
                "values": (at if width else np.arange(0), number),
                "logs": stages,
                "own_past": stages,
                "computing": ranks,
                "lengths": ranks,
                "collecting": ranks,
            }
        )
        self.trend.grow(at if width else np.arange(0), number)
        self.tracker.move(at)
        count = len(steps.ranks) - len(self.ranks)
        self.imbalance.grow(count)
        self.ages = np.append(self.ages, np.zeros(count, np.int64))
        self.ranks, self.pp_ranks = steps.ranks, steps.pp_ranks

    def advance(
        self, steps: Steps, ledger: Ledger, stalls: Stalls, hosts: Mapping[int, str]
    ) -> None:
        """Process the next steps of the group; results do not depend on how steps are batched."""
        if len(steps.ranks) > len(self.ranks):
            self._join(steps, hosts)
        subjects = Subjects.of(self.ranks, self.pp_ranks, hosts)
        measured = self.expected.measured(steps, self.history.collecting)
        start, end = 0, len(steps.steps)
        while start < end:
            stop = min(end, start + STRETCH - (self.closed - FIRST_STEPS) % STRETCH)
            self._look(measured.some(slice(start, stop)), subjects, ledger, stalls, hosts)
            self.closed += stop - start
            if self.closed > FIRST_STEPS and (self.closed - FIRST_STEPS) % STRETCH == 0:
                self._learn(subjects, ledger, hosts)
            start = stop

    def _look(
        self,
        measured: Measured,
        subjects: Subjects,
        ledger: Ledger,
        stalls: Stalls,
        hosts: Mapping[int, str],
    ) -> None:
        steps, residuals = measured.steps, self.expected.residuals(measured, subjects)
        before = self.ages
        self.ages = before + measured.there.sum(axis=0)
        if (before <= FIRST_STEPS).any():
            ages = before + np.cumsum(measured.there, axis=0)
            residuals.values[:, subjects.of_ranks][ages <= FIRST_STEPS] = np.nan
        first = self.closed + np.arange(len(steps.steps)) < FIRST_STEPS
        residuals.values[first] = np.nan
        usual = self.expected.usual_step_ns, self.expected.rest_ns
        stalls.look(steps, usual[0], usual[0] - usual[1], self.usual_parts_ns, first)
        # The ranks' usual differences are learned from the first stretch.
        has_usual = self.closed >= FIRST_STEPS + STRETCH
        kept = len(self.history.numbers)
        self.history.add(steps.steps, steps.closed_ns, residuals, measured)
        at, values = 0, residuals.values
        while at < len(values):
            run = self.charts.run(values[at:], steps.steps[at:])
            crossings = np.flatnonzero(run.crossed.any(axis=1))
            stop = at + int(crossings[0]) + 1 if len(crossings) else len(values)
            if has_usual:
                some, has_case = slice(at, stop), self.tracker.rotates
                of_ranks = values[some, subjects.of_ranks]
                self.pauses.look(measured.some(some), of_ranks, subjects, ledger, has_case=has_case)
            self.charts.take(run, stop - at - 1)
            at = stop
            if not len(crossings):
                break
            if self.pauses.noticed:
                # Pauses that move make ranks look slow for a few steps.
                self.charts.forget_ranks(subjects)
            self.tracker.judge(self._view(subjects, ledger, hosts, kept + at))
        self.history.trim()

    def _learn(self, subjects: Subjects, ledger: Ledger, hosts: Mapping[int, str]) -> None:
        residuals, stretch = self.history.last(STRETCH)
        quiet = self.charts.quiet & ~self.tracker.with_open_case(subjects.number)
        self.expected.fit_tokens(residuals, subjects)
        self.expected.begin_levels(residuals.logs)
        middle = median_of_known(residuals.values)
        moved = self.expected.learn(residuals, middle, stretch, subjects, quiet=quiet)
        if moved.any():
            residuals.values[:, subjects.of_ranks] -= moved
            middle = median_of_known(residuals.values)
        self.charts.learn(residuals.values, middle, subjects, quiet)
        if quiet[REST] or np.isnan(self.usual_parts_ns).any():
            self.usual_parts_ns = median_of_known(stretch.parts_ns)
        means = middle.copy()
        means[subjects.of_ranks] += self.expected.offset - self.expected.first_offset
        step, end_ns = int(self.history.numbers[-1]), int(self.history.ends_ns[-1])
        self.trend.add(means, step, end_ns)
        if residuals.lengths.any() or self.imbalance.number >= 0:
            self.imbalance.add(
                residuals.computing,
                residuals.lengths,
                self.expected.growing,
                self.expected.uneven,
                subjects,
                int(self.history.numbers[-STRETCH]),
            )
            self.imbalance.report(self.attempt, subjects, step, end_ns, ledger)
        self.charts.add_growth(means, subjects)
        self.tracker.review(self._view(subjects, ledger, hosts, len(self.history.numbers)))

    def _view(
        self, subjects: Subjects, ledger: Ledger, hosts: Mapping[int, str], rows: int
    ) -> GroupView:
        return GroupView(
            self.attempt,
            subjects,
            self.charts,
            self.history,
            self.expected,
            self.trend,
            self.usual_parts_ns,
            ledger,
            hosts,
            rows,
        )

    def end(self, ledger: Ledger) -> None:
        """Clear the open notices when the process group has ended."""
        last = self.history.numbers[-1:]
        step = int(last[0]) if len(last) else 0
        self.tracker.end(step, ledger)
        self.pauses.end(step, ledger)
        self.imbalance.end(step, ledger)


# The error of a clock is stored and corrected if it differs from the median of all clocks by more
# than this.
_WRONG_CLOCK_NS = 2_000_000_000
# A pause before a step may be a restart if it is longer than this, and than this multiple of the
# step time.
_PAUSE_NS = 5_000_000_000
_PAUSE_STEPS = 3


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes that a batch of rows made.

    Parameters
    ----------
    notices : tuple of Notice
        New and changed notices.
    withdrawn : tuple of int
        Numbers of notices that were merged into another one.
    steps : tuple of Steps
        Steps that the batch completed.
    """

    notices: tuple[Notice, ...]
    withdrawn: tuple[int, ...]
    steps: tuple[Steps, ...] = ()


@dataclass(slots=True)
class Detector:
    """Detection state of a job, whose size depends on the number of ranks; see `detector_state`.

    Notices do not depend on how rows are cut into batches.

    Parameters
    ----------
    hosts : dict of int to str
        Known host names by rank.
    offsets : dict of int to int
        Nanoseconds by which wrong clocks are ahead, by rank.
    there : list of bool
        Whether each rank sent the last whole step.
    ended_ns : int
        Median over the ranks of the end of the last whole step.
    """

    hosts: dict[int, str] = field(default_factory=dict)
    assembler: StepAssembler = field(default_factory=StepAssembler)
    watch: Watch | None = None
    stalled: Stalls = field(default_factory=Stalls)
    ledger: Ledger = field(default_factory=Ledger)
    # The ledger of heartbeats has odd numbers, `ledger` even ones, so that their numbers never
    # collide.
    heartbeats: HeartbeatMonitor = field(
        default_factory=lambda: HeartbeatMonitor(Ledger(next_number=1))
    )
    offsets: dict[int, int] = field(default_factory=dict)
    there: list[bool] = field(default_factory=list)
    ended_ns: int = 0

    def advance(self, rows: Pulses, limits: Limits = USUAL) -> Changes:
        """Process the next rows in the order of their arrival; return the changes they made."""
        whole = []
        for steps in self.assembler.add(rows.take(rows.phase == NO_BEAT), limits.step_waits_ns):
            self._look(steps)
            whole.append(steps)
        self.heartbeats.advance(rows, self.hosts, self.offsets, limits)
        return self._changes(whole)

    def finish(self) -> Changes:
        """Process the incomplete steps after the last row; return the changes they made."""
        whole = []
        for steps in self.assembler.close_all():
            self._look(steps)
            whole.append(steps)
        return self._changes(whole)

    def _look(self, steps: Steps) -> None:
        if self.watch is None or self.watch.group != steps.group:
            self._begin(steps)
        begins = self._regrouped(steps)
        for start, stop in pairwise(sorted({0, *begins, len(steps.steps)})):
            part = steps.some(slice(start, stop))
            if start in begins:
                self._begin(part)
            if self.watch is not None:
                self.watch.advance(part, self.ledger, self.stalled, self.hosts)
        ended = steps.ended_ns[-1]
        if (ended > 0).all() and len(ended) > 2:  # noqa: PLR2004
            ahead = ended - int(np.median(ended))
            wrong = np.abs(ahead) > _WRONG_CLOCK_NS
            self.offsets = {
                int(rank): int(by)
                for rank, by in zip(steps.ranks[wrong], ahead[wrong], strict=True)
            }

    def _begin(self, steps: Steps) -> None:
        """End the previous process group, and start the process group of the given steps."""
        if self.watch is not None:
            self.watch.end(self.ledger)
            if self.watch.group != steps.group:
                self.there, self.ended_ns = [], 0
        self.watch = Watch.begin(steps, self.hosts)

    def _regrouped(self, steps: Steps) -> list[int]:
        """Return the indices of steps at which other ranks continue after a pause.

        After a restart in the same attempt, ranks may be numbered anew.
        """
        there = ~np.isnan(steps.measures["step_ns"])
        first_ns = int(steps.ended_ns[0].max())
        middle = median_of_rows(np.where(there, steps.ended_ns - first_ns, np.nan))
        before = np.append(self.ended_ns - first_ns if self.there else middle[0], middle[:-1])
        last = np.zeros(there.shape[1], np.bool_)
        last[: len(self.there)] = self.there
        earlier = np.vstack([last if self.there else there[0], there[:-1]])
        changed = np.count_nonzero(there != earlier, axis=1)
        step_ns = median_of_rows(steps.measures["step_ns"])
        pause = middle - before - step_ns
        few = min(2, max(1, there.shape[1] // 8))
        restarts = (changed >= few) & (pause > np.maximum(_PAUSE_NS, _PAUSE_STEPS * step_ns))
        self.there, self.ended_ns = there[-1].tolist(), first_ns + int(middle[-1])
        return [int(row) for row in np.flatnonzero(restarts)]

    def _changes(self, whole: list[Steps]) -> Changes:
        changed = {**self.ledger.take(), **self.heartbeats.ledger.take()}
        return Changes(
            tuple(notice for notice in changed.values() if notice is not None),
            tuple(number for number, notice in changed.items() if notice is None),
            tuple(whole),
        )

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """Return the stalls (single long steps) by cause, sorted by descending cost."""
        return self.stalled.listed()

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of dropped rows by code."""
        return dict(sorted(self.assembler.counts.items()))


@dataclass(slots=True)
class Record:
    """The latest version of every notice of a detector."""

    notices: dict[int, Notice] = field(default_factory=dict)

    def take(self, changes: Changes) -> None:
        """Apply the changes that a batch made."""
        for notice in changes.notices:
            self.notices[notice.number] = notice
        for number in changes.withdrawn:
            self.notices.pop(number, None)

    @property
    def listed(self) -> tuple[Notice, ...]:
        """Return the notices sorted by time."""
        return tuple(
            sorted(
                self.notices.values(), key=lambda notice: (notice.noticed_time_ns, notice.number)
            )
        )
