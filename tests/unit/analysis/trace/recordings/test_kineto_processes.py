"""Files into which a script has merged the recordings of several ranks, for a viewer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.merge import TraceChunk, merge
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidTraceError
from tests.unit.analysis.trace.bodies import LIMITS, assert_same
from tests.unit.analysis.trace.recordings.kineto_files import two_stages

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 2


def merged(
    change: Callable[[int, dict[str, Any]], None], more: list[Any], *, numbered: bool = True
) -> bytes:
    """Return the merged files of a job; `change` is the script's change of a rank's events."""
    documents = [json.loads(two_stages(rank, numbered=numbered).body()) for rank in range(RANKS)]
    events = []
    for rank, document in enumerate(documents):
        for event in document["traceEvents"]:
            change(rank, event)
            events.append(event)
    events.sort(key=lambda event: event["ts"])
    return json.dumps({**documents[0], "traceEvents": [*events, *more]}).encode()


def in_number(form: str) -> Callable[[int, dict[str, Any]], None]:
    def change(rank: int, event: dict[str, Any]) -> None:
        event["pid"] = form.format(rank=rank, pid=event["pid"])

    return change


def moved(rank: int, event: dict[str, Any]) -> None:
    event["pid"] += 10_000 * rank


def named(field: str, key: str) -> list[Any]:
    return [
        {"ph": "M", "name": field, "pid": 1 + 10_000 * rank, "args": {key: f"python, rank {rank}"}}
        for rank in range(RANKS)
    ]


WAYS: dict[str, tuple[Callable[[int, dict[str, Any]], None], list[Any]]] = {
    "rank 1: 7": (in_number("rank {rank}: {pid}"), []),
    "[Rank 1] 7": (in_number("[Rank {rank}] {pid}"), []),
    "[1] 7": (in_number("[{rank}] {pid}"), []),
    "[TP01] 7": (in_number("[TP{rank:02d}] {pid}"), []),
    "7_rank1": (in_number("{pid}_rank{rank}"), []),
    "process_name": (moved, named("process_name", "name")),
    "process_labels": (moved, named("process_labels", "labels")),
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_in_one_file_are_read_like_their_own_files(way: str) -> None:
    found = decode(merged(*WAYS[way]), None, limits=LIMITS)

    parts = [
        decode(two_stages(rank).body(), None, limits=LIMITS, part=True).trace
        for rank in range(RANKS)
    ]
    alone = merge([TraceChunk("", rank, part) for rank, part in enumerate(parts)], parts[0].meta)
    assert found.trace.meta.sizes == Sizes(dp=1, pp=2)
    assert_same(found.trace, replace(alone.trace, meta=found.trace.meta))


def test_processes_take_steps_by_their_optimizers_as_well() -> None:
    found = decode(merged(*WAYS["[Rank 1] 7"], numbered=False), None, limits=LIMITS)
    assert sorted(set(found.trace.rank.tolist())) == [0, 1]
    assert sorted(set(found.trace.pp.tolist())) == [0, 1]


def test_processes_that_say_no_rank_are_refused() -> None:
    for change, more in ((moved, []), (moved, named("process_name", "name")[:1])):
        with pytest.raises(InvalidTraceError, match="2 processes take steps") as caught:
            decode(merged(change, more), SessionMeta(Sizes(dp=1, pp=2)), limits=LIMITS)
        assert caught.value.stable_code == "trace.several_ranks"
    same = in_number("{pid}_rank1")

    def twice(rank: int, event: dict[str, Any]) -> None:
        moved(rank, event)
        same(rank, event)

    with pytest.raises(InvalidTraceError) as caught:
        decode(merged(twice, []), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.several_ranks"
