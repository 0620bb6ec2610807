"""Unmapped events of a recording are kept with the session, from the decoder to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import (
    MAX_KINDS,
    Unmapped,
    join_metadata,
    metadata_document,
    note_unmapped,
    parse_metadata,
    unmapped_of,
)
from app.analysis.trace.model import SessionMeta, Sizes
from tests.unit.analysis.trace.recordings.kineto_files import two_stages

if TYPE_CHECKING:
    from collections.abc import Iterable

META = SessionMeta(Sizes(dp=1, pp=2))
KERNELS = Unmapped("kernels", 3, "profile more")
RANGES = Unmapped("ranges", 5)


def session(*unmapped: Unmapped) -> SessionMeta:
    return note_unmapped(META, unmapped)


def test_a_session_keeps_what_was_left_out_with_the_most_frequent_first() -> None:
    meta = session(KERNELS, RANGES)
    again = parse_metadata(metadata_document(meta))

    assert again == meta
    assert unmapped_of(again.extra) == (RANGES, KERNELS)
    assert note_unmapped(again, ()) == META


def test_parts_of_a_session_add_up_also_where_they_are_alike() -> None:
    both = join_metadata(session(KERNELS), session(KERNELS, RANGES))
    assert unmapped_of(both.extra) == (Unmapped("kernels", 6, "profile more"), RANGES)
    assert unmapped_of(join_metadata(session(RANGES), session(RANGES)).extra) == (
        Unmapped("ranges", 10),
    )
    assert join_metadata(META, META) == META


def test_many_kinds_are_counted_together() -> None:
    many: Iterable[Unmapped] = (Unmapped(f"kind {number}", 1) for number in range(100))
    kept = unmapped_of(note_unmapped(META, many).extra)

    assert len(kept) == MAX_KINDS
    assert sum(one.count for one in kept) == 100
    assert kept[0] == Unmapped("things of other kinds", 100 - MAX_KINDS + 1)


@pytest.mark.parametrize(
    "given",
    [
        "kernels",
        [3],
        [{"what": "kernels"}],
        [{"what": "", "count": 1}],
        [{"what": "kernels", "count": True}],
        [{"what": "kernels", "count": -1}],
        [{"what": "a\nb", "count": 1}],
    ],
)
def test_malformed_unmapped_metadata_is_ignored(given: object) -> None:
    assert unmapped_of({"unmapped": given}) == ()


def test_a_recording_says_what_it_holds_and_nothing_of_before() -> None:
    file = two_stages(0)
    file.add("gloo:broadcast", 5, 10, Process_Group_Description="checkpoint")
    stale = note_unmapped(META, [KERNELS])
    holds = decode(file.body(), stale, limits=Limits()).trace.meta
    holds_nothing = decode(two_stages(0).body(), stale, limits=Limits()).trace.meta

    assert unmapped_of(holds.extra) == (Unmapped("broadcast of the process group checkpoint", 1),)
    assert unmapped_of(holds_nothing.extra) == ()
