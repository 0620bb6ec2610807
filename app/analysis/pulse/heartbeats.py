"""Detection of hangs and silent ranks from heartbeats, while no step ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    EXCUSED,
    FINISHED,
    NO_BEAT,
    WAITS_NS,
    Pulses,
)
from app.analysis.pulse.notices import (
    Evidence,
    Ledger,
    Notice,
    NoticeKind,
    cleared,
    describe_ranks,
    hosts_of,
)
from app.analysis.quantities import BoolArray, IntArray

_USUAL_STEPS: Final = 5
# A process may be gone if its heartbeat is more than this many intervals late; then no hang is
# reported yet.
_LATE_BEATS: Final = 2.5
# A process is gone if it sent nothing for this many intervals, and for one interval less than the
# time after which a job hangs.
_GONE_BEATS: Final = 3
# Ranks of other stages may end one more step after a process is gone, and each of its beats may be
# lost. A process that sent nothing for longer than this while steps ended has lost its connection.
_ALIVE_BEATS: Final = 3
_ALIVE_STEPS: Final = 2
# Processes that end later than this many intervals after the first one are ended because of it.
_FOLLOWS_BEATS: Final = 2
# Hangs are detected from this many steps a rank on, because the start of a job may take long.
_FIRST_STEPS: Final = 5
# The usual step time is the median of this many latest step times, over all ranks.
_RECENT: Final = 255
# Parts of operation names: an operation whose name has one of these parts waits for other ranks.
_WAITING: Final = (
    *("reduce", "gather", "all-to-all", "all_to_all", "alltoall", "scatter", "broadcast"),
    *("recv", "receive", "send", "barrier", "wait", "sync", "p2p", "nccl", "collective"),
)
# Parts of the names of data loading. If all ranks load data, their storage may be slow for a while,
# so the job counts as hung only after ten times as long.
_LOADING: Final = ("data", "load", "batch")
_LOADING_TIMES: Final = 10
# If more than this share of the ranks would be blamed, no rank is blamed.
_MOST_NAMED: Final = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of hang detection.

    Parameters
    ----------
    waits_ns : int
        Time without an ended step after which a job is hung, if it is also over five usual steps.
    beat_ns : int
        Interval between heartbeats of a rank.
    """

    waits_ns: int = 25_000_000_000
    beat_ns: int = 5_000_000_000

    @property
    def step_waits_ns(self) -> int:
        """Return how long a step waits for missing ranks' rows, sent with heartbeats."""
        return max(WAITS_NS, 2 * self.beat_ns)


USUAL: Final = Limits()


@dataclass(slots=True)
class LastSeen:
    """The latest row and beat of a rank; times in nanoseconds since the epoch."""

    heard_ns: int
    step: int
    phase: str = ""
    since_ns: int = 0


@dataclass(slots=True)
class HeartbeatMonitor:
    """The latest rows of the ranks of an attempt, and the open notice of a hang."""

    ledger: Ledger
    attempt: int = -1
    last_seen: dict[int, LastSeen] = field(default_factory=dict)
    ended_ns: int = 0
    last_step: int = -1
    rows: int = 0
    recent_ns: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
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
        """Process ended steps and heartbeats in the order of their arrival.

        Parameters
        ----------
        offsets : mapping of int to int
            Nanoseconds by which wrong clocks are ahead, by rank.
        """
        while len(rows):
            later = np.flatnonzero(rows.attempt > self.attempt)
            end = int(later[0]) if len(later) else len(rows)
            if end == 0:
                self._clear(self.last_step, self.ended_ns)
                self.attempt, self.last_seen = int(rows.attempt[0]), {}
                self.ended_ns, self.last_step, self.rows, self.excused_ns = 0, -1, 0, 0
                self.finished, self.recent_ns = False, self.recent_ns[:0]
                continue
            part = rows.take(slice(0, end))
            rows = rows.take(slice(end, None))
            part = part.take(part.attempt == self.attempt)
            if len(part):
                self._of_attempt(part, hosts, offsets, limits)

    def moves(self, limits: Limits) -> bool:
        """Return whether each rank began its operation recently: then the job is slow, not hung."""
        lately_ns = limits.waits_ns // 2
        return bool(self.last_seen) and all(
            seen.heard_ns - seen.since_ns < lately_ns for seen in self.last_seen.values()
        )

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

    def _quickly(self, rows: Pulses, times: IntArray, is_step: BoolArray) -> None:
        """Process rows of a period in which steps ended without a long gap."""
        if is_step.any():
            at = np.flatnonzero(is_step)
            newer = at[times[at] > self.ended_ns]
            if len(newer):
                self._clear(int(rows.step[newer[0]]), int(times[newer[0]]))
            self.ended_ns = max(self.ended_ns, int(times[at].max()))
            self.last_step = int(rows.step[at[-1]])
            self.rows += len(at)
            self.recent_ns = np.append(self.recent_ns, rows.step_ns[at])[-_RECENT:]
        # For each rank only its last beat and its last row have an effect.
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
        seen = self.last_seen.get(rank)
        if seen is None:
            seen = self.last_seen[rank] = LastSeen(time_ns, int(rows.step[row]), since_ns=time_ns)
        seen.heard_ns = max(seen.heard_ns, time_ns)
        seen.step = int(rows.step[row])
        if is_beat:
            seen.phase = rows.phases[rows.phase[row]]
            seen.since_ns = int(rows.since_ns[row])

    def _beat(
        self, rows: Pulses, row: int, now: int, hosts: Mapping[int, str], limits: Limits
    ) -> None:
        """Process a heartbeat that was sent when no step had ended for a long time."""
        self._hear(rows, row, now, is_beat=True)
        phase = rows.phases[rows.phase[row]]
        if phase == FINISHED:
            self.finished = True
        if phase in EXCUSED:
            self.excused_ns = max(self.excused_ns, now)
        if self.finished or self.rows < _FIRST_STEPS * max(1, len(self.last_seen)):
            return
        usual = float(np.median(self.recent_ns))
        needed = max(limits.waits_ns, int(_USUAL_STEPS * usual))
        stopped = max(self.ended_ns, self.excused_ns)
        if now - stopped < needed:
            return
        # Ranks whose processes were alive when the last step ended.
        lately_ns = max(_ALIVE_BEATS * limits.beat_ns, _ALIVE_STEPS * usual)
        alive = {
            rank: seen
            for rank, seen in self.last_seen.items()
            if seen.heard_ns > self.ended_ns - lately_ns
        }
        unheard = max(needed - limits.beat_ns, _GONE_BEATS * limits.beat_ns)
        gone = [rank for rank, seen in alive.items() if now - seen.heard_ns >= unheard]
        loads = all(_has(seen.phase, _LOADING) for seen in alive.values())
        if loads and now - stopped < _LOADING_TIMES * needed:
            return
        if gone:
            first_ns = min(alive[rank].heard_ns for rank in gone)
            together_ns = first_ns + _FOLLOWS_BEATS * limits.beat_ns
            gone = [rank for rank in gone if alive[rank].heard_ns <= together_ns]
            self._silent(sorted(gone), now, hosts)
        elif all(now - seen.heard_ns < _LATE_BEATS * limits.beat_ns for seen in alive.values()):
            self._hang(alive, now, hosts)

    def _silent(self, gone: list[int], now: int, hosts: Mapping[int, str]) -> None:
        ranks = tuple(gone)
        notice = self.ledger.open.get(self.open)
        if notice is not None and notice.kind is NoticeKind.SILENT and notice.ranks == ranks:
            return
        where = hosts_of(ranks, hosts)
        since = min(self.last_seen[rank].heard_ns for rank in gone)
        sentence = (
            f"{describe_ranks(ranks, where).capitalize()}: nothing was heard since no step ends"
        )
        evidence = Evidence(sentence, since_ns=since, waiting=len(self.last_seen) - len(ranks))
        self._say(NoticeKind.SILENT, ranks, where, evidence, now)

    def _hang(self, alive: Mapping[int, LastSeen], now: int, hosts: Mapping[int, str]) -> None:
        ranks = _waited_for(alive)
        notice = self.ledger.open.get(self.open)
        if notice is not None and (notice.kind is NoticeKind.SILENT or notice.ranks == ranks):
            return
        where = hosts_of(ranks, hosts)
        first = alive[ranks[0]] if ranks else min(alive.values(), key=lambda seen: seen.since_ns)
        waiting = len(alive) - len(ranks)
        if ranks:
            phase = f" in {first.phase}" if first.phase else ""
            sentence = (
                f"No step ends: {waiting} ranks wait for {describe_ranks(ranks, where)}{phase}"
            )
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
        step = max((seen.step for seen in self.last_seen.values()), default=self.last_step)
        self.open = self.ledger.add(
            Notice(
                *(-1, kind, self.attempt, ranks, where, None),
                *(step, step, now, None, evidence),
            )
        )

    def _clear(self, step: int, now: int) -> None:
        notice = self.ledger.open.get(self.open)
        if notice is not None:
            self.ledger.update(cleared(notice, step, max(0, now - self.ended_ns) / 1e9))
        self.open = -1


def _waited_for(alive: Mapping[int, LastSeen]) -> tuple[int, ...]:
    """Return the ranks that others wait for: a step behind, or in an operation without waiting."""
    latest = max(seen.step for seen in alive.values())
    behind = {rank: seen for rank, seen in alive.items() if seen.step < latest}
    pool = behind if 0 < len(behind) <= _MOST_NAMED * len(alive) else dict(alive)
    busy = [rank for rank, seen in pool.items() if not _has(seen.phase, _WAITING)]
    if 0 < len(busy) <= _MOST_NAMED * len(alive):
        return tuple(sorted(busy))
    if pool is behind:
        return tuple(sorted(behind))
    # Either all ranks are in waiting operations, or most of them are in none. Blame the ranks whose
    # operation differs from that of most ranks, if they entered it before the others entered
    # theirs.
    phases = Counter(seen.phase for seen in alive.values())
    common, number = phases.most_common(1)[0]
    if number == len(alive) or number < _MOST_NAMED * len(alive):
        return ()
    others = {rank: seen for rank, seen in alive.items() if seen.phase != common}
    first = min(seen.since_ns for seen in others.values())
    usual = min(seen.since_ns for seen in alive.values() if seen.phase == common)
    if first > usual:
        return ()
    return tuple(sorted(rank for rank, seen in others.items() if seen.since_ns <= usual))


def _has(phase: str, parts: tuple[str, ...]) -> bool:
    """Return whether an operation's name contains one of the given parts."""
    words = phase.lower()
    return any(part in words for part in parts)


def _numbers(phases: tuple[str, ...], wanted: Collection[str]) -> list[int]:
    """Return the indices of the wanted operation names in `phases`."""
    return [number for number, phase in enumerate(phases) if phase in wanted]
