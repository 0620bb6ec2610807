"""The stored document of a hang: verdict, ranks grouped by what they wait for, and stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.analysis.hangs.findings import Hang, HangKind, label
from app.analysis.hangs.state import Frame, JobState
from app.analysis.hangs.verdict import judge_hang
from app.analysis.hangs.wait_graph import Waits

SCHEMA: Final = "paceline.hang/1"
_FARTHEST: Final = 3  # the last column of the graph, which has all ranks beyond it too
_MOST_BOXES: Final = 6  # of a column: of more, the smallest are merged


@dataclass(frozen=True, slots=True)
class Box:
    """Box of the graph: ranks that wait in the same operation, or culprits.

    Parameters
    ----------
    distance : int
        Number of operations between these ranks and a culprit; 0 for culprits, 3 for three or more.
    what : str
        Operation in which the ranks wait, or the state of a culprit.
    place : str
        Host and GPU of a single rank, as far as known.
    """

    distance: int
    ranks: tuple[int, ...]
    what: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """Arrow of the graph: the ranks of box `start` wait for those of box `end` (box indices)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RankLine:
    """A rank, its host and GPU, and the operation in which it waits (None without any).

    Parameters
    ----------
    known : bool
        Whether the rank recorded anything.
    """

    rank: int
    host: str | None
    gpu: str | None
    waits_in: str | None
    since_ns: int | None
    known: bool


@dataclass(frozen=True, slots=True)
class FoldedStack:
    """A stack that several ranks share, innermost frame first; `stuck` if they are culprits."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    stuck: bool


@dataclass(frozen=True, slots=True)
class HangDocument:
    """The diagnosis of a hang as stored and shown.

    Parameters
    ----------
    since_ns : int or None
        Begin of the first wait for a culprit, nanoseconds since the epoch, by the clock of the
        waiting rank's host.
    """

    schema: str
    verdict: Hang
    since_ns: int | None
    ranks: tuple[RankLine, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    stacks: tuple[FoldedStack, ...]

    @property
    def gpu_hours_each_hour(self) -> int:
        """Return the cost in GPU-hours per hour: the GPUs of all ranks are idle."""
        return len(self.ranks)


def hang_document(job: JobState) -> HangDocument:
    """Return the verdict on a stopped job, with the graph and the stacks that its page shows."""
    hang, waits = judge_hang(job), Waits.of(job)
    boxes, arrows = _graph(job, hang, waits)
    blamed = {culprit.rank: culprit.stack for culprit in hang.culprits}
    lines = []
    for rank in job.world:
        state, number = job.ranks.get(rank), waits.of_rank.get(rank)
        front = None if state is None else state.front
        lines.append(
            RankLine(
                rank,
                job.place(rank).host,
                job.place(rank).gpu,
                None if number is None else label(job, waits.operations[number]),
                None if front is None else front.since_ns,
                known=state is not None,
            )
        )
    since = [c.since_ns for c in hang.culprits if c.since_ns is not None]
    since = since or [line.since_ns for line in lines if line.since_ns is not None]
    return HangDocument(
        schema=SCHEMA,
        verdict=hang,
        since_ns=min(since, default=None),
        ranks=tuple(lines),
        boxes=boxes,
        arrows=arrows,
        stacks=_stacks(job, blamed),
    )


def _stacks(job: JobState, blamed: Mapping[int, tuple[Frame, ...]]) -> tuple[FoldedStack, ...]:
    """Return the distinct stacks: those of culprits first, then by falling number of ranks.

    Parameters
    ----------
    blamed : mapping of int to tuple of Frame
        Stacks of the culprits' calls, which recorders have too; empty if unknown.
    """
    folded: dict[tuple[bool, tuple[Frame, ...]], list[int]] = {}
    for rank, state in sorted(job.ranks.items()):
        stack = blamed.get(rank) or state.stack
        if stack:
            folded.setdefault((rank in blamed, stack), []).append(rank)
    ordered = sorted(folded.items(), key=lambda item: (not item[0][0], -len(item[1]), item[1]))
    return tuple(
        FoldedStack(tuple(ranks), frames, stuck=stuck) for (stuck, frames), ranks in ordered
    )


def _graph(job: JobState, hang: Hang, waits: Waits) -> tuple[tuple[Box, ...], tuple[Arrow, ...]]:
    """Return boxes of ranks that wait in one operation at one distance, and their arrows."""
    blamed = [culprit.rank for culprit in hang.culprits]
    distance = {rank: min(away, _FARTHEST) for rank, away in waits.distances(blamed).items()}
    folded: dict[tuple[int, str], list[int]] = {}
    for rank, away in distance.items():
        number = waits.of_rank.get(rank)
        if away and number is not None:
            first = waits.operations[number].first
            group = job.groups[first.group]
            name = first.name or "operation"
            what = f"{name} {first.number:,} of {group.description or group.called}"
            folded.setdefault((away, what), []).append(rank)
    boxes = list(_culprit_boxes(hang))
    for away in sorted({away for away, _ in folded}):
        column = [(what, ranks) for (at, what), ranks in folded.items() if at == away]
        boxes += [Box(away, ranks, what) for what, ranks in _largest(column)]
    box_of = {rank: index for index, box in enumerate(boxes) for rank in box.ranks}
    arrows = {
        (box_of[rank], box_of[other])
        for operation in waits.operations
        for other in operation.awaited
        if other in box_of
        for rank in operation.waiting[:1]
        if rank in box_of and box_of[rank] != box_of[other]
    }
    # Only arrows to the next column are drawn; the chain lists the other waits too.
    leading = sorted(
        (start, end) for start, end in arrows if boxes[end].distance == boxes[start].distance - 1
    )
    return tuple(boxes), tuple(Arrow(start, end) for start, end in leading)


def _culprit_boxes(hang: Hang) -> Sequence[Box]:
    if len(hang.culprits) <= _MOST_BOXES:
        return [
            Box(0, (c.rank,), f"{_STATES[c.kind]}: {c.operation}", c.place) for c in hang.culprits
        ]
    kinds: dict[HangKind, list[int]] = {}
    for culprit in hang.culprits:
        kinds.setdefault(culprit.kind, []).append(culprit.rank)
    return [Box(0, tuple(ranks), _STATES[kind]) for kind, ranks in kinds.items()]


_STATES: Final[Mapping[HangKind, str]] = {
    HangKind.NEVER_ENTERED: "never entered",
    HangKind.DEVICE_STUCK: "does not complete",
    HangKind.SILENT: "left nothing, awaited in",
    HangKind.MISMATCH: "at odds in",
}


def _largest(
    column: Sequence[tuple[str, Sequence[int]]],
) -> Sequence[tuple[str, tuple[int, ...]]]:
    """Return the largest boxes of a column, and the other boxes merged into one box."""
    ordered = sorted(column, key=lambda item: (-len(item[1]), item[0]))
    kept = [(what, tuple(sorted(ranks))) for what, ranks in ordered[: _MOST_BOXES - 1]]
    rest = ordered[_MOST_BOXES - 1 :]
    if len(rest) > 1:
        others = tuple(sorted(rank for _, ranks in rest for rank in ranks))
        return [*kept, (f"{len(rest)} other operations", others)]
    return [*kept, *((what, tuple(sorted(ranks))) for what, ranks in rest)]


def ranks_text(ranks: Sequence[int], most: int = 6) -> str:
    """Return ranks as spans: ``8, 10–13, 15``; after `most` spans, the number of further ranks.

    Examples
    --------
    >>> ranks_text([8, 10, 11, 12, 13, 15])
    '8, 10–13, 15'
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = [str(first) if first == last else f"{first}–{last}" for first, last in spans[:most]]
    left = sum(last - first + 1 for first, last in spans[most:])
    return ", ".join(shown) + (f" and {left:,} more" if left else "")
