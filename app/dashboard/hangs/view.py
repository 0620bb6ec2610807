"""What the page of a hang shows."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.alerts.machines.cordon import cordon_commands
from app.analysis.hangs.document import FoldedStack, HangDocument, RankLine, ranks_text
from app.analysis.hangs.said import Hang, HangKind
from app.analysis.hangs.state import Frame
from app.analysis.wording import hours, sure
from app.dashboard.alerts.parts import Actions
from app.dashboard.hangs.graph import Graph, graph_of, graph_words
from app.dashboard.ui.format import age, count, plural
from app.dashboard.ui.parts import Fact, StateLabel
from app.services.hangs.read import HangRow

KINDS: Final = {
    HangKind.NEVER_ENTERED: ("Never entered", "stuck on the host"),
    HangKind.DEVICE_STUCK: ("Device stuck", "entered, does not complete"),
    HangKind.SILENT: ("Silent", "left nothing"),
    HangKind.MISMATCH: ("Mismatch", "called in different orders"),
    HangKind.ALL_ENTERED: ("All entered", "none is missing"),
    HangKind.NOTHING_PENDING: ("Nothing pending", "no rank waits"),
}
# The name of one group among those of a kind: "(43)".
_UNLIKE: Final = re.compile(r" \([^()]*\)$")
# Stacks, frames of each and groups of ranks that the page shows; files have all.
_STACKS: Final = 3
_FRAMES: Final = 14
_GROUPS: Final = 8
_NAMED: Final = 4
_PAST: Final = StateLabel("none", "Recorded", 5)
_OVER: Final = StateLabel("resolved", "Over", 5)
_GOING_ON: Final = StateLabel("firing", "Hang", 0)
_UNSURE: Final = StateLabel("none", "No culprit", 2)


@dataclass(frozen=True, slots=True)
class FrameLine:
    """A frame: function, and where it is."""

    function: str
    at: str


@dataclass(frozen=True, slots=True)
class StackView:
    """Equal stacks of ranks."""

    title: str
    note: str
    frames: tuple[FrameLine, ...]
    more: int


@dataclass(frozen=True, slots=True)
class GroupLine:
    """Ranks that wait in the same operation."""

    ranks: str
    what: str
    since: str


@dataclass(frozen=True, slots=True)
class HangLine:
    """A hang in the list of its job."""

    url: str
    at: datetime
    state: StateLabel
    sentence: str
    lasted: str
    cost: str


@dataclass(frozen=True, slots=True)
class HangPage:
    """The page of a hang."""

    id: uuid.UUID
    url: str
    job: str
    now: datetime
    title: str
    state: StateLabel
    received: datetime
    heading: str
    facts: tuple[Fact, ...]
    graph_title: str
    graph_words: str
    graph: Graph | None
    narrow: Graph | None
    stacks: tuple[StackView, ...]
    steps: tuple[str, ...]
    commands: Sequence[tuple[str, str]]
    unknown: tuple[str, ...]
    groups_title: str
    groups: tuple[GroupLine, ...]
    more_groups: int
    incidents: Sequence[Actions]


def hang_page(
    row: HangRow,
    document: HangDocument,
    incidents: Sequence[Actions],
    guessed: Collection[str],
) -> HangPage:
    """Return the page of a hang; `guessed` are hosts whose names may be those of containers."""
    hang = document.verdict
    groups = _groups(document, row.now)
    known = sum(line.known for line in document.ranks)
    return HangPage(
        id=row.id,
        url=f"/hangs/{row.id}",
        job=row.job,
        now=row.now,
        title=f"Hang of {row.job}: {heading_of(hang)}",
        state=hang_state(row),
        received=row.created_at,
        heading=heading_of(hang),
        facts=tuple(_facts(row, document)),
        graph_title=_graph_title(hang),
        graph_words=graph_words(document),
        graph=graph_of(document),
        narrow=graph_of(document, downward=True),
        stacks=_stacks(document),
        steps=tuple(steps_of(document)),
        commands=_commands(hang, row, guessed),
        unknown=hang.unknown,
        groups_title=f"{count(known)} of {plural(len(document.ranks), 'rank')} left something",
        groups=groups[:_GROUPS],
        more_groups=max(len(groups) - _GROUPS, 0),
        incidents=incidents,
    )


def hang_line(row: HangRow) -> HangLine:
    """Return a hang as a list shows it."""
    return HangLine(
        url=f"/hangs/{row.id}",
        at=row.created_at,
        state=hang_state(row),
        sentence=row.sentence,
        lasted="" if row.is_past else age(row.lasted.total_seconds()),
        cost="" if row.is_past else hours(row.gpu_hours),
    )


def hang_state(row: HangRow) -> StateLabel:
    """Return how a hang stands."""
    if not row.is_going_on:
        return _PAST if row.is_past else _OVER
    return _GOING_ON if row.culprits else _UNSURE


def heading_of(hang: Hang) -> str:
    """Return who waits for whom, and why, in one sentence without a full stop."""
    if not hang.culprits:
        return hang.sentence.removesuffix(".")
    blamed = [one.rank for one in hang.culprits]
    who = "1 rank waits" if len(hang.waiting) == 1 else f"{count(len(hang.waiting))} ranks wait"
    named = f"rank{'s' if len(blamed) > 1 else ''} {_and(blamed)}"
    operation = hang.culprits[0].operation.partition(" of ")[0]
    whys = {
        HangKind.NEVER_ENTERED: f"which never entered {operation}",
        HangKind.DEVICE_STUCK: f"which {_do(blamed, 'does', 'do')} not complete {operation}",
        HangKind.SILENT: "which left nothing",
        HangKind.MISMATCH: f"which {_do(blamed, 'disagrees', 'disagree')} on {operation}",
    }
    return f"{who} for {named}, {whys[hang.kind]}"


def _do(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _and(ranks: Sequence[int]) -> str:
    if len(ranks) > _NAMED:
        return f"{', '.join(map(str, ranks[:_NAMED]))} and {count(len(ranks) - _NAMED)} more"
    *before, last = map(str, ranks)
    return f"{', '.join(before)} and {last}" if before else last


def _facts(row: HangRow, document: HangDocument) -> list[Fact]:
    hang = document.verdict
    kind, what = KINDS[hang.kind]
    facts = [
        Fact("Waiting", f"{count(row.waiting)} of {plural(row.ranks, 'rank')}", _lasting(row)),
        Fact("Costs", f"{count(document.gpu_hours_each_hour)} an hour", _cost(row)),
    ]
    if hang.culprits:
        blamed = [one.rank for one in hang.culprits]
        places = [one.place for one in hang.culprits[:_NAMED] if one.place]
        operation, _, group = hang.culprits[0].operation.partition(" of ")
        facts += [
            Fact("Stuck ranks", _and(blamed), ", ".join(places) or "hosts are not known"),
            Fact("Kind", kind, what),
            Fact("At", operation, group),
            Fact("Sure", sure(hang.confidence), hang.culprits[0].evidence if not places else ""),
        ]
    else:
        facts.append(Fact("Kind", kind, what))
    return facts


def _lasting(row: HangRow) -> str:
    if row.is_past:
        return f"recorded {age((row.now - row.began).total_seconds())} ago"
    lasted = age(row.lasted.total_seconds())
    return f"for {lasted}" if row.is_going_on else f"lasted {lasted}"


def _cost(row: HangRow) -> str:
    if row.is_past:
        return "GPU-hours; how long is not known"
    return f"GPU-hours; {hours(row.gpu_hours)} " + ("so far" if row.is_going_on else "in all")


def _graph_title(hang: Hang) -> str:
    blamed = plural(len(hang.culprits), "rank")
    return f"All who wait, wait in the end for {blamed}"


def _stacks(document: HangDocument) -> tuple[StackView, ...]:
    stuck = [one for one in document.stacks if one.stuck]
    others = [one for one in document.stacks if not one.stuck]
    shown = [*stuck[: _STACKS - 1], *others[: _STACKS - min(len(stuck), _STACKS - 1)]]
    return tuple(_stack(one) for one in shown)


def _stack(one: FoldedStack) -> StackView:
    top = one.frames[0]
    many = len(one.ranks) > 1
    who = plural(len(one.ranks), "stuck rank" if one.stuck else "other rank")
    does = ("stand" if one.stuck else "wait") + ("" if many else "s")
    equal = ", equal" if many else ""
    return StackView(
        title=f"{who} {does} in {top.function}",
        note=f"Rank{'s' if many else ''} {ranks_text(one.ranks)}{equal}; innermost first; "
        "function, file, line; never values",
        frames=tuple(FrameLine(frame.function, _at(frame)) for frame in one.frames[:_FRAMES]),
        more=max(len(one.frames) - _FRAMES, 0),
    )


def _at(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}"


def steps_of(document: HangDocument) -> list[str]:
    """Return what to do, in order."""
    hang = document.verdict
    stuck = [one for one in document.stacks if one.stuck]
    steps = []
    if stuck:
        lines = {one.frames[0] for one in stuck}
        ranks = sum(len(one.ranks) for one in stuck)
        line = f"Read {_at(stuck[0].frames[0])}, in {stuck[0].frames[0].function}"
        if len(lines) == 1 and ranks > 1:
            line += f": the same line on {count(ranks)} ranks, so it is the job, not a machine"
        steps.append(f"{line}.")
    steps.append(hang.remedy)
    hosts = {one.host for one in hang.culprits if one.host}
    if len(hosts) > 1 and hang.kind is not HangKind.DEVICE_STUCK:
        steps.append(f"Culprits are on {count(len(hosts))} hosts: one machine is not the reason.")
    return steps


def _commands(hang: Hang, row: HangRow, guessed: Collection[str]) -> Sequence[tuple[str, str]]:
    """Return how to take a host out, where one is at fault and its name is no guess."""
    hosts = {one.host for one in hang.culprits}
    if hang.kind not in {HangKind.DEVICE_STUCK, HangKind.SILENT} or len(hosts) != 1:
        return ()
    host = hosts.pop()
    if not host or host in guessed:
        return ()
    return cordon_commands(host, f"Paceline hang {row.id}")


def _groups(document: HangDocument, now: datetime) -> tuple[GroupLine, ...]:
    """Fold ranks by what they wait in; culprits and those of which nothing is known come first."""
    blamed = {one.rank: one for one in document.verdict.culprits}
    folded: dict[tuple[int, str], list[RankLine]] = {}
    for line in document.ranks:
        if line.rank in blamed:
            kind, _ = KINDS[blamed[line.rank].kind]
            key = 0, kind + (f", {line.waits_in}" if line.waits_in else "")
        elif not line.known:
            key = 1, "nothing is known"
        else:
            key = 2, _UNLIKE.sub("", line.waits_in or "nothing pending")
        folded.setdefault(key, []).append(line)
    ordered = sorted(folded.items(), key=lambda one: (one[0][0], -len(one[1]), one[0][1]))
    return tuple(
        GroupLine(ranks_text([line.rank for line in lines]), what, _since(lines, now))
        for (_, what), lines in ordered
    )


def _since(lines: Sequence[RankLine], now: datetime) -> str:
    since_ns = min((one.since_ns for one in lines if one.since_ns is not None), default=None)
    if since_ns is None:
        return "–"
    return age(max(now.timestamp() - since_ns / 1e9, 0.0))
