"""Culprits of hangs found by stacks alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.hangs.findings import HangKind
from app.analysis.hangs.stacks import split_by_stacks
from app.analysis.hangs.state import Frame, JobState, Process, RankState
from app.analysis.hangs.verdict import judge_hang

REDUCING = (
    Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3012),
    Frame("train", "train.py", 40),
)
ITEM = (Frame("train", "train.py", 51), Frame("main", "train.py", 90))
LOADING = (Frame("__next__", "loader.py", 212), Frame("train", "train.py", 30))


def ranks(*stacks: tuple[Frame, ...]) -> dict[int, RankState]:
    return {rank: RankState(rank, stack=stack) for rank, stack in enumerate(stacks)}


def test_the_rank_that_is_in_no_wait_is_named_with_its_line() -> None:
    job = JobState(groups=(), ranks=ranks(REDUCING, REDUCING, LOADING, REDUCING))

    hang = judge_hang(job)

    assert [(one.rank, one.kind) for one in hang.culprits] == [(2, HangKind.NEVER_ENTERED)]
    assert hang.waiting == (0, 1, 3)
    assert "is in __next__ (loader.py:212) while the others wait in all_reduce" in hang.sentence
    assert hang.chain[0].waits_for == (2,)
    assert "only the stacks show this" in hang.unknown[-1]


def test_ranks_that_are_in_one_line_of_the_users_wait_there() -> None:
    found = split_by_stacks(ranks(ITEM, ITEM, ITEM, LOADING))

    assert found is not None
    assert (found.waiting, found.others) == ((0, 1, 2), (3,))
    assert found.line == ITEM[0]


def in_torch(function: str, line: int) -> tuple[Frame, ...]:
    return (Frame(function, "torch/utils/data/dataloader.py", line), *LOADING[1:])


@pytest.mark.parametrize("late", [2, 5, 7])
def test_ranks_at_one_place_are_late_however_many_they_are(late: int) -> None:
    """They are at different lines of the loader, in one call of the program."""
    loading = [in_torch("_try_get_data", 1251 + rank % 2) for rank in range(late)]
    hang = judge_hang(JobState(groups=(), ranks=ranks(*[REDUCING] * (8 - late), *loading)))

    assert {one.rank: one.kind for one in hang.culprits} == dict.fromkeys(
        range(8 - late, 8), HangKind.NEVER_ENTERED
    )
    assert hang.waiting == tuple(range(8 - late))


def test_a_majority_at_one_line_waits_if_another_rank_is_at_a_third_place() -> None:
    found = split_by_stacks(ranks(REDUCING, *[ITEM] * 5, LOADING))
    assert found is not None
    assert (found.waiting, found.others) == ((0, 1, 2, 3, 4, 5), (6,))


def test_stacks_that_do_not_tell_blame_no_rank() -> None:
    half_elsewhere = ranks(REDUCING, REDUCING, LOADING, ITEM)
    one_alone = ranks(LOADING)
    mostly_unknown = ranks(REDUCING, LOADING, (), (), ())
    for told in (half_elsewhere, one_alone, mostly_unknown):
        assert split_by_stacks(told) is None
        hang = judge_hang(JobState(groups=(), ranks=told))
        assert (hang.kind, hang.culprits) == (HangKind.NOTHING_PENDING, ())


def test_ranks_without_a_stack_are_named_as_unknown() -> None:
    hang = judge_hang(JobState(groups=(), ranks=ranks(REDUCING, REDUCING, LOADING, ())))

    assert [one.rank for one in hang.culprits] == [2]
    assert "There is no stack of rank 3." in hang.unknown


def test_what_the_client_put_around_a_wait_hides_none() -> None:
    ours = Frame("Awaited.wait", "site-packages/paceline_client/torch/tap.py", 271)
    found = split_by_stacks(ranks((ours, *REDUCING), LOADING))

    assert found is not None
    assert (found.waiting, found.others, found.line) == ((0,), (1,), REDUCING[0])


def test_a_rank_that_says_nothing_is_named_where_nothing_pending_leads_to_it() -> None:
    stopped = JobState(
        groups=(),
        ranks=ranks(REDUCING, REDUCING),
        processes={2: Process(7, "T")},
        silent=frozenset({2}),
    )
    hang = judge_hang(stopped)

    assert [(one.rank, one.kind) for one in hang.culprits] == [(2, HangKind.SILENT)]
    assert (hang.waiting, hang.chain[0].waits_for) == ((0, 1), (2,))
    assert "process 7 is stopped" in hang.sentence
    assert "ranks 0 and 1 wait in all_reduce" in hang.sentence

    # If the whole host is gone, no other rank reports the state of its processes.
    unheard = judge_hang(replace(stopped, processes={}))
    assert "says nothing any more" in unheard.sentence
    assert 0.5 <= unheard.confidence < hang.confidence


BARRIER = (Frame("barrier", "torch/distributed/distributed_c10d.py", 4159), *REDUCING[1:])
EVALUATING = (REDUCING[0], Frame("evaluate", "train.py", 77))


def test_ranks_that_all_wait_in_one_place_or_in_halves_are_not_to_blame() -> None:
    for stacks in ([BARRIER] * 8, [*[BARRIER] * 4, *[REDUCING] * 4]):
        hang = judge_hang(JobState(groups=(), ranks=ranks(*stacks)))
        assert (hang.kind, hang.culprits) == (HangKind.ALL_ENTERED, ())
        assert hang.sentence.startswith("All ranks wait in ")
        assert hang.waiting == tuple(range(8))


@pytest.mark.parametrize("other", [BARRIER, EVALUATING], ids=["collective", "line"])
def test_a_rank_that_waits_elsewhere_than_the_others_is_named(other: tuple[Frame, ...]) -> None:
    hang = judge_hang(JobState(groups=(), ranks=ranks(*[REDUCING] * 7, other)))

    assert [(one.rank, one.kind) for one in hang.culprits] == [(7, HangKind.MISMATCH)]
    assert hang.waiting == tuple(range(7))


def test_a_rank_without_a_stack_is_silent_if_all_others_wait() -> None:
    states = ranks(*[REDUCING] * 8)
    del states[3]
    hang = judge_hang(JobState(groups=(), ranks=states))

    assert [(one.rank, one.kind) for one in hang.culprits] == [(3, HangKind.SILENT)]
