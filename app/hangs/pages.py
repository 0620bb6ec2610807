"""The page of a hang: graph, facts, stacks and next steps; CSV files and the evidence archive."""

from __future__ import annotations

import io
import re
import uuid
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import RequestContainer
from app.analysis.hangs.document import Box, FoldedStack, HangDocument, RankLine, ranks_text
from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.state import Frame
from app.analysis.json_text import to_json
from app.analysis.wording import hours, sure
from app.errors import NotFoundError
from app.hangs.read import HangRow, get_hang
from app.hangs.receive import guessed_hosts
from app.incidents.held_machines import cordon_commands
from app.incidents.pages.parts import Actions, actions
from app.incidents.views import open_by_job
from app.web import html, moments
from app.web.format import age, count, plural
from app.web.links import job_url
from app.web.pages import Pages
from app.web.parts import Fact, StateLabel
from app.web.tables import Drawn, Shown, Table, csv_file, drawn, one_of

# Sizes of the graph of waiting ranks, in SVG units. Arrows point from left to right or, on a phone,
# downward.
_WIDTH: Final = 240
_HEIGHT: Final = 66
_GAP: Final = 20
_BETWEEN: Final = 80
_EDGE: Final = 2
# Largest number of characters in a line of a box of the graph.
_CHARACTERS: Final = 38
# Largest number of characters in a box's title, which is bold and therefore wider.
_TITLE_CHARACTERS: Final = 34
_SPANS: Final = 4


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box of the graph: corner, title, lines and text alternative; `stuck` if of a culprit."""

    x: int
    y: int
    title: str
    lines: tuple[str, ...]
    words: str
    stuck: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes of a graph, and SVG paths of the arrows between them."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[PlacedBox, ...]
    arrows: tuple[str, ...]


def graph_of(document: HangDocument, *, downward: bool = False) -> Graph | None:
    """Return the graph of a hang; None if no rank waits for another rank."""
    boxes = document.boxes
    if not any(box.distance for box in boxes):
        return None
    distances = sorted({box.distance for box in boxes}, reverse=True)
    columns = [[n for n, box in enumerate(boxes) if box.distance == away] for away in distances]
    tallest = max(map(len, columns))
    corners: dict[int, tuple[int, int]] = {}
    for place, column in enumerate(columns):
        for row, index in enumerate(column):
            if downward:
                above = sum(map(len, columns[:place]))
                y = (above + row) * (_HEIGHT + _GAP) + place * _GAP
                corners[index] = (_EDGE, _EDGE + y)
            else:
                rest = (tallest - len(column)) * (_HEIGHT + _GAP) // 2
                x = place * (_WIDTH + _BETWEEN)
                corners[index] = (_EDGE + x, _EDGE + rest + row * (_HEIGHT + _GAP))
    width, middle = 330 if downward else _WIDTH, _HEIGHT // 2
    ends = ((corners[arrow.start], corners[arrow.end]) for arrow in document.arrows)
    return Graph(
        width=2 * _EDGE + max(x for x, _ in corners.values()) + width,
        height=2 * _EDGE + max(y for _, y in corners.values()) + _HEIGHT,
        box_width=width,
        box_height=_HEIGHT,
        boxes=tuple(_placed(box, corners[index]) for index, box in enumerate(boxes)),
        arrows=_downward(columns, corners)
        if downward
        else tuple(
            f"M{start[0] + _WIDTH + 2} {start[1] + middle}L{end[0] - 4} {end[1] + middle}"
            for start, end in ends
        ),
    )


def _placed(box: Box, corner: tuple[int, int]) -> PlacedBox:
    # The text holds a culprit's kind and operation, or the operation of waiting ranks and its
    # group.
    what, _, rest = box.what.partition(" of " if box.distance else ": ")
    rest = rest if box.distance else rest.partition(" of ")[0]
    if len(box.ranks) == 1:
        title = f"Rank {box.ranks[0]}" + (f" · {box.place}" if box.place else "")
    else:
        title = f"{plural(len(box.ranks), 'rank')}: {ranks_text(box.ranks, _SPANS)}"
    lines = tuple(_cut(line) for line in (what, rest) if line)
    cut = _cut(title, _TITLE_CHARACTERS)
    return PlacedBox(*corner, cut, lines, f"{title}: {box.what}", stuck=not box.distance)


def _cut(text: str, most: int = _CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _downward(
    columns: Sequence[Sequence[int]], corners: dict[int, tuple[int, int]]
) -> tuple[str, ...]:
    """Return one downward arrow between consecutive columns of boxes.

    An arrow for each box would cross boxes.
    """
    arrows = []
    for above, below in pairwise(columns):
        top, bottom = corners[above[-1]][1] + _HEIGHT, corners[below[0]][1]
        arrows.append(f"M{_EDGE + 24} {top + 2}L{_EDGE + 24} {bottom - 4}")
    return tuple(arrows)


def graph_words(document: HangDocument) -> str:
    """Return the text alternative of the graph, for screen readers."""
    parts = [
        f"{plural(len(box.ranks), 'rank')} ({ranks_text(box.ranks)}): {box.what}"
        for box in document.boxes
    ]
    return "Culprits and who waits for them: " + "; ".join(parts)


KINDS: Final = {
    HangKind.NEVER_ENTERED: ("Never entered", "stuck on the host"),
    HangKind.DEVICE_STUCK: ("Device stuck", "entered, does not complete"),
    HangKind.SILENT: ("Silent", "left nothing"),
    HangKind.MISMATCH: ("Mismatch", "called differently"),
    HangKind.ALL_ENTERED: ("All entered", "none is missing"),
    HangKind.NOTHING_PENDING: ("Nothing pending", "no rank waits"),
}
# The name of a group in parentheses after its description, such as " (43)". It is removed so that
# ranks in equal operations of different groups are listed together.
_UNLIKE: Final = re.compile(r" \([^()]*\)$")
# Largest number of stacks, of frames of a stack, and of groups of ranks on the page. The CSV files
# contain all of them.
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
    """A frame of a stack: its function, and its file with the line."""

    function: str
    at: str


@dataclass(frozen=True, slots=True)
class StackView:
    """A stack, and the ranks that have it."""

    title: str
    note: str
    frames: tuple[FrameLine, ...]
    more: int


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A line about ranks that wait in the same operation."""

    ranks: str
    what: str
    since: str


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
    groups: Drawn
    more_groups: int
    incidents: Sequence[Actions]


def hang_page(
    row: HangRow,
    document: HangDocument,
    incidents: Sequence[Actions],
    guessed: Collection[str],
) -> HangPage:
    """Return the page of a hang; `guessed` holds hosts whose names may be those of containers."""
    hang = document.verdict
    groups = _groups(document, row.now)
    heard = sum(line.known for line in document.ranks)
    blamed = plural(len(hang.culprits), "rank")
    stuck = [stack for stack in document.stacks if stack.stuck]
    others = [stack for stack in document.stacks if not stack.stuck]
    stacks = [*stuck[: _STACKS - 1], *others[: _STACKS - min(len(stuck), _STACKS - 1)]]
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
        graph_title=f"All who wait, wait in the end for {blamed}",
        graph_words=graph_words(document),
        graph=graph_of(document),
        narrow=graph_of(document, downward=True),
        stacks=tuple(_stack(stack) for stack in stacks),
        steps=tuple(steps_of(document)),
        commands=_commands(hang, row, guessed),
        unknown=hang.unknown,
        groups_title=f"{count(heard)} of {plural(len(document.ranks), 'rank')} left something",
        groups=drawn(_GROUP_COLUMNS, groups[:_GROUPS], csv=f"/hangs/{row.id}/ranks.csv"),
        more_groups=max(len(groups) - _GROUPS, 0),
        incidents=incidents,
    )


def hangs_table(rows: Sequence[HangRow], job: str, now: datetime) -> Drawn:
    """Return the table of a job's hangs, for the job's page."""
    return drawn(
        (
            Shown("When", lambda row: moments.when(row.created_at, now), of_cells="nowrap"),
            Shown("State", lambda row: html.state(hang_state(row)), of_cells="nowrap"),
            Shown(
                "What",
                lambda row: html.element(
                    "a", row.sentence, class_="within", href=f"/hangs/{row.id}"
                ),
                of_cells="grow",
            ),
            Shown(
                "Lasted",
                lambda row: "" if row.is_past else age(row.lasted.total_seconds()),
                classes="num opt",
                of_cells="nowrap",
            ),
            Shown(
                "GPU-hours",
                lambda row: "" if row.is_past else hours(row.gpu_hours),
                classes="num opt",
            ),
        ),
        rows,
        csv=f"{job_url(job)}/hangs.csv",
    )


def hang_state(row: HangRow) -> StateLabel:
    """Return the label for the state of a hang."""
    if not row.is_going_on:
        return _PAST if row.is_past else _OVER
    return _GOING_ON if row.culprits else _UNSURE


def heading_of(hang: Hang) -> str:
    """Return which ranks wait for which and why, in one sentence without a full stop."""
    if not hang.culprits:
        return hang.sentence.removesuffix(".")
    blamed = [culprit.rank for culprit in hang.culprits]
    named = f"rank{'s' if len(blamed) > 1 else ''} {_and(blamed)}"
    operation = hang.culprits[0].operation.partition(" of ")[0]
    whys = {
        HangKind.NEVER_ENTERED: f"which never entered {operation}",
        HangKind.DEVICE_STUCK: f"which {_do(blamed, 'does', 'do')} not complete {operation}",
        HangKind.SILENT: "which left nothing",
        HangKind.MISMATCH: f"which {_do(blamed, 'disagrees', 'disagree')} on {operation}",
    }
    why = whys[hang.kind]
    waiting = len({*hang.waiting}.difference(blamed))
    if not waiting:
        return f"{named.capitalize()} {why.removeprefix('which ')}"
    who = "1 rank waits" if waiting == 1 else f"{count(waiting)} ranks wait"
    return f"{who} for {named}, {why}"


def _do(ranks: Sequence[int], singular: str, plural_verb: str) -> str:
    return singular if len(ranks) == 1 else plural_verb


def _and(ranks: Sequence[int]) -> str:
    if len(ranks) > _NAMED:
        return f"{', '.join(map(str, ranks[:_NAMED]))} and {count(len(ranks) - _NAMED)} more"
    *before, last = map(str, ranks)
    return f"{', '.join(before)} and {last}" if before else last


def _facts(row: HangRow, document: HangDocument) -> list[Fact]:
    hang = document.verdict
    kind, what = KINDS[hang.kind]
    if row.is_past:
        duration = f"recorded {age((row.now - row.began).total_seconds())} ago"
        cost = "GPU-hours; how long is not known"
    else:
        lasted = age(row.lasted.total_seconds())
        duration = f"for {lasted}" if row.is_going_on else f"lasted {lasted}"
        cost = f"GPU-hours; {hours(row.gpu_hours)} " + ("so far" if row.is_going_on else "in all")
    facts = [
        Fact("Waiting", f"{count(row.waiting)} of {plural(row.ranks, 'rank')}", duration),
        Fact("Costs", f"{count(document.gpu_hours_each_hour)} an hour", cost),
    ]
    if hang.culprits:
        blamed = [culprit.rank for culprit in hang.culprits]
        places = [culprit.place for culprit in hang.culprits[:_NAMED] if culprit.place]
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


def _stack(stack: FoldedStack) -> StackView:
    many = len(stack.ranks) > 1
    who = plural(len(stack.ranks), "stuck rank" if stack.stuck else "other rank")
    does = ("stand" if stack.stuck else "wait") + ("" if many else "s")
    equal = ", equal" if many else ""
    return StackView(
        title=f"{who} {does} in {stack.frames[0].function}",
        note=f"Rank{'s' if many else ''} {ranks_text(stack.ranks)}{equal}; innermost first; "
        "function, file, line; never values",
        frames=tuple(FrameLine(frame.function, _at(frame)) for frame in stack.frames[:_FRAMES]),
        more=max(len(stack.frames) - _FRAMES, 0),
    )


def _at(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}"


def steps_of(document: HangDocument) -> list[str]:
    """Return the sentences that tell a user how to resolve a hang, in order."""
    hang = document.verdict
    stuck = [stack for stack in document.stacks if stack.stuck]
    steps = []
    if stuck:
        lines = {stack.frames[0] for stack in stuck}
        ranks = sum(len(stack.ranks) for stack in stuck)
        line = f"Read {_at(stuck[0].frames[0])}, in {stuck[0].frames[0].function}"
        if len(lines) == 1 and ranks > 1:
            line += f": the same line on {count(ranks)} ranks, so it is the job, not a machine"
        steps.append(f"{line}.")
    steps.append(hang.remedy)
    hosts = {culprit.host for culprit in hang.culprits if culprit.host}
    if len(hosts) > 1 and hang.kind is not HangKind.DEVICE_STUCK:
        steps.append(f"Culprits are on {count(len(hosts))} hosts: one machine is not the reason.")
    return steps


def _commands(hang: Hang, row: HangRow, guessed: Collection[str]) -> Sequence[tuple[str, str]]:
    """Return the commands that cordon the host at fault, if it is one host with a sure name."""
    hosts = {culprit.host for culprit in hang.culprits}
    if hang.kind not in {HangKind.DEVICE_STUCK, HangKind.SILENT} or len(hosts) != 1:
        return ()
    host = hosts.pop()
    if not host or host in guessed:
        return ()
    return cordon_commands(host, f"Paceline hang {row.id}")


_GROUP_COLUMNS: Final[tuple[Shown[GroupLine], ...]] = (
    Shown("Ranks", lambda line: line.ranks),
    Shown("Waits in", lambda line: line.what, of_cells="grow"),
    Shown("Since", lambda line: line.since, classes="num", of_cells="nowrap"),
)


def _groups(document: HangDocument, now: datetime) -> tuple[GroupLine, ...]:
    """Return ranks grouped by the operation they wait in: culprits first, then unknown ranks."""
    blamed = {culprit.rank: culprit for culprit in document.verdict.culprits}
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
    groups = []
    for (_, what), lines in sorted(
        folded.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1])
    ):
        since_ns = min((line.since_ns for line in lines if line.since_ns is not None), default=None)
        since = "–" if since_ns is None else age(max(now.timestamp() - since_ns / 1e9, 0.0))
        groups.append(GroupLine(ranks_text([line.rank for line in lines]), what, since))
    return tuple(groups)


def ranks_csv(document: HangDocument) -> Table:
    """Return the table of all ranks: host and GPU, and the operation in which the rank waits."""
    blamed = {culprit.rank: culprit.kind for culprit in document.verdict.culprits}
    header = ("rank", "host", "gpu", "culprit", "known", "waits_in", "since_ns")
    return Table(
        header,
        (
            (
                line.rank, line.host, line.gpu, blamed.get(line.rank), line.known, line.waits_in,
                line.since_ns,
            )
            for line in document.ranks
        ),
    )  # fmt: skip


def chain_csv(document: HangDocument) -> Table:
    """Return the table of the chain of waiting ranks, the nearest to the culprits first."""
    header = ("distance", "operation", "waiting", "waits_for")
    return Table(
        header,
        (
            (link.distance, link.operation, _spans(link.waiting), _spans(link.waits_for))
            for link in document.verdict.chain
        ),
    )


def stacks_csv(document: HangDocument) -> Table:
    """Return the table of all stacks: a row for each frame, the innermost first."""
    header = ("ranks", "stuck", "frame", "function", "file", "line")
    return Table(
        header,
        (
            (_spans(stack.ranks), stack.stuck, number, frame.function, frame.file, frame.line)
            for stack in document.stacks
            for number, frame in enumerate(stack.frames)
        ),
    )


FILES: Final[Mapping[str, Callable[[HangDocument], Table]]] = {
    "ranks": ranks_csv,
    "chain": chain_csv,
    "stacks": stacks_csv,
}


def hangs_csv(rows: Sequence[HangRow]) -> Table:
    """Return the table of a job's hangs, the latest first."""
    names = ("hang", "received_at", "over_at", "kind", "ranks", "waiting", "culprits")
    return Table.of(HangRow, rows, *names, "confidence", "gpu_hours", "sentence")


def evidence_pack(row: HangRow, document: HangDocument) -> bytes:
    """Return a ZIP archive with the text, the document and the tables of a hang."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hang.txt", hang_text(row, document))
        archive.writestr("hang.json", to_json(document))
        for name, make in FILES.items():
            archive.writestr(f"{name}.csv", make(document).text())
    return packed.getvalue()


def hang_text(row: HangRow, document: HangDocument) -> str:
    """Return a hang as plain text that a user can paste into a ticket."""
    hang = document.verdict
    lines = [f"{row.job}: {heading_of(hang)}", "", hang.sentence]
    lines += [
        f"- rank {culprit.rank}{f' on {culprit.place}' if culprit.place else ''} {culprit.evidence}"
        for culprit in hang.culprits
    ]
    for stack in document.stacks:
        if stack.stuck:
            lines += ["", f"Stack of {_spans(stack.ranks)}, innermost first:"]
            lines += [f"  {frame.function}  {frame.file}:{frame.line}" for frame in stack.frames]
    lines += ["", "What to do:", *(f"{n}. {step}" for n, step in enumerate(steps_of(document), 1))]
    if hang.unknown:
        lines += ["", *hang.unknown]
    lines += ["", f"Received {row.created_at:%Y-%m-%d %H:%M} UTC"]
    if row.over_at is not None:
        lines.append(f"Over {row.over_at:%Y-%m-%d %H:%M} UTC, {row.gpu_hours:.1f} GPU-hours")
    return "\n".join(lines) + "\n"


def _spans(ranks: Sequence[int]) -> str:
    # No limit on the number of named ranks, because files list all of them.
    return ranks_text(ranks, len(ranks)).replace("–", "-")


def add_hang_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of hangs to the dashboard."""

    @routes.get("/hangs/{hang}")
    def hang_route(container: RequestContainer, hang: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                row, document = get_hang(tx, uuid.UUID(hang))
            except (ValueError, NotFoundError):
                return pages.not_found(f"hang {hang}", nav)
            incidents = open_by_job(tx, row.job).get(row.job, [])
            guessed = guessed_hosts(tx, row.job)
        shown = [actions(incident, row.now) for incident in incidents]
        page = hang_page(row, document, shown, guessed)
        text = hang_text(row, document)
        return pages.render("hangs/page.html", nav, page=page, now=page.now, text=text)

    @routes.get("/hangs/{hang}/evidence.zip")
    def evidence_route(container: RequestContainer, hang: uuid.UUID) -> Response:
        with container.reading() as tx:
            row, document = get_hang(tx, hang)
        disposition = f'attachment; filename="paceline-hang-{hang}.zip"'
        return Response(
            evidence_pack(row, document),
            media_type="application/zip",
            headers={"Cache-Control": "no-store", "Content-Disposition": disposition},
        )

    @routes.get("/hangs/{hang}/{name}.csv")
    def file_route(container: RequestContainer, hang: uuid.UUID, name: str) -> Response:
        make = one_of(FILES, name)
        with container.reading() as tx:
            _, document = get_hang(tx, hang)
        return csv_file(f"paceline-hang-{name}.csv", make(document))
