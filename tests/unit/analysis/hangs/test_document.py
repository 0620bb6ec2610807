"""The document of a hang: ranks are grouped by the operation that they wait for, and by stack."""

from __future__ import annotations

from app.analysis.hangs.document import HangDocument, hang_document
from app.analysis.hangs.state import Frame, Group, JobState, Pending, Place, RankState, Reached

LOADING = (Frame("collate", "data/packing.py", 212),)
WAITING = (Frame("all_reduce", "torch/distributed/distributed_c10d.py", 2800),)


def waiting_for(stuck: set[int], world: int, size: int) -> HangDocument:
    """Return a job in groups of consecutive ranks, whose last collective is one of all ranks."""
    groups = [Group("0", "WORLD", tuple(range(world)))]
    groups += [
        Group(str(first), "TENSOR", tuple(range(first, first + size)))
        for first in range(0, world, size)
    ]
    ranks = {}
    for rank in range(world):
        own = 1 + rank // size
        held = any(rank // size == other // size for other in stuck)
        where, number = (own, 3) if held else (0, 2)
        front = Pending(where, number, "nccl:all_reduce", since_ns=rank + 9)
        ranks[rank] = RankState(
            rank,
            () if rank in stuck else (front,),
            {0: Reached(1 if held else 2, 1), own: Reached(2 if rank in stuck else 3, 2)},
            stack=LOADING if rank in stuck else WAITING,
        )
    places = {rank: Place(f"node-{rank // 8}", str(rank % 8)) for rank in range(world)}
    return hang_document(JobState(tuple(groups), ranks, places))


def test_ranks_that_wait_for_the_same_are_one_box() -> None:
    found = waiting_for({9, 14}, world=32, size=8)

    assert [(box.distance, box.ranks, box.place) for box in found.boxes[:2]] == [
        (0, (9,), "node-1 GPU 1"),
        (0, (14,), "node-1 GPU 6"),
    ]
    far, near = found.boxes[2:]
    assert (near.distance, near.ranks) == (1, (8, 10, 11, 12, 13, 15))
    assert near.what == "nccl:all_reduce 3 of TENSOR"
    assert (far.distance, len(far.ranks)) == (1, 24)
    assert {(arrow.start, arrow.end) for arrow in found.arrows} == {(2, 0), (2, 1), (3, 0), (3, 1)}
    assert found.since_ns == 9
    assert found.gpu_hours_each_hour == 32


def test_equal_stacks_are_one_and_those_of_culprits_come_first() -> None:
    found = waiting_for({9, 14}, world=32, size=8)
    assert [(one.stuck, len(one.ranks), one.frames) for one in found.stacks] == [
        (True, 2, LOADING),
        (False, 30, WAITING),
    ]


def test_16384_ranks_are_a_few_boxes() -> None:
    found = waiting_for(set(range(0, 16_384, 1024)), world=16_384, size=8)
    assert len(found.ranks) == 16_384
    assert len(found.boxes) <= 4
    assert sum(len(box.ranks) for box in found.boxes) == 16_384
    assert len(found.arrows) <= 4


def test_the_line_that_a_recorder_has_of_a_culprits_call_is_shown() -> None:
    line = Frame("save", "/app/checkpoint.py", 77)
    saving = Pending(0, 2, "nccl:broadcast", called_at=(line,))
    ranks = {rank: RankState(rank, (), {0: Reached(1, 1)}) for rank in range(1, 4)}
    ranks[0] = RankState(0, (saving,), {0: Reached(2, 1)})
    found = hang_document(JobState((Group("0", "WORLD", (0, 1, 2, 3)),), ranks))

    assert [(one.stuck, one.ranks, one.frames) for one in found.stacks] == [(True, (0,), (line,))]
