"""Sends and receives of a rank of a pipeline: what the host issued, and when it was carried out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.trace.recordings.profiler.groups import is_of_pipeline
from app.analysis.trace.recordings.profiler.pipeline.computing import columns_of
from app.analysis.trace.recordings.profiler.scan import Issue, Links, Scan, Span, Work

_SEND, _RECEIVE = "send", "recv"
# One kernel carries out several sends and receives that were issued together.
FUSED: Final = frozenset({"sendrecv", "coalesced"})
TRANSFERS: Final = frozenset({_SEND, _RECEIVE}) | FUSED


@dataclass(frozen=True, slots=True)
class Transfer:
    """A send or a receive.

    Parameters
    ----------
    issued : int
        When the host called it, in ns.
    span : Span
        From when it was posted to when it was done.
    peer : int or None
        Global rank at its other end, where that is recorded.
    """

    sends: bool
    issued: int
    span: Span
    peer: int | None


def issues_transfers(scan: Scan) -> bool:
    """Return whether the recording of a rank has sends or receives of a pipeline."""
    return bool(_issues(scan))


def transfers_of(scan: Scan) -> list[Transfer]:
    """Return the sends and receives of a rank, in the order in which the host issued them."""
    works = [
        work for work in scan.works if work.name in TRANSFERS and is_of_pipeline(work.description)
    ]
    issues = _issues(scan)
    if len(scan.kernels):
        found = _on_device(scan, [work for work in works if work.on_device], issues)
    else:
        found = _on_host(works, issues)
    return sorted(found, key=lambda one: one.issued)


def _issues(scan: Scan) -> list[Issue]:
    """Return the calls that issued transfers; of a call within another only the inner one."""
    found = [
        issue
        for issue in scan.issues
        if issue.name in {_SEND, _RECEIVE} and is_of_pipeline(issue.description)
    ]
    found.sort(key=lambda issue: (issue.span.start, -issue.span.end))
    return [
        issue
        for place, issue in enumerate(found)
        if place + 1 == len(found)
        or found[place + 1].span.start >= issue.span.end
        or found[place + 1].name != issue.name
        or found[place + 1].thread != issue.thread
    ]


def _on_host(works: Sequence[Work], issues: Sequence[Issue]) -> Iterator[Transfer]:
    """Pair the calls with what the backend did for them: the first that began after each."""
    for name in (_SEND, _RECEIVE):
        mine = sorted(
            (work for work in works if work.name == name), key=lambda work: work.span.start
        )
        at = 0
        for issue in issues:
            if issue.name != name:
                continue
            while at < len(mine) and mine[at].span.start < issue.span.start:
                at += 1
            if at == len(mine):
                return
            yield Transfer(name == _SEND, issue.span.start, mine[at].span, mine[at].peer)
            at += 1


def _on_device(scan: Scan, works: Sequence[Work], issues: Sequence[Issue]) -> Iterator[Transfer]:
    """Pair the calls with kernels; one kernel carries out all that were issued together."""
    launched = _launches(scan, works)
    pending = list(issues)
    for launch, work in sorted(zip(launched, works, strict=True), key=lambda one: one[0]):
        if work.name not in FUSED:
            same = [one for one in pending if one.name == work.name and one.span.start <= launch]
            by_number = [one for one in same if one.external == work.external >= 0]
            issued = launch
            for issue in (by_number or same[-1:])[:1]:
                pending.remove(issue)
                issued = issue.span.start
            yield Transfer(work.name == _SEND, issued, work.span, work.peer)
            continue
        carried = [issue for issue in pending if issue.span.start <= launch]
        pending = [issue for issue in pending if issue.span.start > launch]
        for issue in carried:
            yield Transfer(issue.name == _SEND, issue.span.start, work.span, issue.peer)


def _launches(scan: Scan, works: Sequence[Work]) -> list[int]:
    """Return when the host launched each kernel, or where that is not recorded when it began."""
    times = _times(scan.launches, [work.correlation for work in works])
    by_operator = _times(scan.operators, [work.external for work in works])
    return [
        launch if launch is not None else operator if operator is not None else work.span.start
        for launch, operator, work in zip(times, by_operator, works, strict=True)
    ]


def _times(links: Links, numbers: Sequence[int]) -> list[int | None]:
    started, number, _ = columns_of(links.table, 3)
    wanted = np.isin(number, np.array([one for one in numbers if one >= 0], np.int64))
    known = dict(zip(number[wanted].tolist(), started[wanted].tolist(), strict=True))
    return [known.get(one) for one in numbers]
