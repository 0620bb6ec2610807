"""One process group, watched step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Bool, Float64, Int64
from app.analysis.pulse.evidence.charts import Charts
from app.analysis.pulse.evidence.expected import Expected
from app.analysis.pulse.evidence.history import History
from app.analysis.pulse.evidence.measured import Measured
from app.analysis.pulse.evidence.medians import median_of_columns
from app.analysis.pulse.evidence.subjects import REST, Subjects
from app.analysis.pulse.evidence.trail import Trail
from app.analysis.pulse.ledger import Ledger
from app.analysis.pulse.stalls import Stalls
from app.analysis.pulse.steps import Steps
from app.analysis.pulse.suspicion.scene import Scene
from app.analysis.pulse.suspicion.suspects import Suspects

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
