"""Opening, update and clearing of notices about slow ranks, hosts, stages and the job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from app.analysis.pulse.attribution import (
    Scene,
    by_own_past,
    is_one_of,
    is_ramp,
    one_host,
    ranks_of,
    rows_since,
    together,
    what_grew,
)
from app.analysis.pulse.columns import Bool, Float64, Int64
from app.analysis.pulse.measurements import COMPUTING, REST
from app.analysis.pulse.notices import (
    Evidence,
    Ledger,
    Notice,
    NoticeKind,
    Part,
    hosts_of,
    named,
    over,
)

# ---- What is open of a process group, next to what its notices say -----------------------------


_MOST_TURNS: Final = 16


@dataclass(slots=True)
class Case:
    """A notice about subjects of a process group, and what is needed to go on with it.

    Parameters
    ----------
    number : int
        Of its notice.
    lead : int
        The subject that it was noticed by.
    subjects, slow : list of int
        All of them, and those that still are slow.
    from_step : int
        Where the present turn began.
    total, count : float
        Sum and number of the residuals so far, for the factor.
    counted_to : int
        The last step among these.
    turns : list of int
        Where each turn began, the last few.
    last_slow, length : int
        The last step that was slow, and how long the last turn was.
    over : bool
        Whether its notice is cleared; it may come back.
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
    turns: list[int] = field(default_factory=list)
    last_slow: int = -1
    length: int = 0
    over: bool = False
    rotating: bool = False
    # By how much steps grew when it began, as a logarithm: what it explains of a slow job.
    explains: float = 0.0
    # How much of a drift had become usual before it was noticed, as a logarithm.
    followed: float = 0.0

    def measure(self, numbers: Int64, values: Float64, to: int) -> None:
        """Count the residuals up to a step."""
        rows = (numbers > self.counted_to) & (numbers <= to) & (numbers >= self.from_step)
        if rows.any() and self.slow:
            seen = values[rows][:, self.slow]
            seen = seen[~np.isnan(seen)]
            self.total += float(np.clip(seen, -1, 3).sum())
            self.count += len(seen)
        self.counted_to = max(self.counted_to, to)

    @property
    def factor(self) -> float:
        """Return how many times as long it took."""
        return float(np.exp(self.total / self.count + self.followed)) if self.count else 1.0

    def turn(self, step: int) -> None:
        """Begin another turn."""
        self.from_step = step
        self.turns = [*self.turns, step][-_MOST_TURNS:]

    @property
    def period(self) -> float | None:
        """Return the steps from one turn to the next."""
        return float(np.median(np.diff(self.turns))) if len(self.turns) > 1 else None


# ---- Who is noticed, and when it is over -------------------------------------------------------


# A rank of a host that gets slow within that many steps of the others is one of them.
_JOINS_WITHIN: Final = 24
# What is back within ten of its lengths, but at least and most that many steps, comes and goes.
_COMES_BACK: Final = (10, 100, 1000)
# Turns of several ranks within that many steps.
_ROTATES_WITHIN: Final = 300
_SHORT: Final = 200
_TURNS_TO_ROTATE: Final = 3
# Spells are over after that many steps, or three periods, without one.
_SPELLS_OVER: Final = 100
# Slow steps in the history that are spells.
_SPELL_STEPS: Final = 6
# A slow rank that began at most that many steps later or earlier explains a slow job.
_EXPLAINS: Final = 60
_AS_EXPLAINED: Final = 1.3
# Evidence against a rank that is half of what is needed.
_SUSPECTED: Final = 9.0


@dataclass(slots=True)
class Suspects:
    """The cases of a process group."""

    cases: list[Case] = field(default_factory=list)
    # The last turns of ranks: where each began, and the number of its notice.
    turns: list[tuple[int, int]] = field(default_factory=list)

    def move(self, at: Int64) -> None:
        """Follow subjects to their new columns."""
        for case in self.cases:
            case.lead = int(at[case.lead])
            case.subjects = [int(at[subject]) for subject in case.subjects]
            case.slow = [int(at[subject]) for subject in case.slow]

    def held(self, number: int) -> Bool:
        """Return which subjects have a case that is not over."""
        held = np.zeros(number, np.bool_)
        for case in self.cases:
            if not case.over:
                held[case.subjects] = True
        return held

    # ---- beginnings and ends ---------------------------------------------------------------

    def judge(self, scene: Scene) -> None:
        """Decide on those whose evidence suffices after the first `rows` of the history."""
        for subject in scene.charts.is_cleared():
            self._clear(scene, int(subject))
        for subject in scene.charts.is_noticed():
            if not scene.charts.noticed[subject] and scene.charts.score[subject] > 0:
                self._notice(scene, int(subject))
        for subject in scene.charts.has_spells():
            self._spells(scene, int(subject))

    def _clear(self, scene: Scene, subject: int) -> None:
        step = int(scene.charts.rise[subject])
        scene.charts.close(subject)
        case = next((case for case in self.cases if subject in case.slow), None)
        if case is None:
            return
        case.measure(scene.numbers, scene.values, step - 1)
        case.slow.remove(subject)
        case.last_slow = max(case.last_slow, step - 1)
        notice = scene.ledger.get(case.number)
        if notice is None:
            return
        if case.slow:
            # One that was as usual all the time was named by mistake.
            if step <= notice.noticed_step:
                rest = [other for other in case.subjects if other != subject]
                self._name(scene, case, rest)
            return
        case.length = step - case.from_step
        if case.kind is NoticeKind.SPELLS:
            return
        case.over = True
        scene.ledger.update(over(replace(notice, factor=case.factor), step))

    def _notice(self, scene: Scene, lead: int) -> None:
        charts, history = scene.charts, scene.history
        begun = int(charts.rise[lead])
        window = rows_since(scene.numbers, begun)
        height = float(np.nanmedian(history.values[window, lead]))
        if lead in (REST, COMPUTING):
            self._job(scene, lead, begun, height)
            return
        if lead < scene.subjects.first_rank and is_one_of(scene, lead, window, height):
            charts.forget(lead)
            return
        if not by_own_past(scene, lead, window, height):
            if lead >= scene.subjects.first_rank:
                scene.expected.rebase(lead - scene.subjects.first_rank, height)
            charts.forget(lead)
            return
        group = together(scene, lead, window, height)
        if group is None:
            self._job(scene, lead, begun, height)
            return
        for subject in group:
            charts.open(subject, height)
        if self._joins(scene, group, begun):
            return
        ramps = is_ramp(scene, lead, window, height)
        kind = NoticeKind.DRIFT if ramps else NoticeKind.SLOW_RANK
        case = Case(-1, kind, lead, group, list(group), begun, turns=[begun])
        case.measure(scene.numbers, scene.values, scene.step)
        if ramps:
            case.followed = max(0.0, scene.expected.followed(lead, scene.subjects))
        self._open(scene, case)
        self._rotates(scene, case)

    def _joins(self, scene: Scene, group: list[int], begun: int) -> bool:
        """Return whether these belong to a case that there is; they are added to it then."""
        step = scene.step
        for case in reversed(self.cases):
            notice = scene.ledger.get(case.number)
            if notice is None or case.lead in (REST, COMPUTING):
                continue
            if case.rotating and not case.over:
                case.turn(begun)
                case.slow = sorted({*case.slow, *group})
                case.subjects = sorted({*case.subjects, *group})
                case.last_slow = step
                return True
            if not case.over and case.slow and case.kind is not NoticeKind.SPELLS:
                near = abs(begun - case.from_step) <= _JOINS_WITHIN
                back = bool(set(group) & set(case.subjects))
                if back or (near and one_host(scene, [*case.subjects, *group])):
                    case.slow = sorted({*case.slow, *group})
                    self._name(scene, case, sorted({*case.subjects, *group}))
                    return True
                continue
            if not set(group) & set(case.subjects):
                continue
            times, least, most = _COMES_BACK
            gap = begun - case.last_slow
            if case.kind is NoticeKind.DRIFT:
                if gap > most:
                    continue
                # What drifts may seem to be over where it has just begun.
                case.over, case.slow = False, list(group)
                scene.ledger.update(replace(notice, cleared_step=None))
                return True
            if case.kind is NoticeKind.SPELLS or gap <= min(most, max(least, times * case.length)):
                case.kind, case.over = NoticeKind.SPELLS, False
                case.turn(begun)
                case.slow = list(group)
                case.last_slow = step
                sentence = self._spell_words(scene, case, notice)
                scene.ledger.update(
                    replace(notice, kind=NoticeKind.SPELLS, cleared_step=None, evidence=sentence)
                )
                self._rotates(scene, case)
                return True
        return False

    def _name(self, scene: Scene, case: Case, found: list[int]) -> None:
        """Name other ranks in a notice."""
        case.subjects = found
        notice = scene.ledger.get(case.number)
        if notice is not None:
            ranks = ranks_of(scene.subjects, found)
            scene.ledger.update(replace(notice, ranks=ranks, hosts=hosts_of(ranks, scene.hosts)))

    def _open(self, scene: Scene, case: Case) -> None:
        ranks = ranks_of(scene.subjects, case.subjects)
        where = hosts_of(ranks, scene.hosts)
        slope = scene.trail.slope(case.lead) if case.kind is NoticeKind.DRIFT else None
        words = f"{named(ranks, where).capitalize()}: computing takes {case.factor:.2f}× as long"
        against = "as that of the peers" if len(scene.subjects.ranks) > 1 else "as before"
        if case.kind is NoticeKind.DRIFT:
            evidence = Evidence(
                f"{words} {against}, and grew steadily",
                grew=Part.COMPUTING,
                slope_per_day=slope.per_day if slope else None,
            )
            case.from_step = min(case.from_step, slope.from_step) if slope else case.from_step
        else:
            evidence = Evidence(f"{words} {against}", grew=Part.COMPUTING)
        case.number = scene.ledger.add(
            Notice(
                -1,
                case.kind,
                scene.attempt,
                ranks,
                where,
                case.factor,
                case.from_step,
                scene.step,
                scene.end_ns,
                None,
                evidence,
            )
        )
        case.last_slow = scene.step
        self.cases.append(case)

    # ---- what comes and goes ---------------------------------------------------------------

    def _spells(self, scene: Scene, subject: int) -> None:
        """Notice spells each of which is too short to be noticed."""
        charts, history = scene.charts, scene.history
        if charts.postpone_spells(subject):
            return
        charts.forget(subject)
        if any(case.rotating and not case.over for case in self.cases):
            return
        mine = [case for case in self.cases if subject in case.subjects]
        if any(case.kind is NoticeKind.SPELLS and not case.over for case in mine):
            return
        values = history.values[max(0, scene.rows - 100) : scene.rows]
        slow = values > charts.hiccup
        window = np.flatnonzero(slow[:, subject]) + max(0, scene.rows - 100)
        if not len(window):
            return
        height = float(np.nanmedian(history.values[window, subject]))
        if subject < scene.subjects.first_rank and is_one_of(scene, subject, window, height):
            return
        group = together(scene, subject, window, height)
        if group is None or not by_own_past(scene, subject, window, height):
            return
        numbers = history.numbers[window]
        starts = numbers[np.append(True, np.diff(window) > 1)]
        case = Case(-1, NoticeKind.SPELLS, subject, group, [], int(numbers[0]))
        case.turns = [int(step) for step in starts][-16:]
        case.total, case.count = height, 1.0
        self._open(scene, case)
        case.last_slow = int(numbers[-1])
        notice = scene.ledger.get(case.number)
        if notice is not None:
            scene.ledger.update(replace(notice, evidence=self._spell_words(scene, case, notice)))

    def _spell_words(self, scene: Scene, case: Case, notice: Notice) -> Evidence:
        whose = case.subjects if case.rotating else [case.lead]
        values = scene.history.values[-100:, whose]
        slow = (values > scene.charts.hiccup[whose]).any(axis=1)
        share = float(np.mean(slow) if len(values) else 0.0)
        who = "another rank each time" if case.rotating else named(notice.ranks, notice.hosts)
        every = f", every {case.period:.0f} steps" if case.period else ""
        sentence = f"Slow in spells{every}: {who}, in {share:.0%} of the last 100 steps"
        return Evidence(
            sentence,
            grew=Part.COMPUTING,
            share=share,
            period_steps=case.period,
            rotating=case.rotating,
        )

    def _rotates(self, scene: Scene, case: Case) -> None:
        """Blame no rank where at least three were slow in turn, none of them most of the time."""
        begun = case.from_step
        self.turns = [turn for turn in self.turns if begun - turn[0] <= _ROTATES_WITHIN]
        self.turns.append((begun, case.number))
        begins = [turn[0] for turn in self.turns]
        counts = Counter(turn[1] for turn in self.turns)
        if (
            len(counts) < _TURNS_TO_ROTATE
            or max(counts.values()) > len(self.turns) / 2
            or max(np.diff(begins)) > _ROTATES_WITHIN / 2
        ):
            return
        chain = [other for other in self.cases if other.number in counts]
        # One that stays slow is no turn.
        if any(other.slow for other in chain if other is not case):
            return
        first = min(chain, key=lambda other: other.number)
        notice = scene.ledger.get(first.number)
        if notice is None:
            return
        for other in chain:
            if other is not first:
                scene.ledger.withdraw(other.number)
        self.cases = [other for other in self.cases if other is first or other not in chain]
        self.turns = []
        first.turns = begins
        first.subjects = sorted({subject for other in chain for subject in other.subjects})
        first.slow, first.last_slow = case.slow, scene.step
        first.kind, first.rotating, first.over = NoticeKind.SPELLS, True, False
        notice = replace(notice, kind=NoticeKind.SPELLS, ranks=(), hosts=(), cleared_step=None)
        evidence = self._spell_words(scene, first, notice)
        scene.ledger.update(replace(notice, evidence=evidence))

    # ---- the job ---------------------------------------------------------------------------

    def _job(self, scene: Scene, lead: int, begun: int, height: float) -> None:
        charts = scene.charts
        if self._explained(scene, lead, begun, height):
            charts.forget(lead)
            return
        charts.open(lead, height)
        step, end_ns = scene.step, scene.end_ns
        for case in self.cases:
            if case.lead == lead and case.over:
                notice = scene.ledger.get(case.number)
                if notice is not None and begun - case.last_slow <= _COMES_BACK[2]:
                    case.over, case.slow = False, [lead]
                    case.turn(begun)
                    scene.ledger.update(replace(notice, cleared_step=None))
                    return
        window = rows_since(scene.numbers, begun)
        ramps = is_ramp(scene, lead, window, height)
        kind = NoticeKind.DRIFT if ramps else NoticeKind.SLOW_JOB
        case = Case(-1, kind, lead, [lead], [lead], begun, turns=[begun], last_slow=step)
        case.measure(scene.numbers, scene.values, step)
        if ramps:
            case.followed = max(0.0, scene.expected.followed(lead, scene.subjects))
        grew = Part.COMPUTING if lead != REST else what_grew(scene, window)
        slope = scene.trail.slope(lead) if ramps else None
        sentence = f"Steps take {case.factor:.2f}× as long as before; no rank is to blame"
        if grew is not Part.OTHER:
            sentence += f"; what grew is {grew}"
        evidence = Evidence(sentence, grew=grew, slope_per_day=slope.per_day if slope else None)
        if slope:
            case.from_step = min(case.from_step, slope.from_step)
        case.number = scene.ledger.add(
            Notice(
                -1,
                kind,
                scene.attempt,
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

    def _explained(self, scene: Scene, lead: int, begun: int, height: float) -> bool:
        """Return whether slow ranks, noticed or about to be, explain that steps take longer."""
        if lead not in (REST, COMPUTING):
            return False
        first = scene.subjects.first_rank
        suspected = scene.charts.score[first:][~scene.charts.noticed[first:]]
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
            # Of all ranks half may be slow; of waiting, as much as came with them.
            if lead == COMPUTING or height < _AS_EXPLAINED * case.explains:
                return True
        return False

    # ---- as time goes by -------------------------------------------------------------------

    def review(self, scene: Scene) -> None:
        """Bring open notices up to date at the end of a stretch, and end spells."""
        history = scene.history
        now = int(history.numbers[-1])
        for case in list(self.cases):
            notice = scene.ledger.get(case.number)
            if notice is None:
                self.cases.remove(case)
                continue
            if case.over:
                continue
            if case.kind is NoticeKind.DRIFT:
                # What grows is as large as it is now.
                case.total = case.count = 0.0
            case.measure(history.numbers, history.values, now)
            if case.slow:
                case.last_slow = now
            notice = replace(notice, factor=case.factor)
            if case.kind is not NoticeKind.SPELLS:
                scene.ledger.update(notice)
                continue
            self._review_spells(scene, case, notice)
        self.cases = [
            case for case in self.cases if not case.over or now - case.last_slow <= _COMES_BACK[2]
        ]

    def _review_spells(self, scene: Scene, case: Case, notice: Notice) -> None:
        """Bring spells up to date, and end them."""
        now = scene.step
        slow = scene.values[:, case.subjects] > scene.charts.hiccup[case.subjects]
        at = np.flatnonzero(slow.any(axis=1))
        # Some single hiccups are no spells.
        if len(at) >= _SPELL_STEPS and not case.slow:
            case.last_slow = max(case.last_slow, int(scene.numbers[at[-1]]))
        quiet_for = max(_SPELLS_OVER, 3 * (case.period or 0))
        if case.rotating and case.slow and now - case.from_step > _SHORT:
            # One of them stays slow: it is no longer another one each time.
            turn, case.slow = case.slow, []
            fresh = Case(-1, NoticeKind.SLOW_RANK, turn[0], turn, list(turn), case.from_step)
            fresh.measure(scene.numbers, scene.values, now)
            self._open(scene, fresh)
        if now - case.last_slow > quiet_for:
            case.over = True
            others = {subject for other in self.cases for subject in other.slow}
            for subject in case.subjects:
                if scene.charts.noticed[subject] and subject not in others - {*case.slow}:
                    scene.charts.close(subject)
            scene.ledger.update(over(notice, case.last_slow + 1))
        else:
            scene.ledger.update(replace(notice, evidence=self._spell_words(scene, case, notice)))

    def end(self, step: int, ledger: Ledger) -> None:
        """Close all that is open."""
        for case in self.cases:
            notice = ledger.open.get(case.number)
            if notice is not None:
                ledger.update(over(replace(notice, factor=case.factor), step))
        self.cases = []
