"""Hangs and silence, from heartbeats while no step ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from app.analysis.pulse.columns import EXCUSED, FINISHED, NO_BEAT, WAITS_NS, Bool, Int64, Pulses
from app.analysis.pulse.notices import Evidence, Ledger, Notice, NoticeKind, hosts_of, named, over

_USUAL_STEPS: Final = 5
# A process whose beat is that many beats late may be gone. One of which nothing was heard for as
# long as the job stands still, less a beat that it may have sent since, is; after three at least.
_LATE_BEATS: Final = 2.5
_GONE_BEATS: Final = 3
# A job that has ended fewer steps has not begun.
_FIRST_STEPS: Final = 5
# The last steps whose median is the usual one.
_RECENT: Final = 255
# Parts of names of operations in which a rank waits for others.
_WAITING: Final = (
    *("reduce", "gather", "all-to-all", "all_to_all", "alltoall", "scatter", "broadcast"),
    *("recv", "receive", "send", "barrier", "wait", "sync", "p2p", "nccl", "collective"),
)
# Parts of names of loading: where all ranks load, their storage may be slow for a while.
_LOADING: Final = ("data", "load", "batch")
_LOADING_TIMES: Final = 10
# More ranks than this share of all are not waited for.
_MOST_NAMED: Final = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """When ranks stand still: at the first beat after no step for so long, or for five usual ones.

    Parameters
    ----------
    beat_ns : int
        From one beat of a rank to the next.
    """

    waits_ns: int = 25_000_000_000
    beat_ns: int = 5_000_000_000

    @property
    def step_waits_ns(self) -> int:
        """Return how long a step waits for ranks that are missing: these send with their beats."""
        return max(WAITS_NS, 2 * self.beat_ns)


USUAL: Final = Limits()


@dataclass(slots=True)
class Sign:
    """The last that was heard of a rank; times in nanoseconds since the epoch."""

    heard_ns: int
    step: int
    phase: str = ""
    since_ns: int = 0


@dataclass(slots=True)
class Beats:
    """What the ranks of an attempt said last, and whether they hang."""

    ledger: Ledger
    attempt: int = -1
    signs: dict[int, Sign] = field(default_factory=dict)
    ended_ns: int = 0
    last_step: int = -1
    rows: int = 0
    recent_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    excused_ns: int = 0
    finished: bool = False
    open: int = -1

    def advance(
        self,
        rows: Pulses,
        hosts: Mapping[int, str],
        offsets: Mapping[int, int],
        limits: Limits = USUAL,
    ) -> None:
        """Take rows of both kinds, in order.

        Parameters
        ----------
        offsets : mapping of int to int
            By how many nanoseconds clocks of ranks are ahead of the others', where it is much.
        """
        while len(rows):
            later = np.flatnonzero(rows.attempt > self.attempt)
            end = int(later[0]) if len(later) else len(rows)
            if end == 0:
                self._begin(int(rows.attempt[0]))
                continue
            part = rows.take(slice(0, end))
            rows = rows.take(slice(end, None))
            part = part.take(part.attempt == self.attempt)
            if len(part):
                self._of_attempt(part, hosts, offsets, limits)

    def moves(self, limits: Limits) -> bool:
        """Return whether each rank has begun another operation lately, though no step may end.

        Such a job is slow and does not hang: what its ranks say is of different moments.
        """
        lately_ns = limits.waits_ns // 2
        return bool(self.signs) and all(
            sign.heard_ns - sign.since_ns < lately_ns for sign in self.signs.values()
        )

    def _begin(self, attempt: int) -> None:
        self._over(self.last_step, self.ended_ns)
        self.attempt, self.signs, self.ended_ns, self.last_step = attempt, {}, 0, -1
        self.rows, self.excused_ns, self.finished = 0, 0, False
        self.recent_ns = self.recent_ns[:0]

    def _of_attempt(
        self, rows: Pulses, hosts: Mapping[int, str], offsets: Mapping[int, int], limits: Limits
    ) -> None:
        times = rows.time_ns
        if offsets:
            times = times - np.array([offsets.get(int(rank), 0) for rank in rows.rank])
        is_step = rows.phase == NO_BEAT
        ended = np.maximum.accumulate(np.where(is_step, times, self.ended_ns))
        ended = np.maximum(ended, self.ended_ns)
        long = ~is_step & (times - ended > limits.waits_ns)
        edges = [0, *(np.flatnonzero(np.diff(long.astype(np.int8))) + 1), len(long)]
        for start, stop in pairwise(edges):
            if start == stop:
                continue
            if long[start]:
                for row in range(start, stop):
                    self._beat(rows, row, int(times[row]), hosts, limits)
            else:
                piece = slice(start, stop)
                self._quickly(rows.take(piece), times[piece], is_step[piece])

    def _quickly(self, rows: Pulses, times: Int64, is_step: Bool) -> None:
        """Take rows during which no step was missing for long."""
        if is_step.any():
            at = np.flatnonzero(is_step)
            newer = at[times[at] > self.ended_ns]
            if len(newer):
                self._over(int(rows.step[newer[0]]), int(times[newer[0]]))
            self.ended_ns = max(self.ended_ns, int(times[at].max()))
            self.last_step = int(rows.step[at[-1]])
            self.rows += len(at)
            self.recent_ns = np.append(self.recent_ns, rows.step_ns[at])[-_RECENT:]
        # The last beat of each rank, and its last row.
        for kind in (~is_step, np.ones(len(rows), np.bool_)):
            at = np.flatnonzero(kind)
            _, last = np.unique(rows.rank[at][::-1], return_index=True)
            for row in at[len(at) - 1 - last].tolist():
                self._hear(rows, row, int(times[row]), is_beat=not is_step[row])
        excused = ~is_step & np.isin(rows.phase, _numbers(rows.phases, EXCUSED))
        if excused.any():
            self.excused_ns = max(self.excused_ns, int(times[excused].max()))
        ends = ~is_step & np.isin(rows.phase, _numbers(rows.phases, {FINISHED}))
        self.finished = self.finished or bool(ends.any())

    def _hear(self, rows: Pulses, row: int, time_ns: int, *, is_beat: bool) -> None:
        rank = int(rows.rank[row])
        sign = self.signs.get(rank)
        if sign is None:
            if not is_beat:
                return
            sign = self.signs[rank] = Sign(time_ns, int(rows.step[row]))
        sign.heard_ns = max(sign.heard_ns, time_ns)
        sign.step = int(rows.step[row])
        if is_beat:
            sign.phase = rows.phases[rows.phase[row]]
            sign.since_ns = int(rows.since_ns[row])

    def _beat(
        self, rows: Pulses, row: int, now: int, hosts: Mapping[int, str], limits: Limits
    ) -> None:
        """Take a beat after which no step has ended for long."""
        self._hear(rows, row, now, is_beat=True)
        phase = rows.phases[rows.phase[row]]
        if phase == FINISHED:
            self.finished = True
        if phase in EXCUSED:
            self.excused_ns = max(self.excused_ns, now)
        if self.finished or self.rows < _FIRST_STEPS * max(1, len(self.signs)):
            return
        usual = float(np.median(self.recent_ns))
        needed = max(limits.waits_ns, int(_USUAL_STEPS * usual))
        stopped = max(self.ended_ns, self.excused_ns)
        if now - stopped < needed:
            return
        # Who was there when the steps ended.
        alive = {
            rank: sign
            for rank, sign in self.signs.items()
            if sign.heard_ns > self.ended_ns - 3 * limits.beat_ns
        }
        unheard = max(needed - limits.beat_ns, _GONE_BEATS * limits.beat_ns)
        gone = [rank for rank, sign in alive.items() if now - sign.heard_ns >= unheard]
        loads = all(_has(sign.phase, _LOADING) for sign in alive.values())
        if loads and now - stopped < _LOADING_TIMES * needed:
            return
        if gone:
            self._silent(sorted(gone), now, hosts)
        elif all(now - sign.heard_ns < _LATE_BEATS * limits.beat_ns for sign in alive.values()):
            self._hang(alive, now, hosts)

    def _silent(self, gone: list[int], now: int, hosts: Mapping[int, str]) -> None:
        ranks = tuple(gone)
        notice = self.ledger.open.get(self.open)
        if notice is not None and notice.kind is NoticeKind.SILENT and notice.ranks == ranks:
            return
        where = hosts_of(ranks, hosts)
        since = min(self.signs[rank].heard_ns for rank in gone)
        sentence = f"{named(ranks, where).capitalize()}: nothing was heard since no step ends"
        evidence = Evidence(sentence, since_ns=since, waiting=len(self.signs) - len(ranks))
        self._say(NoticeKind.SILENT, ranks, where, evidence, now)

    def _hang(self, alive: Mapping[int, Sign], now: int, hosts: Mapping[int, str]) -> None:
        ranks = _waited_for(alive)
        notice = self.ledger.open.get(self.open)
        if notice is not None and (notice.kind is NoticeKind.SILENT or notice.ranks == ranks):
            return
        where = hosts_of(ranks, hosts)
        first = alive[ranks[0]] if ranks else min(alive.values(), key=lambda sign: sign.since_ns)
        waiting = len(alive) - len(ranks)
        if ranks:
            phase = f" in {first.phase}" if first.phase else ""
            sentence = f"No step ends: {waiting} ranks wait for {named(ranks, where)}{phase}"
        else:
            sentence = f"No step ends, and all ranks are in {first.phase or 'the same place'}"
        evidence = Evidence(
            sentence, phase=first.phase or None, since_ns=first.since_ns or None, waiting=waiting
        )
        self._say(NoticeKind.HANG, ranks, where, evidence, now)

    def _say(
        self,
        kind: NoticeKind,
        ranks: tuple[int, ...],
        where: tuple[str, ...],
        evidence: Evidence,
        now: int,
    ) -> None:
        notice = self.ledger.open.get(self.open)
        if notice is not None:
            notice = replace(notice, kind=kind, ranks=ranks, hosts=where, evidence=evidence)
            self.ledger.update(notice)
            return
        step = max((sign.step for sign in self.signs.values()), default=self.last_step)
        self.open = self.ledger.add(
            Notice(
                *(-1, kind, self.attempt, ranks, where, None),
                *(step, step, now, None, evidence),
            )
        )

    def _over(self, step: int, now: int) -> None:
        notice = self.ledger.open.get(self.open)
        if notice is not None:
            self.ledger.update(over(notice, step, max(0, now - self.ended_ns) / 1e9))
        self.open = -1


def _waited_for(alive: Mapping[int, Sign]) -> tuple[int, ...]:
    """Return the ranks that others wait for: behind them, or not in an operation that waits."""
    latest = max(sign.step for sign in alive.values())
    behind = {rank: sign for rank, sign in alive.items() if sign.step < latest}
    pool = behind if 0 < len(behind) <= _MOST_NAMED * len(alive) else dict(alive)
    busy = [rank for rank, sign in pool.items() if not _has(sign.phase, _WAITING)]
    if 0 < len(busy) <= _MOST_NAMED * len(alive):
        return tuple(sorted(busy))
    if pool is behind:
        return tuple(sorted(behind))
    # All wait, or none does: who is elsewhere than most, and was there first.
    phases = Counter(sign.phase for sign in alive.values())
    common, number = phases.most_common(1)[0]
    if number == len(alive) or number < _MOST_NAMED * len(alive):
        return ()
    others = {rank: sign for rank, sign in alive.items() if sign.phase != common}
    first = min(sign.since_ns for sign in others.values())
    usual = min(sign.since_ns for sign in alive.values() if sign.phase == common)
    if first > usual:
        return ()
    return tuple(sorted(rank for rank, sign in others.items() if sign.since_ns <= usual))


def _has(phase: str, parts: tuple[str, ...]) -> bool:
    """Return whether an operation's name has one of some parts."""
    words = phase.lower()
    return any(part in words for part in parts)


def _numbers(phases: tuple[str, ...], wanted: Collection[str]) -> list[int]:
    """Return the numbers of some phases."""
    return [number for number, phase in enumerate(phases) if phase in wanted]
