"""Opening, update and clearing of notices about slow ranks, hosts, stages and the whole job.

A subject is a rank, a pipeline stage or the whole job. A case is an open or recently cleared notice
about subjects, with the state that its updates need. A period in which these subjects are slow is
an episode; a case with several episodes becomes a notice of spells.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from app.analysis.pulse.attribution import (
    TOGETHER,
    GroupView,
    collects,
    grown,
    growth_is_unknown,
    is_ramp,
    one_rank_moves_stage,
    part_that_grew,
    ranks_of,
    rows_since,
    share_host,
    slow_together,
    slower_than_own_past,
)
from app.analysis.pulse.expected_times import STRETCH
from app.analysis.pulse.measurements import COMPUTING, REST
from app.analysis.pulse.notices import (
    Evidence,
    Ledger,
    Notice,
    NoticeKind,
    Part,
    cleared,
    describe_ranks,
    hosts_of,
)
from app.analysis.quantities import BoolArray, FloatArray, IntArray

_MOST_EPISODES: Final = 16


@dataclass(slots=True)
class Case:
    """Notice about slow subjects of a process group, with the state that its updates need.

    Parameters
    ----------
    number : int
        Number of the notice in the ledger.
    lead : int
        Column of the subject whose control chart crossed the threshold.
    subjects, slow : list of int
        Columns of all subjects of the notice, and of the subjects that are still slow.
    from_step : int
        First step of the current episode.
    total, count : float
        Sum and number of the residuals of slow steps, from which the factor is computed.
    counted_to : int
        Last step whose residuals are in `total`.
    episodes : list of int
        First steps of the last 16 episodes.
    last_slow, length : int
        Last slow step, and number of steps of the last episode.
    over : bool
        Whether the notice is cleared; a new episode may reopen it.
    explains : float
        Logarithm of the growth of the job's steps that began together with the case. A slow job is
        explained by the case up to this growth.
    followed : float
        Logarithm of the part of a drift that the baseline had absorbed before the notice.
    """

    number: int
    kind: NoticeKind
    lead: int
    subjects: list[int]
    slow: list[int]
    from_step: int
    total: float = 0.0
    count: float = 0.0
    counted_to: int = -1
    episodes: list[int] = field(default_factory=list)
    last_slow: int = -1
    length: int = 0
    over: bool = False
    rotating: bool = False
    explains: float = 0.0
    followed: float = 0.0

    def measure(self, numbers: IntArray, values: FloatArray, to: int) -> None:
        """Add the slow subjects' residuals of steps up to `to` to `total` and `count`."""
        rows = (numbers > self.counted_to) & (numbers <= to) & (numbers >= self.from_step)
        if rows.any() and self.slow:
            residuals = values[rows][:, self.slow]
            residuals = residuals[~np.isnan(residuals)]
            self.total += float(np.clip(residuals, -1, 3).sum())
            self.count += len(residuals)
        self.counted_to = max(self.counted_to, to)

    @property
    def factor(self) -> float:
        """Return the mean time of slow steps ÷ expected time."""
        return float(np.exp(self.total / self.count + self.followed)) if self.count else 1.0

    def begin_episode(self, step: int) -> None:
        """Start a new episode at a step."""
        self.from_step = step
        self.episodes = [*self.episodes, step][-_MOST_EPISODES:]

    @property
    def period(self) -> float | None:
        """Return the median number of steps between starts of episodes; None with one episode."""
        return float(np.median(np.diff(self.episodes))) if len(self.episodes) > 1 else None


# Ranks of one host that become slow within this many steps of one another share a notice.
_JOINS_WITHIN: Final = 24
# A slowdown is a new episode of an earlier case if the gap since the last slow step is at most this
# multiple of the last episode's length, where this limit is at least 100 and at most 1,000 steps.
_COMES_BACK: Final = (10, 100, 1000)
# Episodes of different ranks within this many steps may be one fault that rotates among the ranks.
_ROTATES_WITHIN: Final = 300
# A rank of a rotating fault that stays slow for more steps than this gets a notice of its own.
_LONGEST_TURN: Final = 200
_RANKS_TO_ROTATE: Final = 3
# A notice of spells is cleared after this many steps without a slow step, or after three periods if
# three periods are longer.
_SPELLS_OVER: Final = 100
# Fewer slow steps than this in the history are single hiccups, which do not prolong a notice of
# spells.
_SPELL_STEPS: Final = 6
# A slow rank explains a slowdown of the whole job if both began within this many steps.
_EXPLAINS: Final = 60
_AS_EXPLAINED: Final = 1.3
# Score above which a rank without a notice may already explain a slow job: half of the threshold
# for notices.
_SUSPECTED: Final = 9.0


@dataclass(slots=True)
class CaseTracker:
    """Open and recently cleared cases of a process group."""

    cases: list[Case] = field(default_factory=list)
    # First step of each recent episode, and the number of the episode's notice.
    episodes: list[tuple[int, int]] = field(default_factory=list)

    def move(self, at: IntArray) -> None:
        """Renumber the subjects of all cases; `at` holds the new column of each old column."""
        for case in self.cases:
            case.lead = int(at[case.lead])
            case.subjects = [int(at[subject]) for subject in case.subjects]
            case.slow = [int(at[subject]) for subject in case.slow]

    def with_open_case(self, number: int) -> BoolArray:
        """Return which of `number` subjects have an open case, bool[number]."""
        has_case = np.zeros(number, np.bool_)
        for case in self.cases:
            if not case.over:
                has_case[case.subjects] = True
        return has_case

    @property
    def rotates(self) -> bool:
        """Return whether a case is open whose slow rank changes."""
        return any(case.rotating and not case.over for case in self.cases)

    def judge(self, view: GroupView) -> None:
        """Open notices of newly slow subjects, and clear notices of recovered subjects."""
        for subject in view.charts.is_cleared():
            self._clear(view, int(subject))
        for subject in view.charts.is_noticed():
            if not view.charts.noticed[subject] and view.charts.score[subject] > 0:
                self._notice(view, int(subject))
        for subject in view.charts.has_spells():
            self._spells(view, int(subject))

    def _clear(self, view: GroupView, subject: int) -> None:
        step = int(view.charts.rise[subject])
        view.charts.close(subject)
        case = next((case for case in self.cases if subject in case.slow), None)
        if case is None:
            return
        case.measure(view.numbers, view.values, step - 1)
        case.slow.remove(subject)
        case.last_slow = max(case.last_slow, step - 1)
        notice = view.ledger.get(case.number)
        if notice is None:
            return
        if case.slow:
            # A subject that recovered before the notice was opened does not belong to the notice.
            if step <= notice.noticed_step:
                rest = [other for other in case.subjects if other != subject]
                self._name(view, case, rest)
            return
        case.length = step - case.from_step
        if case.kind is NoticeKind.SPELLS:
            return
        case.over = True
        view.ledger.update(cleared(replace(notice, factor=case.factor), step))

    def _notice(self, view: GroupView, lead: int) -> None:
        charts, history = view.charts, view.history
        begun = int(charts.rise[lead])
        window = rows_since(view.numbers, begun)
        height = float(np.nanmedian(history.values[window, lead]))
        if lead in (REST, COMPUTING):
            self._job(view, lead, begun, height)
            return
        rank = lead - view.subjects.first_rank
        if (
            one_rank_moves_stage(view, lead, window, height)
            if rank < 0
            else growth_is_unknown(view, rank, window)
        ):
            charts.forget(lead)
            return
        if not slower_than_own_past(view, lead, window, height):
            if rank >= 0:
                view.expected.rebase(rank, height)
            charts.forget(lead)
            return
        group = slow_together(view, lead, window, height)
        if group is None:
            self._job(view, lead, begun, height)
            return
        for subject in group:
            charts.open(subject, height)
        if self._joins(view, group, begun):
            return
        ramps = is_ramp(view, lead, window, height)
        kind = NoticeKind.DRIFT if ramps else NoticeKind.SLOW_RANK
        case = Case(-1, kind, lead, group, list(group), begun, episodes=[begun])
        case.measure(view.numbers, view.values, view.step)
        if ramps:
            case.followed = max(0.0, view.expected.followed(lead, view.subjects))
        self._open(view, case)
        self._rotates(view, case)

    def _grows(self, view: GroupView, lead: int) -> None:
        """Open a notice of a rank that becomes slower steadily, and of those of its host that do.

        Their baselines have followed a part of the growth, which now counts.
        """
        charts, first_rank = view.charts, view.subjects.first_rank
        if charts.noticed[lead]:
            return
        window = np.arange(max(0, view.rows - STRETCH), view.rows)
        height = grown(view, lead, window)
        view.history.values[:, lead] += view.expected.forget_growth(lead - first_rank)
        if not slower_than_own_past(view, lead, window, height):
            view.expected.rebase(lead - first_rank, height)
            charts.forget(lead)
            return
        host = view.subjects.host_of
        of_host = np.flatnonzero((host >= 0) & (host == host[lead - first_rank])) + first_rank
        group = [lead]
        for column in of_host.tolist():
            if column == lead or charts.noticed[column]:
                continue
            if grown(view, column, window) > TOGETHER * height:
                view.history.values[:, column] += view.expected.forget_growth(column - first_rank)
                group.append(column)
        group.sort()
        for column in group:
            charts.open(column, height)
        begun = int(view.numbers[window[0]])
        if self._joins(view, group, begun):
            return
        case = Case(-1, NoticeKind.DRIFT, lead, group, list(group), begun, episodes=[begun])
        case.measure(view.numbers, view.values, view.step)
        self._open(view, case)

    def _joins(self, view: GroupView, group: list[int], begun: int) -> bool:
        """Add newly slow subjects to the case they belong to; return False if there is none."""
        step = view.step
        for case in reversed(self.cases):
            notice = view.ledger.get(case.number)
            if notice is None or case.lead in (REST, COMPUTING):
                continue
            if case.rotating and not case.over:
                case.begin_episode(begun)
                case.slow = sorted({*case.slow, *group})
                case.subjects = sorted({*case.subjects, *group})
                case.last_slow = step
                return True
            if not case.over and case.slow and case.kind is not NoticeKind.SPELLS:
                near = abs(begun - case.from_step) <= _JOINS_WITHIN
                back = bool(set(group) & set(case.subjects))
                if back or (near and share_host(view, [*case.subjects, *group])):
                    case.slow = sorted({*case.slow, *group})
                    self._name(view, case, sorted({*case.subjects, *group}))
                    return True
                continue
            if not set(group) & set(case.subjects):
                continue
            times, least, most = _COMES_BACK
            gap = begun - case.last_slow
            if case.kind is NoticeKind.DRIFT:
                if gap > most:
                    continue
                # The score of a new drift may fall for a while, which clears its notice too early.
                case.over, case.slow = False, list(group)
                view.ledger.update(replace(notice, cleared_step=None))
                return True
            if case.kind is NoticeKind.SPELLS or gap <= min(most, max(least, times * case.length)):
                case.kind, case.over = NoticeKind.SPELLS, False
                case.begin_episode(begun)
                case.slow = list(group)
                case.last_slow = step
                evidence = self._spell_words(view, case, notice)
                view.ledger.update(
                    replace(notice, kind=NoticeKind.SPELLS, cleared_step=None, evidence=evidence)
                )
                self._rotates(view, case)
                return True
        return False

    def _name(self, view: GroupView, case: Case, subjects: list[int]) -> None:
        """Replace the blamed ranks of a case and of its notice."""
        case.subjects = subjects
        notice = view.ledger.get(case.number)
        if notice is None:
            return
        ranks = ranks_of(view.subjects, subjects)
        notice = replace(notice, ranks=ranks, hosts=hosts_of(ranks, view.hosts))
        if case.kind is NoticeKind.SPELLS:
            evidence = self._spell_words(view, case, notice)
        else:
            evidence = replace(
                notice.evidence, sentence=_sentence(view, case, notice.evidence.grew)
            )
        view.ledger.update(replace(notice, evidence=evidence))

    def _open(self, view: GroupView, case: Case) -> None:
        ranks = ranks_of(view.subjects, case.subjects)
        where = hosts_of(ranks, view.hosts)
        slope = view.trend.slope(case.lead) if case.kind is NoticeKind.DRIFT else None
        window = rows_since(view.numbers, case.from_step)
        grew = Part.GC if collects(view, case.lead, window) else Part.COMPUTING
        evidence = Evidence(
            _sentence(view, case, grew),
            grew=grew,
            slope_per_day=slope.per_day if slope else None,
        )
        case.from_step = min(case.from_step, slope.from_step) if slope else case.from_step
        case.number = view.ledger.add(
            Notice(
                -1,
                case.kind,
                view.attempt,
                ranks,
                where,
                case.factor,
                case.from_step,
                view.step,
                view.end_ns,
                None,
                evidence,
            )
        )
        case.last_slow = view.step
        self.cases.append(case)

    def _spells(self, view: GroupView, subject: int) -> None:
        """Open a notice of spells: slow periods, each too short for a notice of its own."""
        charts, history = view.charts, view.history
        if charts.postpone_spells(subject):
            return
        charts.forget(subject)
        if self.rotates:
            return
        if any(
            subject in case.subjects and case.kind is NoticeKind.SPELLS and not case.over
            for case in self.cases
        ):
            return
        values = history.values[max(0, view.rows - 100) : view.rows]
        slow = values > charts.hiccup
        window = np.flatnonzero(slow[:, subject]) + max(0, view.rows - 100)
        if not len(window):
            return
        height = float(np.nanmedian(history.values[window, subject]))
        if subject < view.subjects.first_rank and one_rank_moves_stage(
            view, subject, window, height
        ):
            return
        group = slow_together(view, subject, window, height)
        if group is None or not slower_than_own_past(view, subject, window, height):
            return
        numbers = history.numbers[window]
        starts = numbers[np.append(True, np.diff(window) > 1)]
        case = Case(-1, NoticeKind.SPELLS, subject, group, [], int(numbers[0]))
        case.episodes = [int(step) for step in starts][-16:]
        case.total, case.count = height, 1.0
        self._open(view, case)
        case.last_slow = int(numbers[-1])
        notice = view.ledger.get(case.number)
        if notice is not None:
            view.ledger.update(replace(notice, evidence=self._spell_words(view, case, notice)))

    def _spell_words(self, view: GroupView, case: Case, notice: Notice) -> Evidence:
        whose = case.subjects if case.rotating else [case.lead]
        values = view.history.values[-100:, whose]
        slow = (values > view.charts.hiccup[whose]).any(axis=1)
        share = float(np.mean(slow) if len(values) else 0.0)
        who = (
            "another rank each time"
            if case.rotating
            else describe_ranks(notice.ranks, notice.hosts)
        )
        every = f", every {case.period:.0f} steps" if case.period else ""
        sentence = f"Slow in spells{every}: {who}, in {share:.0%} of the last 100 steps"
        return Evidence(
            sentence,
            grew=notice.evidence.grew,
            share=share,
            period_steps=case.period,
            rotating=case.rotating,
        )

    def _rotates(self, view: GroupView, case: Case) -> None:
        """Merge the cases of at least three ranks that were slow in turn into one rotating case."""
        begun = case.from_step
        self.episodes = [
            episode for episode in self.episodes if begun - episode[0] <= _ROTATES_WITHIN
        ]
        self.episodes.append((begun, case.number))
        begins = [episode[0] for episode in self.episodes]
        counts = Counter(episode[1] for episode in self.episodes)
        if (
            len(counts) < _RANKS_TO_ROTATE
            or max(counts.values()) > len(self.episodes) / 2
            or max(np.diff(begins)) > _ROTATES_WITHIN / 2
        ):
            return
        chain = [other for other in self.cases if other.number in counts]
        # A rank that stays slow has a fault of its own, which does not rotate.
        if any(other.slow for other in chain if other is not case):
            return
        first = min(chain, key=lambda other: other.number)
        notice = view.ledger.get(first.number)
        if notice is None:
            return
        for other in chain:
            if other is not first:
                view.ledger.withdraw(other.number)
        self.cases = [other for other in self.cases if other is first or other not in chain]
        self.episodes = []
        first.episodes = begins
        first.subjects = sorted({subject for other in chain for subject in other.subjects})
        first.slow, first.last_slow = case.slow, view.step
        first.kind, first.rotating, first.over = NoticeKind.SPELLS, True, False
        notice = replace(notice, kind=NoticeKind.SPELLS, ranks=(), hosts=(), cleared_step=None)
        evidence = self._spell_words(view, first, notice)
        view.ledger.update(replace(notice, evidence=evidence))

    def _job(self, view: GroupView, lead: int, begun: int, height: float) -> None:
        charts = view.charts
        if self._explained(view, lead, begun, height):
            charts.forget(lead)
            return
        charts.open(lead, height)
        step, end_ns = view.step, view.end_ns
        for case in self.cases:
            if case.lead == lead and case.over:
                notice = view.ledger.get(case.number)
                if notice is not None and begun - case.last_slow <= _COMES_BACK[2]:
                    case.over, case.slow = False, [lead]
                    case.begin_episode(begun)
                    view.ledger.update(replace(notice, cleared_step=None))
                    return
        window = rows_since(view.numbers, begun)
        ramps = is_ramp(view, lead, window, height)
        kind = NoticeKind.DRIFT if ramps else NoticeKind.SLOW_JOB
        case = Case(-1, kind, lead, [lead], [lead], begun, episodes=[begun], last_slow=step)
        case.measure(view.numbers, view.values, step)
        if ramps:
            case.followed = max(0.0, view.expected.followed(lead, view.subjects))
        grew = Part.COMPUTING if lead != REST else part_that_grew(view, window)
        slope = view.trend.slope(lead) if ramps else None
        sentence = f"Steps take {case.factor:.2f}× as long as before; no rank is to blame"
        if grew is not Part.OTHER:
            sentence += f"; what grew is {grew}"
        evidence = Evidence(sentence, grew=grew, slope_per_day=slope.per_day if slope else None)
        if slope:
            case.from_step = min(case.from_step, slope.from_step)
        case.number = view.ledger.add(
            Notice(
                -1,
                kind,
                view.attempt,
                (),
                (),
                case.factor,
                case.from_step,
                step,
                end_ns,
                None,
                evidence,
            )
        )
        self.cases.append(case)

    def _explained(self, view: GroupView, lead: int, begun: int, height: float) -> bool:
        """Return whether slow or suspected ranks explain the longer steps of the whole job."""
        if lead not in (REST, COMPUTING):
            return False
        first = view.subjects.first_rank
        suspected = view.charts.score[first:][~view.charts.noticed[first:]]
        if suspected.max(initial=0) > _SUSPECTED:
            return True
        for case in self.cases:
            if case.lead in (REST, COMPUTING):
                continue
            since = max(_EXPLAINS, 2 * (case.period or 0))
            if case.over and begun - case.last_slow >= _EXPLAINS:
                continue
            if abs(begun - case.from_step) < since:
                case.explains = max(case.explains, height)
                return True
            # Up to half of all ranks may be slow, which raises the median computing time. Longer
            # waiting is explained up to the growth that began together with the slow rank.
            if lead == COMPUTING or height < _AS_EXPLAINED * case.explains:
                return True
        return False

    def review(self, view: GroupView) -> None:
        """Update open notices after a stretch, and clear notices of spells that are over."""
        history = view.history
        now = int(history.numbers[-1])
        for case in list(self.cases):
            notice = view.ledger.get(case.number)
            if notice is None:
                self.cases.remove(case)
                continue
            if case.over:
                continue
            if case.kind is NoticeKind.DRIFT:
                # The factor of a drift is its current slowdown, not the mean since the drift began.
                case.total = case.count = 0.0
            case.measure(history.numbers, history.values, now)
            if case.slow:
                case.last_slow = now
            notice = replace(notice, factor=case.factor)
            if case.kind is not NoticeKind.SPELLS:
                view.ledger.update(notice)
                continue
            self._review_spells(view, case, notice)
        for subject in view.charts.is_growing().tolist():
            self._grows(view, subject)
        # Cleared cases are kept as long as a new episode may reopen them.
        self.cases = [
            case for case in self.cases if not case.over or now - case.last_slow <= _COMES_BACK[2]
        ]

    def _review_spells(self, view: GroupView, case: Case, notice: Notice) -> None:
        """Update a notice of spells, or clear it after enough steps without a slow step."""
        now = view.step
        slow = view.values[:, case.subjects] > view.charts.hiccup[case.subjects]
        at = np.flatnonzero(slow.any(axis=1))
        if len(at) >= _SPELL_STEPS and not case.slow:
            case.last_slow = max(case.last_slow, int(view.numbers[at[-1]]))
        quiet_for = max(_SPELLS_OVER, 3 * (case.period or 0))
        if case.rotating and case.slow and now - case.from_step > _LONGEST_TURN:
            # A rank that stays slow ends the rotation: the rank gets a notice of its own.
            episode, case.slow = case.slow, []
            fresh = Case(
                -1, NoticeKind.SLOW_RANK, episode[0], episode, list(episode), case.from_step
            )
            fresh.measure(view.numbers, view.values, now)
            self._open(view, fresh)
        if now - case.last_slow > quiet_for:
            case.over = True
            others = {subject for other in self.cases for subject in other.slow}
            for subject in case.subjects:
                if view.charts.noticed[subject] and subject not in others - {*case.slow}:
                    view.charts.close(subject)
            view.ledger.update(cleared(notice, case.last_slow + 1))
        else:
            view.ledger.update(replace(notice, evidence=self._spell_words(view, case, notice)))

    def end(self, step: int, ledger: Ledger) -> None:
        """Clear all open notices at the end of the process group."""
        for case in self.cases:
            notice = ledger.open.get(case.number)
            if notice is not None:
                ledger.update(cleared(replace(notice, factor=case.factor), step))
        self.cases = []


def _sentence(view: GroupView, case: Case, grew: Part | None) -> str:
    """Return the evidence of a slow or drifting rank, which names all ranks of the case."""
    ranks = ranks_of(view.subjects, case.subjects)
    who = describe_ranks(ranks, hosts_of(ranks, view.hosts)).capitalize()
    against = "as that of the peers" if len(view.subjects.ranks) > 1 else "as before"
    steadily = ", and grew steadily" if case.kind is NoticeKind.DRIFT else ""
    why = "; what grew is garbage collection" if grew is Part.GC else ""
    return f"{who}: computing takes {case.factor:.2f}× as long {against}{steadily}{why}"
