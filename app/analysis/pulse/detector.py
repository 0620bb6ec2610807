"""All that is noticed in a job: rows in, notices out, and a state between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from app.analysis.pulse.beats import USUAL, Beats, Limits
from app.analysis.pulse.columns import NO_BEAT, Pulses
from app.analysis.pulse.evidence.medians import median_of_rows
from app.analysis.pulse.gathering import Gathering
from app.analysis.pulse.ledger import Ledger
from app.analysis.pulse.notices import Notice, Stall
from app.analysis.pulse.stalls import Stalls
from app.analysis.pulse.steps import Steps
from app.analysis.pulse.watch import Watch

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
