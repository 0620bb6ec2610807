"""Files of several kinds together: what one does not say, another one may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.verdict import judge_hang
from app.cli.hang import read_files
from app.hangs.files import HangFile, job_of, read_hang_file
from tests.support.hanging import as_json, stack_dump
from tests.support.program_hangs import called, communicator, program_dumps, ras_of

WORLD = 32
IN_LIBRARY = ("all_reduce", "torch/distributed/distributed_c10d.py", 2810)
# The line of the program in the stacks of `called`.
WAITING = stack_dump(IN_LIBRARY, ("train", "/app/loop.py", 31))
ELSEWHERE = stack_dump(IN_LIBRARY, ("validate", "/app/loop.py", 80))
LOADING = stack_dump(("read", "/app/data.py", 12))


def files_of(bodies: Mapping[str, bytes]) -> Iterator[HangFile]:
    for name, body in bodies.items():
        yield from read_hang_file(name, body)


def judged(bodies: Mapping[str, bytes]) -> Hang:
    return judge_hang(job_of(files_of(bodies)))


def dumps(*ranks: int, last: Sequence[Sequence[Any]] | None = None) -> dict[str, bytes]:
    """Return the dumps of some ranks of a job in which all ranks wait in all-reduce 6."""
    written = program_dumps([[called()]] * WORLD if last is None else last)
    return {f"_dump_{rank}": as_json(written[rank]) for rank in ranks}


@pytest.mark.parametrize("before", [0, 900], ids=["same-numbers", "ras-counts-longer"])
def test_ranks_that_ras_hears_are_not_silent(before: int) -> None:
    counts = [{"AllReduce": 6 + before}] * WORLD
    hang = judged(dumps(17) | {"ras.json": ras_of(communicator(counts))})

    assert (hang.kind, hang.culprits) == (HangKind.ALL_ENTERED, ())
    assert hang.sentence.startswith("All ranks have entered nccl:all_reduce 6")
    assert "Compare the stacks" in hang.remedy
    assert hang.unknown == ()


@pytest.mark.parametrize("before", [0, 900], ids=["same-numbers", "ras-counts-longer"])
def test_ras_shows_which_rank_without_a_dump_is_late(before: int) -> None:
    counts = [{"AllReduce": 6 + before - (rank == 9)} for rank in range(WORLD)]
    others = [rank for rank in range(WORLD) if rank != 9]
    hang = judged(dumps(*others) | {"ras.json": ras_of(communicator(counts))})

    assert [(one.rank, one.kind) for one in hang.culprits] == [(9, HangKind.NEVER_ENTERED)]
    assert hang.culprits[0].place == "node-1 GPU 1"
    assert "has nothing pending" not in hang.sentence


def test_a_rank_that_ras_does_not_hear_is_silent() -> None:
    counts = [None if rank == 9 else {"AllReduce": 6} for rank in range(WORLD)]
    hang = judged(dumps(17) | {"ras.json": ras_of(communicator(counts))})

    assert [(one.rank, one.kind) for one in hang.culprits] == [(9, HangKind.SILENT)]
    assert hang.confidence >= 0.5


def test_ras_without_the_groups_of_the_dumps_blames_no_rank() -> None:
    """Two communicators have the ranks of the group, so that nothing says which one it is."""
    twice = [communicator([{"AllReduce": 6}] * WORLD, name) for name in ("0x1", "0x2")]
    hang = judged(dumps(17) | {"ras.json": ras_of(*twice)})

    assert (hang.kind, hang.culprits) == (HangKind.ALL_ENTERED, ())
    assert "whose operations are known" in hang.sentence
    assert "is not recorded" in hang.unknown[-1]


def test_ras_that_numbers_no_rank_costs_only_itself() -> None:
    halves = [communicator([{}] * 16, str(first), range(first, first + 16)) for first in (0, 16)]
    late = [[] if rank == 3 else [called()] for rank in range(WORLD)]
    hang = judged(dumps(*range(WORLD), last=late) | {"ras.json": ras_of(*halves)})

    assert [one.rank for one in hang.culprits] == [3]
    assert hang.unknown[0].startswith("The output of RAS is left out: No communicator has all 32")


def test_a_stack_says_where_a_rank_without_a_dump_is() -> None:
    others = [rank for rank in range(WORLD) if rank not in (4, 5, 6)]
    stacks = {"stack_4.json": WAITING, "stack_5.json": ELSEWHERE, "stack_6.json": LOADING}
    hang = judged(dumps(*others) | stacks)

    assert {one.rank: one.kind for one in hang.culprits} == {
        5: HangKind.NEVER_ENTERED,
        6: HangKind.NEVER_ENTERED,
    }
    assert "has nothing pending" not in hang.sentence


def blamed(hang: Hang) -> dict[int, HangKind]:
    return {culprit.rank: culprit.kind for culprit in hang.culprits}


@pytest.mark.parametrize("before", [0, 900], ids=["same-numbers", "ras-counts-longer"])
@pytest.mark.parametrize("left", [(17,), (9, 17), (9,), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("late", [(9,), tuple(range(8, 16))], ids=["a-rank", "a-host"])
def test_ranks_that_ras_says_have_launched_an_operation_call_it(
    before: int, left: tuple[int, ...], late: tuple[int, ...]
) -> None:
    """The rank that is late may be the only one with a dump."""
    last = [[] if rank in late else [called()] for rank in range(WORLD)]
    counts = [{"AllReduce": 6 + before - (rank in late)} for rank in range(WORLD)]
    hang = judged(dumps(*left, last=last) | {"ras.json": ras_of(communicator(counts))})

    assert blamed(hang) == dict.fromkeys(late, HangKind.NEVER_ENTERED)
    assert len(hang.waiting) == WORLD - len(late)
    assert hang.confidence == pytest.approx(0.95)


def test_halves_that_ras_counts_are_both_named() -> None:
    counts = [{"AllReduce": 6 - rank // 16} for rank in range(WORLD)]
    hang = judged(dumps(5) | {"ras.json": ras_of(communicator(counts))})

    assert list(blamed(hang)) == list(range(WORLD))
    assert hang.confidence == pytest.approx(0.6)


def test_sizes_in_dumps_are_compared_next_to_ranks_that_only_ras_hears() -> None:
    last = [[called(input_sizes=[[4 if rank == 2 else 8]])] for rank in range(WORLD)]
    last[9] = []
    counts = [{"AllReduce": 6 - (rank == 9)} for rank in range(WORLD)]
    hang = judged(dumps(1, 2, 3, last=last) | {"ras.json": ras_of(communicator(counts))})

    assert blamed(hang)[2] is HangKind.MISMATCH
    assert len(hang.waiting) >= WORLD - 2


@pytest.mark.parametrize("place", ["host{}/_dump_{}", "run/attempt_1/{}/_dump_{}"])
def test_folders_of_hosts_and_of_the_last_attempt_are_read(place: str, tmp_path: Path) -> None:
    last = [[] if rank == 3 else [called()] for rank in range(4)]
    earlier = tmp_path / "run/attempt_0/0/_dump_0"
    for rank, dump in enumerate(program_dumps(last)):
        path = tmp_path / place.format(rank, rank)
        path.parent.mkdir(parents=True)
        path.write_bytes(as_json(dump))
    if "attempt" in place:
        earlier.parent.mkdir(parents=True)
        earlier.write_bytes(b"{}")

    assert blamed(judge_hang(job_of(read_files([tmp_path])))) == {3: HangKind.NEVER_ENTERED}
