"""Culprits of hangs with a known reason."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.state import Frame, Group, JobState, Pending, RankState, Tensors
from app.analysis.hangs.verdict import judge_hang
from app.hangs.flight_recorder import FlightRecorder, read_dump
from tests.support.hanging import Hanging, as_json
from tests.support.nightly import drawn

# Limit of processor time in s, for a job of 16,384 ranks.
VERDICT_WITHIN_S = 2


def state_of(hanging: Hanging, without: frozenset[int] = frozenset()) -> JobState:
    recorder = FlightRecorder()
    for rank, dump in hanging.dumps().items():
        if rank not in without:
            recorder.add(rank, read_dump(as_json(dump)))
    return recorder.job()


def blamed(hang: Hang) -> dict[int, HangKind]:
    return {one.rank: one.kind for one in hang.culprits}


def nested(tp: int, dp: int, pp: int) -> dict[str, list[tuple[int, ...]]]:
    """Return the groups of ranks, numbered with tensor parallelism innermost."""
    world = range(tp * dp * pp)
    return {
        "tp": [tuple(range(first, first + tp)) for first in world[::tp]],
        "dp": [
            tuple(stage * tp * dp + one * tp + own for one in range(dp))
            for stage in range(pp)
            for own in range(tp)
        ],
        "pp": [tuple(range(own, tp * dp * pp, tp * dp)) for own in range(tp * dp)],
        "world": [tuple(world)],
    }


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)).filter(
        lambda sizes: sizes[0] * sizes[1] * sizes[2] > 2
    ),
    kinds=st.lists(st.sampled_from(["tp", "dp", "pp"]), min_size=1, max_size=12),
    data=st.data(),
)
@drawn(300)
def test_the_planted_ranks_are_named_whatever_groups_there_are(
    sizes: tuple[int, int, int], kinds: list[str], data: st.DataObject
) -> None:
    groups = nested(*sizes)
    rounds = [groups[kind] for kind in (*kinds, "world")]
    world = sizes[0] * sizes[1] * sizes[2]
    # If as many ranks stop as wait for them, either side may be wrong.
    most = min(2, (world - 1) // 2)
    planted = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=most))
    at = data.draw(st.integers(0, len(kinds)))
    hanging = Hanging(world, rounds, ahead=data.draw(st.integers(1, 6)))
    on_host = data.draw(st.booleans())
    stops = dict.fromkeys(planted, at)
    # A stuck device can be identified if a peer has completed its collective and does not wait for
    # it.
    alone = any(set(group) <= planted for group in rounds[at] if planted & set(group))
    on_host |= alone or at == len(kinds)
    hanging = (
        replace(hanging, host_stops=stops) if on_host else replace(hanging, device_stops=stops)
    )
    hang = judge_hang(state_of(hanging))

    kind = HangKind.NEVER_ENTERED if on_host else HangKind.DEVICE_STUCK
    assert blamed(hang) == dict.fromkeys(planted, kind)
    assert set(hang.waiting) == set(range(world)) - planted
    assert not hang.unknown
    assert hang.confidence > 0.9


def test_a_rank_that_left_nothing_is_silent() -> None:
    groups = nested(2, 2, 2)
    hanging = Hanging(8, [groups["tp"], groups["dp"], groups["world"]], host_stops={5: 1})
    hang = judge_hang(state_of(hanging, without=frozenset({5})))

    assert blamed(hang) == {5: HangKind.SILENT}
    assert hang.unknown == ("Nothing is known of rank 5.",)
    assert hang.confidence < 0.9


def test_who_waits_for_others_that_wait_is_further_down_the_chain() -> None:
    groups = nested(1, 1, 3)
    pairs = [[(0, 1)], [(1, 2)]]
    hanging = Hanging(3, [pairs[1], pairs[0], groups["world"]], host_stops={2: 0})
    hang = judge_hang(state_of(hanging))

    assert [(link.waiting, link.waits_for, link.distance) for link in hang.chain] == [
        ((1,), (2,), 1),
        ((0,), (1,), 2),
    ]
    assert "2 ranks wait for rank 2. Rank 2 has nothing pending and never entered" in hang.sentence


def test_no_rank_is_blamed_where_all_have_entered() -> None:
    pending = Pending(0, 5, "nccl:all_reduce")
    job = JobState(
        (Group("0", "WORLD", (0, 1, 2)),), {rank: RankState(rank, (pending,)) for rank in range(3)}
    )
    hang = judge_hang(job)

    assert (hang.kind, hang.culprits, hang.confidence) == (HangKind.ALL_ENTERED, (), 0.0)
    assert hang.waiting == (0, 1, 2)
    assert "network" in hang.remedy


def test_nothing_pending_is_no_verdict() -> None:
    hang = judge_hang(JobState((Group("0", "", (0, 1)),), {0: RankState(0), 1: RankState(1)}))
    assert (hang.kind, hang.culprits) == (HangKind.NOTHING_PENDING, ())


def test_collectives_in_different_orders_are_the_programs_fault() -> None:
    groups = (Group("0", "A", (0, 1)), Group("1", "B", (0, 1)))
    job = JobState(
        groups,
        {
            0: RankState(0, (Pending(0, 5, "nccl:all_reduce"),)),
            1: RankState(1, (Pending(1, 5, "nccl:all_reduce"),)),
        },
    )
    hang = judge_hang(job)

    assert blamed(hang) == {0: HangKind.MISMATCH, 1: HangKind.MISMATCH}
    assert "no machine is to blame" in hang.remedy


@pytest.mark.parametrize(
    "other",
    [
        Pending(0, 5, "nccl:broadcast", tensors=Tensors(((4,),))),
        Pending(0, 5, "nccl:all_reduce", tensors=Tensors(((5,),))),
    ],
    ids=["another-operation", "another-size"],
)
def test_a_rank_that_calls_something_else_under_the_same_number_is_named(other: Pending) -> None:
    usual = Pending(0, 5, "nccl:all_reduce", tensors=Tensors(((4,),)))
    job = JobState(
        (Group("0", "WORLD", (0, 1, 2)),),
        {0: RankState(0, (usual,)), 1: RankState(1, (other,)), 2: RankState(2, (usual,))},
    )
    hang = judge_hang(job)

    assert blamed(hang) == {1: HangKind.MISMATCH}
    assert "2 ranks call nccl:all_reduce of 4" in hang.culprits[0].evidence


def test_ranks_that_call_collectives_in_different_orders_are_named_with_the_lines_that_do() -> None:
    def stack(line: int) -> tuple[Frame, ...]:
        wait = Frame("all_reduce", "/lib/torch/distributed/distributed_c10d.py", 3252)
        return (Frame("wait", "/lib/paceline_client/torch/groups.py", 80), wait, at(line))

    def at(line: int) -> Frame:
        return Frame("train", "train.py", line)

    def front(group: int) -> tuple[Pending, ...]:
        return (Pending(group, 2, "gloo:all_reduce"),)

    job = JobState(
        (Group("1", "", (0, 1)), Group("2", "", (0, 1))),
        {0: RankState(0, front(0), stack=stack(7)), 1: RankState(1, front(1), stack=stack(9))},
    )
    hang = judge_hang(job)

    assert blamed(hang) == {0: HangKind.MISMATCH, 1: HangKind.MISMATCH}
    for culprit, line in zip(hang.culprits, (7, 9), strict=True):
        assert f", called in train (train.py:{line}) for rank" in culprit.evidence
        assert "collectives are called in different orders" in culprit.evidence
        assert culprit.stack[-1] == at(line)


def test_transfers_of_a_pipeline_lead_to_the_stage_that_everyone_waits_for() -> None:
    stages = Group("0", "PIPELINE", (0, 1, 2, 3))
    job = JobState(
        (stages,),
        {
            0: RankState(0, (Pending(0, 9, "nccl:recv", peer=1),)),
            1: RankState(
                1,
                (
                    Pending(0, 9, "nccl:recv", peer=2),
                    Pending(0, 10, "nccl:send", peer=0, is_send=True),
                ),
            ),
            2: RankState(2),
            3: RankState(3, (Pending(0, 4, "nccl:send", peer=2, is_send=True),)),
        },
    )
    hang = judge_hang(job)

    assert blamed(hang) == {2: HangKind.NEVER_ENTERED}
    assert hang.waiting == (0, 1, 3)


def test_a_rank_is_waited_for_in_a_collective_rather_than_in_a_send_enqueued_ahead() -> None:
    job = JobState(
        (Group("0", "EXPERTS", (1, 2)), Group("1", "PIPELINE", (0, 2))),
        {
            0: RankState(0, (Pending(1, 9, "nccl:send", peer=2, is_send=True, since_ns=1),)),
            1: RankState(1, (Pending(0, 5, "nccl:all_to_all", since_ns=2),)),
            2: RankState(2),
        },
    )
    (culprit,) = judge_hang(job).culprits
    assert culprit.operation == "nccl:all_to_all 5 of EXPERTS (0)"


def test_a_rank_among_sixteen_thousand_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    world = tuple(range(16_384))
    groups = (
        Group("0", "WORLD", world),
        *(Group(str(n + 1), "TP", world[n * 8 : n * 8 + 8]) for n in range(2048)),
    )
    ranks = {
        rank: RankState(rank, (Pending(0, 7, "nccl:all_reduce"),)) for rank in world if rank != 9000
    }
    for rank in range(9001, 9008):
        ranks[rank] = RankState(rank, (Pending(1126, 4, "nccl:all_gather"),))
    job = JobState(groups, ranks | {9000: RankState(9000)})
    began_s = time.process_time()
    hang = judge_hang(job)
    took_s = time.process_time() - began_s
    with capsys.disabled():
        print(f"\n16,384 ranks: a verdict in {took_s:.2f} s")  # noqa: T201 - the figure

    assert took_s < VERDICT_WITHIN_S
    assert blamed(hang) == {9000: HangKind.NEVER_ENTERED}
    assert len(hang.waiting) == 16_383
