"""Detector of a job: rows in, notices out, with one watched process group at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from app.analysis.pulse.attribution import Scene
from app.analysis.pulse.columns import NO_BEAT, Bool, Float64, Int64, Pulses, Steps
from app.analysis.pulse.control_charts import Charts
from app.analysis.pulse.expected_times import Expected, History, Trail
from app.analysis.pulse.heartbeats import USUAL, Beats, Limits
from app.analysis.pulse.measurements import REST, Measured, Subjects
from app.analysis.pulse.medians import median_of_columns, median_of_rows
from app.analysis.pulse.notices import Ledger, Notice, Stall
from app.analysis.pulse.stalls import Stalls
from app.analysis.pulse.step_assembly import Gathering
from app.analysis.pulse.suspects import Suspects

# ---- One process group, watched step by step ---------------------------------------------------


# The first steps of a group, and of a rank that joins, say nothing: compiling, filling caches.
FIRST_STEPS: Final = 10
# What is usual is learned at the end of each stretch of that many steps.
STRETCH: Final = 32


@dataclass(slots=True)
class Watch:
    """The state of one process group; its size follows the number of ranks, not of steps."""

    group: int
    attempt: int
    ranks: Int64
    pp_ranks: Int64
    ages: Int64
    closed: int = 0
    # Waiting, data, optimizer, garbage collection: what is usual.
    usual_parts_ns: Float64 = field(default_factory=lambda: np.full(4, np.nan))
    expected: Expected = field(default_factory=Expected)
    charts: Charts = field(default_factory=Charts)
    history: History = field(default_factory=History)
    trail: Trail = field(default_factory=Trail)
    suspects: Suspects = field(default_factory=Suspects)

    @classmethod
    def begin(cls, steps: Steps, hosts: Mapping[int, str]) -> Watch:
        """Begin with a group's first steps."""
        none = np.empty(0, np.int64)
        watch = cls(steps.group, steps.attempt, none, none, none)
        watch._join(steps, hosts)
        return watch

    def _join(self, steps: Steps, hosts: Mapping[int, str]) -> None:
        """Make room for ranks that are new."""
        before = Subjects.of(self.ranks, self.pp_ranks, hosts)
        after = Subjects.of(steps.ranks, steps.pp_ranks, hosts)
        at, number = before.places_in(after), after.number
        stages = np.searchsorted(after.stages, before.stages), len(after.stages)
        ranks = np.arange(len(before.ranks)), len(after.ranks)
        if not len(self.ranks):
            at = np.arange(0)
        self.expected.grow(before, after)
        known = at if len(self.ranks) else np.arange(len(self.charts.score))
        self.charts.grow(known, number)
        width = self.history.values.shape[1]
        self.history.grow(
            {
                "values": (at if width else np.arange(0), number),
                "logs": stages,
                "own_past": stages,
                "lengths": ranks,
            }
        )
        self.trail.grow(at if width else np.arange(0), number)
        self.suspects.move(at)
        self.ages = np.append(self.ages, np.zeros(len(steps.ranks) - len(self.ranks), np.int64))
        self.ranks, self.pp_ranks = steps.ranks, steps.pp_ranks

    def advance(
        self, steps: Steps, ledger: Ledger, stalls: Stalls, hosts: Mapping[int, str]
    ) -> None:
        """Look at the next steps of the group."""
        if len(steps.ranks) > len(self.ranks):
            self._join(steps, hosts)
        subjects = Subjects.of(self.ranks, self.pp_ranks, hosts)
        seen = self.expected.measured(steps)
        start, end = 0, len(steps.steps)
        while start < end:
            # Stretches begin at the same steps, however these come.
            left = STRETCH - (self.closed - FIRST_STEPS) % STRETCH
            stop = min(end, start + left)
            rows = slice(start, stop)
            self._look(seen.some(rows), subjects, ledger, stalls, hosts)
            self.closed += stop - start
            if self.closed > FIRST_STEPS and (self.closed - FIRST_STEPS) % STRETCH == 0:
                self._learn(subjects, ledger, hosts)
            start = stop

    def _look(
        self,
        seen: Measured,
        subjects: Subjects,
        ledger: Ledger,
        stalls: Stalls,
        hosts: Mapping[int, str],
    ) -> None:
        steps, residuals = seen.steps, self.expected.residuals(seen, subjects)
        self._leave_out_first(residuals.values, seen.there, subjects)
        first = self.closed + np.arange(len(steps.steps)) < FIRST_STEPS
        residuals.values[first] = np.nan
        usual = self.expected.usual_step_ns, self.expected.rest_ns
        stalls.look(steps, usual[0], usual[0] - usual[1], self.usual_parts_ns, first)
        known = len(self.history.numbers)
        self.history.add(steps.steps, steps.closed_ns, residuals, seen.stretch)
        at, values = 0, residuals.values
        while at < len(values):
            course = self.charts.run(values[at:], steps.steps[at:])
            hits = np.flatnonzero(course.crossed.any(axis=1))
            if not len(hits):
                self.charts.take(course, len(values) - at - 1)
                break
            self.charts.take(course, int(hits[0]))
            at += int(hits[0]) + 1
            self.suspects.judge(self._scene(subjects, ledger, hosts, known + at))
        self.history.trim()

    def _leave_out_first(self, values: Float64, there: Bool, subjects: Subjects) -> None:
        """Make the first steps of each rank say nothing."""
        before = self.ages
        self.ages = before + there.sum(axis=0)
        if (before <= FIRST_STEPS).any():
            ages = before + np.cumsum(there, axis=0)
            values[:, subjects.of_ranks][ages <= FIRST_STEPS] = np.nan

    def _learn(self, subjects: Subjects, ledger: Ledger, hosts: Mapping[int, str]) -> None:
        residuals, stretch = self.history.last(STRETCH)
        quiet = self.charts.quiet & ~self.suspects.held(subjects.number)
        self.expected.fit_lengths(residuals.values, residuals.lengths, subjects)
        self.expected.begin_levels(residuals.logs)
        middle = median_of_columns(residuals.values)
        moved = self.expected.learn(residuals, middle, stretch, subjects, quiet=quiet)
        if moved.any():
            residuals.values[:, subjects.of_ranks] -= moved
            middle = median_of_columns(residuals.values)
        self.charts.learn(residuals.values, middle, subjects, quiet)
        if quiet[REST] or np.isnan(self.usual_parts_ns).any():
            self.usual_parts_ns = median_of_columns(stretch.parts_ns)
        means = middle.copy()
        means[subjects.of_ranks] += self.expected.offset - self.expected.first_offset
        self.trail.add(means, int(self.history.numbers[-1]), int(self.history.ends_ns[-1]))
        scene = self._scene(subjects, ledger, hosts, len(self.history.numbers))
        self.suspects.review(scene)

    def _scene(
        self, subjects: Subjects, ledger: Ledger, hosts: Mapping[int, str], rows: int
    ) -> Scene:
        return Scene(
            self.attempt,
            subjects,
            self.charts,
            self.history,
            self.expected,
            self.trail,
            self.usual_parts_ns,
            ledger,
            hosts,
            rows,
        )

    def end(self, ledger: Ledger) -> None:
        """Close what is open: the process group is no more."""
        last = self.history.numbers[-1:]
        self.suspects.end(int(last[0]) if len(last) else 0, ledger)


# ---- All that is noticed in a job: rows in, notices out, and a state between -------------------


# A clock that is farther from those of the others than this is named and corrected.
_WRONG_CLOCK_NS = 2_000_000_000
# A pause before a step that is no part of it: that long at least, and that many steps.
_PAUSE_NS = 5_000_000_000
_PAUSE_STEPS = 3


@dataclass(frozen=True, slots=True)
class Changes:
    """What a batch of rows changed.

    Parameters
    ----------
    notices : tuple of Notice
        New ones, and those whose words are new.
    withdrawn : tuple of int
        Numbers of notices that turned out to be part of another one.
    steps : tuple of Steps
        Those that are whole with the batch.
    """

    notices: tuple[Notice, ...]
    withdrawn: tuple[int, ...]
    steps: tuple[Steps, ...] = ()


@dataclass(slots=True)
class Detector:
    """The state of a job's detection; bounded by its ranks, and kept with `stored.to_bytes`.

    Notices are the same however rows are cut into batches.

    Parameters
    ----------
    hosts : dict of int to str
        Names of hosts by rank, as far as they are known.
    """

    hosts: dict[int, str] = field(default_factory=dict)
    gathering: Gathering = field(default_factory=Gathering)
    watch: Watch | None = None
    stalled: Stalls = field(default_factory=Stalls)
    ledger: Ledger = field(default_factory=Ledger)
    # Numbers of notices of one kind do not depend on those of the other.
    beats: Beats = field(default_factory=lambda: Beats(Ledger(next_number=1)))
    offsets: dict[int, int] = field(default_factory=dict)
    # Who sent the last whole step, by its place, and when it ended.
    there: list[bool] = field(default_factory=list)
    ended_ns: int = 0

    def advance(self, rows: Pulses, limits: Limits = USUAL) -> Changes:
        """Take the next rows, in the order in which they came.

        Parameters
        ----------
        limits : Limits, optional
            When ranks stand still.
        """
        whole = []
        for steps in self.gathering.add(rows.take(rows.phase == NO_BEAT), limits.step_waits_ns):
            self._look(steps)
            whole.append(steps)
        self.beats.advance(rows, self.hosts, self.offsets, limits)
        return self._changes(whole)

    def finish(self) -> Changes:
        """Look at the steps that are not whole, as no more rows come."""
        whole = []
        for steps in self.gathering.close_all():
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
        """Forget the process group before."""
        if self.watch is not None:
            self.watch.end(self.ledger)
            if self.watch.group != steps.group:
                self.there, self.ended_ns = [], 0
        self.watch = Watch.begin(steps, self.hosts)

    def _regrouped(self, steps: Steps) -> list[int]:
        """Return where other ranks go on after a pause: they are a new process group.

        Ranks may have got other numbers then, although nothing says so.
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
        found = (changed >= few) & (pause > np.maximum(_PAUSE_NS, _PAUSE_STEPS * step_ns))
        self.there, self.ended_ns = there[-1].tolist(), first_ns + int(middle[-1])
        return [int(row) for row in np.flatnonzero(found)]

    def _changes(self, whole: list[Steps]) -> Changes:
        changed = {**self.ledger.take(), **self.beats.ledger.take()}
        return Changes(
            tuple(notice for notice in changed.values() if notice is not None),
            tuple(number for number, notice in changed.items() if notice is None),
            tuple(whole),
        )

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """Return the single steps that took long, the most expensive cause first."""
        return self.stalled.listed()

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many rows were left out, by code."""
        return dict(sorted(self.gathering.counts.items()))


@dataclass(slots=True)
class Record:
    """The last words of every notice of a detector."""

    notices: dict[int, Notice] = field(default_factory=dict)

    def take(self, changes: Changes) -> None:
        """Take what a batch changed."""
        for notice in changes.notices:
            self.notices[notice.number] = notice
        for number in changes.withdrawn:
            self.notices.pop(number, None)

    @property
    def listed(self) -> tuple[Notice, ...]:
        """Return them in the order in which they were noticed."""
        return tuple(
            sorted(
                self.notices.values(), key=lambda notice: (notice.noticed_time_ns, notice.number)
            )
        )
